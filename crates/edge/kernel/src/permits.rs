//! Permits: what the servers of endpoints with mutual TLS allow to the proxy's callers for a moment. The proxy renews them, and
//! the programs compare their end with the clock, so that a proxy that was stopped permits nothing.
#![allow(unsafe_code, reason = "the programs share this memory")]

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            Ordering::{Relaxed, Release, SeqCst},
            fence,
        },
    },
    time::Duration,
};

use aya::maps::Map;

use crate::{
    KernelError,
    connection_slots::program_clock,
    free_positions::FreePositions,
    map_layout::{PERMIT_BYTES, PERMITS, PermitValue},
    mapped_array::{Mapped, SharedValue},
};

// SAFETY: the type consists of atomics alone.
unsafe impl SharedValue for PermitValue {}

/// The permits of all endpoints.
pub(crate) struct PermitTable {
    permits: Mapped<PermitValue>,
    free: Mutex<FreePositions>,
}

/// The permit of one endpoint. Nothing is permitted before the first [`renew`](Self::renew), nor after this value is
/// dropped.
#[derive(Debug)]
pub struct Permit {
    table: Arc<PermitTable>,
    at: u32,
    endpoint: u32,
}

impl PermitTable {
    /// Maps the permits, and ends those of an earlier proxy.
    pub(crate) fn open(permits: &Map) -> Result<Self, KernelError> {
        let permits: Mapped<PermitValue> = Mapped::open(permits, PERMITS as usize)?;
        let was_used = |at: u32| permits[at as usize].end_earlier();
        let free = FreePositions::new(0..PERMITS, was_used, program_clock());
        Ok(Self { permits, free: Mutex::new(free) })
    }

    /// A permit for this endpoint; `None` while all are in use.
    pub(crate) fn take(self: &Arc<Self>, endpoint: u32) -> Option<Permit> {
        let at = self.free.lock().unwrap_or_else(PoisonError::into_inner).take(program_clock())?;
        Some(Permit { table: Arc::clone(self), at, endpoint })
    }
}

impl Permit {
    /// Permits requests until this reading of [`program_clock`], with these fields added to their heads: whole lines,
    /// each with its end. Fields that do not fit permit nothing: they need a multiple of 8 bytes, and at most
    /// [`MAX_FIELDS`].
    pub fn renew(&self, fields: &[u8], until: Duration) {
        if fields.is_empty() || fields.len() > MAX_FIELDS || !fields.len().is_multiple_of(8) {
            return self.end();
        }
        let value = self.value();
        value.write(|| {
            value.endpoint.store(self.endpoint, Relaxed);
            // Cannot truncate: the length is at most 512.
            value.length.store(fields.len() as u32, Relaxed);
            for (word, bytes) in value.fields.iter().zip(fields.as_chunks().0) {
                word.store(u64::from_ne_bytes(*bytes), Relaxed);
            }
            value.until.store(u64::try_from(until.as_nanos()).unwrap_or(0), Relaxed);
        });
    }

    /// Permits nothing any more, from the next request on.
    pub fn end(&self) {
        self.value().end();
    }

    /// The position plus 1, as in slots.
    pub(crate) fn key(&self) -> u32 {
        self.at + 1
    }

    fn value(&self) -> &PermitValue {
        &self.table.permits[self.at as usize]
    }
}

/// Maximum length of the fields of a permit, in bytes.
pub const MAX_FIELDS: usize = PERMIT_BYTES;

impl Drop for Permit {
    fn drop(&mut self) {
        self.end();
        self.table.free.lock().unwrap_or_else(PoisonError::into_inner).give_back(self.at, program_clock());
    }
}

impl PermitValue {
    fn end(&self) {
        self.write(|| self.until.store(0, Relaxed));
    }

    /// Ends the permit of an earlier proxy. Returns whether that proxy had not ended it, so that a program may be using it.
    fn end_earlier(&self) -> bool {
        let was_in_force = self.until.load(Relaxed) > 0;
        self.end();
        was_in_force
    }

    /// Writes while the generation is odd. One thread at a time writes a permit. An earlier proxy may have been killed in
    /// the midst of it.
    fn write(&self, write: impl FnOnce()) {
        let odd = self.generation.load(Relaxed) | 1;
        self.generation.store(odd, Relaxed);
        // The programs see the odd generation before any of what is written.
        fence(SeqCst);
        write();
        self.generation.store(odd.wrapping_add(1), Release);
    }
}

impl fmt::Debug for PermitTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitTable").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::*;

    #[test]
    fn only_permit_that_its_proxy_did_not_end_is_in_quarantine() {
        let permit = PermitValue {
            generation: AtomicU64::new(1),
            until: AtomicU64::new(5),
            endpoint: AtomicU32::new(7),
            length: AtomicU32::new(8),
            fields: [const { AtomicU64::new(0) }; PERMIT_BYTES / 8],
        };
        assert!(permit.end_earlier(), "its proxy was killed");
        assert!(!permit.end_earlier(), "its proxy ended it");
        assert!(permit.generation.load(Relaxed).is_multiple_of(2));
    }
}
