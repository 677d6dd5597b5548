//! Calls whose responses the kernel has sent to their callers: the proxy learns of them afterwards, from a ring.
#![allow(unsafe_code, reason = "records of the ring are read as bytes")]

use std::{
    fmt, ptr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aya::maps::{Map, MapData, RingBuf};

use crate::{KernelError, layout::CompletedValue, slots::endpoint_key};

/// Calls that are taken at once at most: where fewer were, there were no others.
pub const COMPLETED_AT_ONCE: usize = 1024;

/// A call that the kernel sent, and whose response it sent to the caller.
#[derive(Clone, Copy, Debug)]
pub struct CompletedCall<'a> {
    /// The cookie of the caller's socket.
    pub cookie: u64,
    /// The block in which its endpoint counts, and the endpoint's index in it.
    pub endpoint: (u32, u32),
    /// When it was sent, by the clock of the programs.
    pub sent: Duration,
    /// From then to its response.
    pub took: Duration,
    /// The seed of its route and its pick.
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

/// The ring.
pub(crate) struct CompletedCalls(Mutex<RingBuf<MapData>>);

impl CompletedCalls {
    /// Without what an earlier proxy has not taken: endpoints are others now.
    pub(crate) fn open(ring: Map) -> Result<Self, KernelError> {
        let mut ring: RingBuf<_> =
            ring.try_into().map_err(|error| KernelError::refused("map completed", &error))?;
        while ring.next().is_some() {}
        Ok(Self(Mutex::new(ring)))
    }

    /// At most so many that other tasks get their turn.
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
    /// `None` if this is no such record.
    fn read(record: &'a [u8]) -> Option<Self> {
        let (value, head) = record.split_at_checked(size_of::<CompletedValue>())?;
        // SAFETY: `value` has as many bytes as the type, which is valid whatever they are, and is copied from where they lie.
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
