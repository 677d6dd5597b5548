//! Pooled connections to endpoints. Their state lies in memory shared with the programs.
//!
//! A slot is absent, idle, or claimed by the kernel for a caller. The kernel changes only idle slots, and the
//! proxy changes all others, so each state has one writer.
#![allow(unsafe_code, reason = "the slots are shared memory")]

use std::{
    fmt,
    net::SocketAddr,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicU32,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

use aya::maps::{HashMap, Map, MapData, SockHash};
use fairmesh_balancer::BLOCK_ENDPOINTS;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    KernelError, Permit,
    cgroup_in_flight::Groups,
    ipv6_numbers::Ipv6Numbers,
    map_layout::{
        ENDPOINTS, EndpointValue, LocalConnection, MAX_KEPT, MAX_REQUEST, SLOT_ABSENT, SLOT_IDLE, SLOTS,
        SlotValue,
    },
    mapped_array::{Mapped, SharedValue},
};

// SAFETY: the fields are atomics and cells. The kernel writes cells while the slot is claimed, and `Slot::take_request` reads one
// afterwards. `EndpointSlots::add` writes one while the slot is absent.
unsafe impl SharedValue for SlotValue {}
// SAFETY: the fields are atomics, and an integer that is not used.
unsafe impl SharedValue for EndpointValue {}

/// Time for which a slot stays unused after its connection has ended. A program may have claimed the slot without
/// having sent the request yet.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(1);

/// Time for which nothing is moved to the sockets of a server that closed a connection right after a response.
const CLOSES_FOR: Duration = Duration::from_secs(10);

/// The state of all pooled connections.
pub(crate) struct SlotTable {
    slots: Mapped<SlotValue>,
    endpoints: Mapped<EndpointValue>,
    groups: Groups,
    sockets: Mutex<SockHash<MapData, u32>>,
    /// Slots by their connections to servers on this machine.
    local: Mutex<HashMap<MapData, LocalConnection, u32>>,
    numbers: Arc<Ipv6Numbers>,
    /// Use that this process makes of each slot.
    uses: Mutex<Vec<SlotUse>>,
}

#[derive(Clone, Copy, Debug)]
enum SlotUse {
    Free,
    Used,
    /// The slot has been free since this time, by the programs' clock.
    FreeSince(Duration),
}

/// The slots of one endpoint, held until dropped.
#[derive(Debug)]
pub struct EndpointSlots {
    table: Arc<SlotTable>,
    endpoint: u32,
}

/// The slot of a connection. Dropping it makes the slot absent.
#[derive(Debug)]
pub struct Slot {
    /// Keeps the endpoint's slots from being reused by another endpoint.
    endpoint: Arc<EndpointSlots>,
    at: u32,
    /// Index of the slot among the endpoint's slots.
    entry: usize,
    /// The connection, if the server is on this machine.
    local: Option<LocalConnection>,
}

/// A request that the kernel sent.
#[derive(Debug)]
pub struct SentRequest {
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// The block of the endpoint's statistics, and the endpoint's index in the block.
    pub endpoint: (u32, u32),
    /// Time at which the request was sent, by the programs' clock.
    pub sent: Duration,
    /// Time since the request was sent.
    pub age: Duration,
    /// The seed of the routing decision and the pick.
    pub seed: u64,
    /// The head, and the body if it was kept.
    pub bytes: Vec<u8>,
    /// Length of the body if it was not kept, because it was already sent to the server.
    pub gone: usize,
}

impl SlotTable {
    /// Maps the slots, and makes all of them absent.
    pub(crate) fn open(
        [slots, endpoints, groups]: [&Map; 3],
        [sockets, local]: [Map; 2],
        numbers: Arc<Ipv6Numbers>,
    ) -> Result<Self, KernelError> {
        let slots: Mapped<SlotValue> = Mapped::open(slots, SLOTS as usize)?;
        let groups = Groups::open(groups)?;
        let endpoints: Mapped<EndpointValue> = Mapped::open(endpoints, ENDPOINTS as usize)?;
        for endpoint in endpoints.iter() {
            endpoint.slots.iter().for_each(|slot| slot.store(0, Relaxed));
            endpoint.wanted.store(0, Relaxed);
            endpoint.closes_until.store(0, Relaxed);
        }
        // Programs may still use the slots of an earlier proxy that was killed.
        let now = program_clock();
        let uses = slots.iter().map(|slot| {
            slot.length.store(0, Relaxed);
            groups.end_request(slot);
            match slot.owner.swap(SLOT_ABSENT, AcqRel) {
                SLOT_ABSENT => SlotUse::Free,
                _ => SlotUse::FreeSince(now),
            }
        });
        let uses = Mutex::new(uses.collect());
        let sockets =
            sockets.try_into().map_err(|error| KernelError::refused("map pooled_sockets", &error))?;
        let local = local_slots(local)?;
        let (sockets, local) = (Mutex::new(sockets), Mutex::new(local));
        Ok(Self { slots, endpoints, groups, sockets, local, numbers, uses })
    }

    /// The slots of an endpoint. `endpoint` must be below [`ENDPOINTS`].
    pub(crate) fn endpoint(self: &Arc<Self>, endpoint: u32) -> EndpointSlots {
        self.endpoints[endpoint as usize].closes_until.store(0, Relaxed);
        EndpointSlots { table: Arc::clone(self), endpoint }
    }
}

/// Number of connections claimed for callers.
pub(crate) fn in_flight(slots: &Map) -> Result<usize, KernelError> {
    let slots: Mapped<SlotValue> = Mapped::open(slots, SLOTS as usize)?;
    let is_claimed = |slot: &&SlotValue| !matches!(slot.owner.load(Acquire), SLOT_ABSENT | SLOT_IDLE);
    Ok(slots.iter().filter(is_claimed).count())
}

/// Opens the map and removes an earlier proxy's entries.
fn local_slots(map: Map) -> Result<HashMap<MapData, LocalConnection, u32>, KernelError> {
    let refused = |error| KernelError::refused("map local_slots", &error);
    let mut local: HashMap<_, LocalConnection, u32> = map.try_into().map_err(refused)?;
    let stale: Vec<_> = local.keys().filter_map(Result::ok).collect();
    stale.iter().try_for_each(|connection| local.remove(connection)).map_err(refused)?;
    Ok(local)
}

impl fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable").finish_non_exhaustive()
    }
}

impl EndpointSlots {
    /// Lets the kernel send requests on this connection, only while `permit` is in force if there is one; `addresses` are
    /// the proxy's and the server's. `None` while the endpoint, or the whole table, has no free slot.
    ///
    /// # Errors
    /// When the kernel refuses the socket, for instance because it is closed.
    pub fn add(
        self: &Arc<Self>,
        socket: impl AsFd,
        [own, server]: [SocketAddr; 2],
        permit: Option<&Permit>,
    ) -> Result<Option<Slot>, KernelError> {
        let Some((at, entry)) = self.take_free() else { return Ok(None) };
        let local = self.table.numbers.connection(own, server);
        let slot = Slot { endpoint: Arc::clone(self), at, entry, local };
        slot.value().endpoint.store(self.endpoint, Relaxed);
        slot.value().length.store(0, Relaxed);
        slot.value().permit.store(permit.map_or(0, Permit::key), Relaxed);
        // SAFETY: programs read the cell only in slots that they have claimed, and this slot is absent.
        unsafe { *slot.value().connection.get() = local.unwrap_or_default() };
        if let Some(local) = local {
            let mut slots = self.table.local.lock().unwrap_or_else(PoisonError::into_inner);
            slots.insert(local, at, 0).map_err(|error| KernelError::refused("a connection", &error))?;
        }
        let mut sockets = self.table.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let added = sockets.insert(at, socket.as_fd(), 0);
        drop(sockets);
        added.map_err(|error| KernelError::refused("a connection", &error))?;
        slot.release();
        Ok(Some(slot))
    }

    /// Whether the kernel found no idle connection here since the last call.
    pub fn take_wanted(&self) -> bool {
        self.value().wanted.swap(0, Relaxed) != 0
    }

    /// Stops the kernel from moving requests to this server's sockets for a while, because the server closed a
    /// connection right after a response.
    pub fn note_closes(&self) {
        let until = program_clock() + CLOSES_FOR;
        self.value().closes_until.store(u32::try_from(until.as_secs()).unwrap_or(u32::MAX), Relaxed);
    }

    /// Whether a request that was not taken has waited at least this long for its response.
    pub fn has_waiting(&self, at_least: Duration) -> bool {
        self.slots().any(|slot| slot.length.load(Acquire) > 0 && slot.age() >= at_least)
    }

    /// Index of the endpoint among those of all services.
    pub(crate) fn key(&self) -> u32 {
        self.endpoint
    }

    fn value(&self) -> &EndpointValue {
        &self.table.endpoints[self.endpoint as usize]
    }

    fn slots(&self) -> impl Iterator<Item = &SlotValue> {
        let entries = self.value().slots.iter().filter_map(|slot| slot.load(Acquire).checked_sub(1));
        entries.filter_map(|at| self.table.slots.get(at as usize))
    }

    /// Position of a free slot, bound to a free entry of the endpoint.
    fn take_free(&self) -> Option<(u32, usize)> {
        let mut uses = self.table.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |slot: &SlotUse| match *slot {
            SlotUse::Free => true,
            SlotUse::Used => false,
            SlotUse::FreeSince(since) => program_clock().saturating_sub(since) >= QUARANTINE,
        };
        let at = uses.iter().position(is_free)?;
        let entries = &self.value().slots;
        let entry = entries.iter().position(|entry: &AtomicU32| entry.load(Relaxed) == 0)?;
        uses[at] = SlotUse::Used;
        // Cannot truncate: there are fewer than 2^32 slots.
        let at = at as u32;
        entries[entry].store(at + 1, Release);
        Some((at, entry))
    }
}

impl Slot {
    fn value(&self) -> &SlotValue {
        &self.endpoint.table.slots[self.at as usize]
    }

    /// Cookie of the caller whose request the kernel sent on this connection, if the response may bypass the proxy's
    /// connection to that caller. For this, the caller must have read all other responses before it sent the request.
    pub fn direct_caller(&self) -> Option<u64> {
        let value = self.value();
        let is_sent = value.length.load(Acquire) > 0;
        (is_sent && value.is_direct.load(Acquire) != 0).then(|| value.owner.load(Acquire))
    }

    /// Takes the request that the kernel sent on this connection; returns it only once.
    pub fn take_request(&self) -> Option<SentRequest> {
        let value = self.value();
        // From here on the kernel does not send the response to the caller.
        let length = value.length.swap(0, AcqRel) as usize;
        if length == 0 {
            return None;
        }
        let cookie = value.owner.load(Acquire);
        // SAFETY: the kernel wrote the request before its length, and does not write again until the slot is idle.
        let request = unsafe { &*value.request.get() };
        let length = length.min(MAX_REQUEST);
        let kept = match length <= MAX_KEPT {
            true => length,
            false => MAX_KEPT.min(value.head_bytes.load(Relaxed) as usize),
        };
        let (bytes, gone) = (request[..kept].to_vec(), length - kept);
        let (age, seed) = (value.age(), value.seed.load(Relaxed));
        let endpoint = value.endpoint.load(Relaxed);
        let sent = Duration::from_nanos(value.claimed_ns.load(Relaxed));
        Some(SentRequest { cookie, endpoint: endpoint_key(endpoint), sent, age, seed, bytes, gone })
    }

    /// Time since the kernel last claimed this connection; time since boot if it never did.
    pub fn unused_for(&self) -> Duration {
        self.value().age()
    }

    /// Makes the connection idle after the last response, so that the kernel may send the next request.
    pub fn release(&self) {
        self.endpoint.table.groups.end_request(self.value());
        self.value().owner.store(SLOT_IDLE, Release);
    }

    /// Stops the kernel from using the connection. Returns `true` if the kernel had not claimed it.
    pub fn withdraw(&self) -> bool {
        let owner = &self.value().owner;
        match owner.compare_exchange(SLOT_IDLE, SLOT_ABSENT, AcqRel, Acquire) {
            Ok(_) => true,
            // A program that failed to send the request has withdrawn the slot.
            Err(owner) => owner == SLOT_ABSENT,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let value = self.value();
        let table = &self.endpoint.table;
        value.length.store(0, Relaxed);
        table.groups.end_request(value);
        value.owner.store(SLOT_ABSENT, Release);
        self.endpoint.value().slots[self.entry].store(0, Release);
        if let Some(local) = &self.local {
            // Removing an absent entry is not an error here.
            let _ = table.local.lock().unwrap_or_else(PoisonError::into_inner).remove(local);
        }
        // The kernel removes closed connections by itself.
        let _ = table.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.at);
        let mut uses = table.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses[self.at as usize] = SlotUse::FreeSince(program_clock());
    }
}

impl SlotValue {
    /// Time since the kernel claimed the slot.
    fn age(&self) -> Duration {
        program_clock().saturating_sub(Duration::from_nanos(self.claimed_ns.load(Relaxed)))
    }
}

/// An endpoint's block, and its index in the block.
pub(crate) fn endpoint_key(endpoint: u32) -> (u32, u32) {
    (endpoint / BLOCK_ENDPOINTS as u32, endpoint % BLOCK_ENDPOINTS as u32)
}

/// The current time of the programs' clock, since boot.
pub fn program_clock() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
