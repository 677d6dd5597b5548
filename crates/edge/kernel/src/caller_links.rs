//! Callers' connections to the proxy. Their state lies in memory shared with the programs.
//!
//! The proxy writes how much of a connection it has served, and the programs count the requests that they
//! send. Neither needs a system call.
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
    caller_read_probe::CallerReadProbe,
    connection_slots::program_clock,
    free_positions::FreePositions,
    map_layout::{CallerAddress, LINKS, LinkValue, UNKNOWN, WITHDRAWN},
    mapped_array::{Mapped, SharedValue},
    network_namespace::netns_cookie,
};

// SAFETY: the type consists of atomics alone.
unsafe impl SharedValue for LinkValue {}

/// The links of all callers.
pub(crate) struct LinkTable {
    links: Mapped<LinkValue>,
    maps: Mutex<Maps>,
    free: Mutex<FreePositions>,
    probe: CallerReadProbe,
}

/// Maps in which the programs find a link.
struct Maps {
    /// Link positions by the cookies of the callers' sockets.
    positions: HashMap<MapData, u64, u32>,
    /// Link positions by the callers' addresses, for data that the proxy sends.
    by_address: HashMap<MapData, CallerAddress, u32>,
    /// The proxy's sockets by their cookies.
    sockets: SockHash<MapData, u64>,
}

/// A caller's connection. Once it is dropped, the kernel sends none of its requests.
pub struct Link {
    table: Arc<LinkTable>,
    cookie: u64,
    /// The caller's address, if responses may take the short cut.
    address: Option<CallerAddress>,
    at: u32,
}

/// Totals of a connection whose caller has received all responses of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// Bytes of all responses that the proxy has sent on the connection.
    pub received: u64,
    /// Number of these responses that belong to requests that the kernel sent.
    pub requests: u64,
}

impl LinkTable {
    /// Opens the maps `link_positions`, `proxy_links` and `proxy_sockets`, and drops an earlier proxy's links.
    pub(crate) fn open(maps: [Map; 3], links: &Map, probe: CallerReadProbe) -> Result<Self, KernelError> {
        let refused = |error| KernelError::refused("a map of links", &error);
        let [positions, by_address, sockets] = maps;
        let mut maps = Maps {
            positions: positions.try_into().map_err(refused)?,
            by_address: by_address.try_into().map_err(refused)?,
            sockets: sockets.try_into().map_err(refused)?,
        };
        maps.clear();
        let links: Mapped<LinkValue> = Mapped::open(links, LINKS as usize)?;
        // Programs may still use the links of an earlier proxy that was killed.
        let was_used = |at: u32| links[at as usize].cookie.swap(0, AcqRel) != 0;
        let free = FreePositions::new(0..LINKS, was_used, program_clock());
        Ok(Self { links, maps: Mutex::new(maps), free: Mutex::new(free), probe })
    }

    /// Adds a link for the caller with this cookie. Nothing is served on it yet. `None` while all links are in use.
    pub(crate) fn add(
        self: &Arc<Self>,
        cookie: u64,
        caller: SocketAddr,
        socket: Option<BorrowedFd<'_>>,
    ) -> Option<Link> {
        let at = self.take_free()?;
        let address = socket.and_then(|socket| CallerAddress::of(caller, netns_cookie(&socket).ok()?));
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
            // If the kernel refuses, all responses pass TCP.
            let _ = maps.by_address.insert(address, at, 0);
            let _ = maps.sockets.insert(cookie, socket, 0);
            // Reading the cookie makes the kernel assign one; the programs find the socket by it.
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
        // Removing an absent entry is not an error here. Closed sockets leave their map by themselves.
        positions.iter().for_each(|cookie| drop(self.positions.remove(cookie)));
        addresses.iter().for_each(|address| drop(self.by_address.remove(address)));
    }
}

impl Link {
    fn value(&self) -> &LinkValue {
        &self.table.links[self.at as usize]
    }

    /// The link in memory. `None` if another proxy has taken over the maps and reuses the link.
    fn own(&self) -> Option<&LinkValue> {
        Some(self.value()).filter(|value| value.cookie.load(Acquire) == self.cookie)
    }

    /// The cookie of the caller's socket.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Reports that the proxy has responded, or is about to respond, to all requests within the first `bytes` of the
    /// connection.
    pub fn set_served(&self, bytes: u64) {
        if let Some(own) = self.own() {
            own.bytes.store(bytes, Release);
        }
    }

    /// Announces a response of this length. `settled` holds the caller's totals after all responses up to this one.
    /// `None` means that they are unknown, and then no response bypasses TCP. Call this before
    /// [`set_served`](Self::set_served) and before sending the response.
    pub fn settle(&self, length: u64, settled: Option<Settled>) {
        let Settled { received, requests } = settled.unwrap_or(Settled { received: UNKNOWN, requests: 0 });
        let Some(own) = self.own() else { return };
        // Longer responses do not take the short cut.
        own.length.store(u32::try_from(length).unwrap_or(0), Relaxed);
        // The programs read these fields in the reverse order.
        own.received.store(received, Release);
        own.requests.store(requests, Release);
    }

    /// Leaves requests of this caller to the proxy until the next [`set_served`](Self::set_served).
    pub fn withdraw(&self) {
        if let Some(own) = self.own() {
            own.bytes.store(WITHDRAWN, Release);
        }
    }

    /// Whether the caller has read all responses that were moved past TCP, so that responses may come over TCP again.
    /// A caller that waits for socket events and stops at a short read would miss data in the other of its two
    /// queues. A caller that has not read everything is marked as pipelining, so nothing more is moved to it.
    pub fn has_read_moved(&self) -> bool {
        let Some(own) = self.own() else { return true };
        let moved = own.moved.load(Acquire);
        if own.read.load(Acquire) == moved {
            return true;
        }
        self.table.probe.look(self.cookie);
        let has_read = own.read.load(Acquire) == moved;
        if !has_read {
            own.pipelines.store(1, Release);
        }
        has_read
    }

    /// Number of requests that the kernel has sent, excluding completed calls.
    pub fn sent(&self) -> u64 {
        self.own().map_or(0, |own| own.sent.load(Acquire))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut maps = self.table.maps.lock().unwrap_or_else(PoisonError::into_inner);
        // Removing an absent entry is not an error here.
        let _ = maps.positions.remove(&self.cookie);
        if let Some(address) = &self.address {
            let _ = maps.by_address.remove(address);
            let _ = maps.sockets.remove(&self.cookie);
        }
        drop(maps);
        // After the maps were released, the link may belong to another proxy.
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
