//! Pooled connections to endpoints, whose state lies in memory that the programs share.
//!
//! A slot is absent, idle, or claimed by the kernel for a caller. The kernel claims idle slots alone, and the proxy changes all
//! others, so each state has one writer.
#![allow(unsafe_code, reason = "the slots are shared memory")]

use std::{
    fmt, io,
    os::fd::AsFd,
    ptr::{self, NonNull},
    slice,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use aya::maps::{Map, MapData, SockHash};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    time::{ClockId, clock_gettime},
};

use crate::{
    KernelError,
    layout::{ENDPOINT_SLOTS, MAX_REQUEST, SLOT_ABSENT, SLOT_IDLE, SLOTS, SlotValue},
};

/// How long a slot stays unused after its connection: a program that claimed it may not have sent the request yet.
const QUARANTINE: Duration = Duration::from_secs(1);

/// The state of all pooled connections.
pub(crate) struct SlotTable {
    values: NonNull<SlotValue>,
    bytes: usize,
    sockets: Mutex<SockHash<MapData, u32>>,
    uses: Mutex<Uses>,
}

/// Which slots this process uses.
#[derive(Debug)]
struct Uses {
    endpoints: Vec<bool>,
    slots: Vec<Use>,
}

#[derive(Clone, Copy, Debug)]
enum Use {
    Free,
    Used,
    /// Since this time of the programs' clock.
    FreeSince(Duration),
}

// SAFETY: the memory is mapped until the table is dropped, and its fields are atomic except for requests, which `Slot::take` alone
// reads, after the kernel has written them.
unsafe impl Send for SlotTable {}
// SAFETY: as above.
unsafe impl Sync for SlotTable {}

/// The slots of one endpoint, until it is dropped.
#[derive(Debug)]
pub struct EndpointSlots {
    table: Arc<SlotTable>,
    pub(crate) endpoint: u32,
}

/// The slot of a connection, which is absent again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    /// Keeps the endpoint's slots from being given to another one.
    endpoint: Arc<EndpointSlots>,
    at: u32,
}

/// A request that the kernel sent.
#[derive(Debug)]
pub struct SentRequest {
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// The time since it was sent.
    pub age: Duration,
    /// All of it, at most [`MAX_REQUEST`] bytes.
    pub bytes: Vec<u8>,
}

impl SlotTable {
    /// Maps the slots, all of which become absent.
    pub(crate) fn open(slots: &Map, sockets: Map) -> Result<Self, KernelError> {
        let refused = |error: &dyn std::error::Error| KernelError::refused("map slots", error);
        let Map::Array(slots) = slots else { return Err(KernelError::NoPrograms) };
        let bytes = SLOTS as usize * size_of::<SlotValue>();
        // SAFETY: no address is asked for, so that no other mapping is replaced.
        let mapped = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, slots.fd(), 0)
        };
        let mapped = mapped.map_err(|error| refused(&io::Error::from(error)))?;
        let values =
            NonNull::new(mapped.cast()).ok_or_else(|| refused(&io::Error::from(io::ErrorKind::Other)))?;
        let uses = Uses {
            endpoints: vec![false; (SLOTS / ENDPOINT_SLOTS) as usize],
            slots: vec![Use::Free; SLOTS as usize],
        };
        let sockets = sockets.try_into().map_err(|error| refused(&error))?;
        let table = Self { values, bytes, sockets: Mutex::new(sockets), uses: Mutex::new(uses) };
        for slot in table.values() {
            slot.length.store(0, Relaxed);
            slot.owner.store(SLOT_ABSENT, Release);
        }
        Ok(table)
    }

    fn values(&self) -> &[SlotValue] {
        // SAFETY: so many values are mapped, are valid whatever their bytes are, and stay until `self` is dropped. They are changed
        // through atomics, and requests through a cell.
        unsafe { slice::from_raw_parts(self.values.as_ptr(), SLOTS as usize) }
    }

    /// Reserves the slots of an endpoint. `None` while all are in use.
    pub(crate) fn reserve(self: &Arc<Self>) -> Option<EndpointSlots> {
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let endpoint = uses.endpoints.iter().position(|used| !used)?;
        uses.endpoints[endpoint] = true;
        // There are fewer than 2^32.
        Some(EndpointSlots { table: Arc::clone(self), endpoint: endpoint as u32 })
    }
}

impl fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotTable").finish_non_exhaustive()
    }
}

impl Drop for SlotTable {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference is left. An error would leave it mapped.
        let _ = unsafe { munmap(self.values.as_ptr().cast(), self.bytes) };
    }
}

impl EndpointSlots {
    /// Has the kernel send requests on this connection. `None` while the endpoint has no free slot.
    ///
    /// # Errors
    /// When the kernel refuses the socket, as one that is closed.
    pub fn add(self: &Arc<Self>, socket: impl AsFd) -> Result<Option<Slot>, KernelError> {
        let Some(at) = self.take_free() else { return Ok(None) };
        let slot = Slot { endpoint: Arc::clone(self), at };
        let mut sockets = self.table.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        let added = sockets.insert(at, socket.as_fd(), 0);
        drop(sockets);
        added.map_err(|error| KernelError::refused("a connection", &error))?;
        slot.release();
        Ok(Some(slot))
    }

    /// Whether the kernel finds an idle connection here.
    pub fn has_idle(&self) -> bool {
        self.range().any(|at| self.table.values()[at as usize].owner.load(Acquire) == SLOT_IDLE)
    }

    /// Whether a request has been waiting for its response for this long, and has not been taken.
    pub fn has_waiting(&self, at_least: Duration) -> bool {
        self.range().any(|at| {
            let value = &self.table.values()[at as usize];
            value.length.load(Acquire) > 0 && value.age() >= at_least
        })
    }

    fn range(&self) -> std::ops::Range<u32> {
        let first = self.endpoint * ENDPOINT_SLOTS;
        first..first + ENDPOINT_SLOTS
    }

    fn take_free(&self) -> Option<u32> {
        let mut uses = self.table.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |at: &u32| match uses.slots[*at as usize] {
            Use::Free => true,
            Use::Used => false,
            Use::FreeSince(since) => monotonic().saturating_sub(since) >= QUARANTINE,
        };
        let at = self.range().find(is_free)?;
        uses.slots[at as usize] = Use::Used;
        Some(at)
    }
}

impl Drop for EndpointSlots {
    fn drop(&mut self) {
        let mut uses = self.table.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.endpoints[self.endpoint as usize] = false;
    }
}

impl Slot {
    fn value(&self) -> &SlotValue {
        &self.endpoint.table.values()[self.at as usize]
    }

    /// Takes the request that the kernel sent on this connection, once.
    pub fn take_request(&self) -> Option<SentRequest> {
        let value = self.value();
        let length = value.length.load(Acquire) as usize;
        if length == 0 {
            return None;
        }
        let cookie = value.owner.load(Acquire);
        // SAFETY: the kernel wrote the request before its length, and writes none until the slot is idle.
        let request = unsafe { &*value.request.get() };
        let bytes = request[..length.min(MAX_REQUEST)].to_vec();
        let age = value.age();
        value.length.store(0, Release);
        Some(SentRequest { cookie, age, bytes })
    }

    /// Has the kernel send the next request: the response to the last one has been received.
    pub fn release(&self) {
        self.value().owner.store(SLOT_IDLE, Release);
    }

    /// Has the kernel send no request any more; whether it has not claimed the connection before.
    pub fn withdraw(&self) -> bool {
        let owner = &self.value().owner;
        match owner.compare_exchange(SLOT_IDLE, SLOT_ABSENT, AcqRel, Acquire) {
            Ok(_) => true,
            // A program that could not send the request has withdrawn it.
            Err(owner) => owner == SLOT_ABSENT,
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let value = self.value();
        value.length.store(0, Relaxed);
        value.owner.store(SLOT_ABSENT, Release);
        let table = &self.endpoint.table;
        // The kernel has removed it if the connection is closed.
        let _ = table.sockets.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.at);
        let mut uses = table.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.slots[self.at as usize] = Use::FreeSince(monotonic());
    }
}

impl SlotValue {
    /// The time since the kernel claimed it.
    fn age(&self) -> Duration {
        monotonic().saturating_sub(Duration::from_nanos(self.claimed_ns.load(Relaxed)))
    }
}

/// The clock of the programs, from the start of the machine.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
