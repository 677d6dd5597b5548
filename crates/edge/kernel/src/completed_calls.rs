//! Completed calls: the kernel has already sent the response to the caller, and the proxy reads a record of
//! the call from a ring afterwards.
#![allow(unsafe_code, reason = "records of the ring are read as bytes")]

use std::{
    fmt, ptr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aya::maps::{Map, MapData, RingBuf};

use crate::{KernelError, connection_slots::endpoint_key, map_layout::CompletedValue};

/// Maximum number of calls taken at once. If fewer are taken, the ring is empty.
pub const COMPLETED_AT_ONCE: usize = 1024;

/// A call whose request and response the kernel sent.
#[derive(Clone, Copy, Debug)]
pub struct CompletedCall<'a> {
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// The block of the endpoint's statistics, and the endpoint's index in the block.
    pub endpoint: (u32, u32),
    /// When the request was sent, by the programs' clock.
    pub sent: Duration,
    /// Time from the request to its response.
    pub took: Duration,
    /// The seed of the routing decision and the pick.
    pub seed: u64,
    /// The status of the response, from 200 to 499.
    pub status: u16,
    /// Bytes of the response's body.
    pub body_bytes: u32,
    /// The server's load report; empty without one.
    pub load: &'a [u8],
    /// The head of the request.
    pub head: &'a [u8],
}

/// The ring of completed calls.
pub(crate) struct CompletedCalls(Mutex<RingBuf<MapData>>);

impl CompletedCalls {
    /// Opens the ring, and discards an earlier proxy's records, because endpoints have changed since.
    pub(crate) fn open(ring: Map) -> Result<Self, KernelError> {
        let mut ring: RingBuf<_> =
            ring.try_into().map_err(|error| KernelError::refused("map completed", &error))?;
        while ring.next().is_some() {}
        Ok(Self(Mutex::new(ring)))
    }

    /// Takes at most [`COMPLETED_AT_ONCE`] calls, so that other tasks get their turn. Returns the number of
    /// calls taken.
    pub(crate) fn take(&self, mut take: impl FnMut(CompletedCall<'_>)) -> usize {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = 0;
        while taken < COMPLETED_AT_ONCE
            && let Some(record) = ring.next()
        {
            taken += 1;
            if let Some(call) = CompletedCall::read(&record) {
                take(call);
            }
        }
        taken
    }
}

impl<'a> CompletedCall<'a> {
    /// Parses a record; `None` if it is malformed.
    fn read(record: &'a [u8]) -> Option<Self> {
        let (value, head) = record.split_at_checked(size_of::<CompletedValue>())?;
        // SAFETY: `value` has the size of the type, every bit pattern is valid, and the read is unaligned.
        let found: CompletedValue = unsafe { ptr::read_unaligned(value.as_ptr().cast()) };
        let load = std::mem::offset_of!(CompletedValue, load);
        let since = found.finished_ns.saturating_sub(found.claimed_ns);
        Some(Self {
            cookie: found.cookie,
            endpoint: endpoint_key(found.endpoint),
            sent: Duration::from_nanos(found.claimed_ns),
            took: Duration::from_nanos(since),
            seed: found.seed,
            status: u16::try_from(found.status).ok()?,
            body_bytes: found.body_bytes,
            load: value[load..].get(..found.load_bytes as usize)?,
            head: head.get(..found.head_bytes as usize)?,
        })
    }
}

impl fmt::Debug for CompletedCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletedCalls").finish_non_exhaustive()
    }
}
