//! Connections of callers to the proxy, whose state lies in memory that the programs share.
//!
//! The proxy writes how much of a connection it has served, and the programs count the requests that they send. Neither takes a system
//! call.
#![allow(unsafe_code, reason = "the links are shared memory")]

use std::{
    fmt,
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use aya::maps::{HashMap, Map, MapData, SockHash};
use rustix::net::sockopt::socket_cookie;

use crate::{
    KernelError,
    free_positions::FreePositions,
    layout::{CallerAddress, LINKS, LinkValue, UNKNOWN, WITHDRAWN},
    looker::Looker,
    mapped::{Mapped, SharedValue},
    slots::program_clock,
};

// SAFETY: atomics alone.
unsafe impl SharedValue for LinkValue {}

/// The links of all callers.
pub(crate) struct LinkTable {
    links: Mapped<LinkValue>,
    maps: Mutex<Maps>,
    free: Mutex<FreePositions>,
    looker: Looker,
}

/// Where the programs find a link.
struct Maps {
    /// By the cookies of the callers' sockets.
    positions: HashMap<MapData, u64, u32>,
    /// By the callers' addresses, for what the proxy sends.
    by_address: HashMap<MapData, CallerAddress, u32>,
    /// The proxy's sockets, by cookies.
    sockets: SockHash<MapData, u64>,
}

/// The connection of a caller, until it is dropped: then the kernel sends none of its requests.
pub struct Link {
    table: Arc<LinkTable>,
    cookie: u64,
    /// The caller's, if responses may take the short cut.
    address: Option<CallerAddress>,
    at: u32,
}

/// What has come to a caller's socket once it has received all responses of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes of all responses that the proxy has sent on the connection.
    pub received: u64,
    /// How many of them were to requests that the kernel sent.
    pub requests: u64,
}

impl LinkTable {
    /// Without the links of an earlier proxy. The maps are `link_positions`, `proxy_links` and `proxy_sockets`.
    pub(crate) fn open(maps: [Map; 3], links: &Map, looker: Looker) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("a map of links", &error);
        let [positions, by_address, sockets] = maps;
        let mut maps = Maps {
            positions: positions.try_into().map_err(refused)?,
            by_address: by_address.try_into().map_err(refused)?,
            sockets: sockets.try_into().map_err(refused)?,
        };
        maps.clear();
        let links: Mapped<LinkValue> = Mapped::open(links, LINKS as usize)?;
        // Programs may still use those that an earlier proxy used to its end.
        let was_used = |at: u32| links[at as usize].cookie.swap(0, AcqRel) != 0;
        let free = FreePositions::new(0..LINKS, was_used, program_clock());
        Ok(Self { links, maps: Mutex::new(maps), free: Mutex::new(free), looker })
    }

    /// A link for the caller with this cookie, of which nothing is served, and the proxy's socket of its connection. `None` while all are
    /// in use.
    pub(crate) fn add(
        self: &Arc<Self>,
        cookie: u64,
        caller: SocketAddr,
        socket: Option<BorrowedFd<'_>>,
    ) -> Option<Link> {
        let at = self.take_free()?;
        let address = CallerAddress::of(caller).filter(|_| socket.is_some());
        let link = Link { table: Arc::clone(self), cookie, address, at };
        let value = link.value();
        value.sent.store(0, Relaxed);
        value.diverted.store(0, Relaxed);
        value.length.store(0, Relaxed);
        value.pipelines.store(0, Relaxed);
        value.moved.store(0, Relaxed);
        value.read.store(0, Relaxed);
        value.requests.store(0, Relaxed);
        value.received.store(UNKNOWN, Relaxed);
        value.bytes.store(0, Relaxed);
        value.cookie.store(cookie, Release);
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let added = maps.positions.insert(cookie, at, 0);
        if let (Some(address), Some(socket)) = (address, socket) {
            // Refused, all responses pass TCP.
            let _ = maps.by_address.insert(address, at, 0);
            let _ = maps.sockets.insert(cookie, socket, 0);
            // The kernel gives the socket a cookie when it is asked for one, by which the programs know it.
            let _ = socket_cookie(socket);
        }
        drop(maps);
        added.is_ok().then_some(link)
    }

    fn take_free(&self) -> Option<u32> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).take(program_clock())
    }
}

impl Maps {
    fn clear(&mut self) {
        let positions: Vec<_> = self.positions.keys().filter_map(Result::ok).collect();
        let addresses: Vec<_> = self.by_address.keys().filter_map(Result::ok).collect();
        // Each fails only if it is not there. Sockets leave their map when they are closed.
        positions.iter().for_each(|cookie| drop(self.positions.remove(cookie)));
        addresses.iter().for_each(|address| drop(self.by_address.remove(address)));
    }
}

impl Link {
    fn value(&self) -> &LinkValue {
        &self.table.links[self.at as usize]
    }

    /// The link in memory, unless it has become one of another proxy, to which this one has left the maps.
    fn own(&self) -> Option<&LinkValue> {
        Some(self.value()).filter(|value| value.cookie.load(Acquire) == self.cookie)
    }

    /// The cookie of the caller's socket.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// The proxy has responded, or is about to, to all requests in the first `bytes` of the connection.
    pub fn set_served(&self, bytes: u64) {
        if let Some(own) = self.own() {
            own.bytes.store(bytes, Release);
        }
    }

    /// With all that the proxy has sent, and a response of this length that it is about to send, the caller has this. `None` if that is
    /// not known: then no response takes another way to the caller. To be called before [`set_served`](Self::set_served), and before the
    /// response is sent.
    pub fn settle(&self, length: u64, settled: Option<Settled>) {
        let Settled { received, requests } = settled.unwrap_or(Settled { received: UNKNOWN, requests: 0 });
        let Some(own) = self.own() else { return };
        // Longer ones do not take the short cut.
        own.length.store(u32::try_from(length).unwrap_or(0), Relaxed);
        // In this order: the programs read them in the other one.
        own.received.store(received, Release);
        own.requests.store(requests, Release);
    }

    /// Leaves requests of this caller to the proxy, until it has [served](Self::set_served) some again.
    pub fn withdraw(&self) {
        if let Some(own) = self.own() {
            own.bytes.store(WITHDRAWN, Release);
        }
    }

    /// Whether the caller has read all responses that were moved to it past TCP: then others may come over TCP. A reader that waits for
    /// events of its socket, and stops at a short read, would miss what lies in the other one of its two queues. Where it has not, the
    /// caller pipelines, and nothing is moved to it any more.
    pub fn has_read_moved(&self) -> bool {
        let Some(own) = self.own() else { return true };
        let moved = own.moved.load(Acquire);
        if own.read.load(Acquire) == moved {
            return true;
        }
        self.table.looker.look(self.cookie);
        let has_read = own.read.load(Acquire) == moved;
        if !has_read {
            own.pipelines.store(1, Release);
        }
        has_read
    }

    /// The number of requests that the kernel has sent, without those whose responses it has sent too.
    pub fn sent(&self) -> u64 {
        self.own().map_or(0, |own| own.sent.load(Acquire))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut maps = self.table.maps.lock().unwrap_or_else(PoisonError::into_inner);
        // Each fails only if it is not there.
        let _ = maps.positions.remove(&self.cookie);
        if let Some(address) = &self.address {
            let _ = maps.by_address.remove(address);
            let _ = maps.sockets.remove(&self.cookie);
        }
        drop(maps);
        // After a release, it may have become one of another proxy.
        if self.value().cookie.compare_exchange(self.cookie, 0, AcqRel, Acquire).is_ok() {
            let mut free = self.table.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.give_back(self.at, program_clock());
        }
    }
}

impl fmt::Debug for LinkTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkTable").finish_non_exhaustive()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}
