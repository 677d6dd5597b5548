//! Received, unread bytes, and the budget for them that all connections of a process share.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Process-wide budget for unread bytes. While it is exceeded, a connection with more than [`MAX_UNREAD_OF_ONE`] has
/// its uploads reset and new uploads refused.
const MAX_UNREAD: u64 = 256 << 20;
/// Unread bytes that a single connection may hold even when the budget is exceeded.
const MAX_UNREAD_OF_ONE: u64 = 1 << 20;

static BUDGET: Budget = Budget { used: AtomicU64::new(0), max: MAX_UNREAD };

/// Unread bytes of all connections.
#[derive(Debug)]
struct Budget {
    used: AtomicU64,
    max: u64,
}

/// Unread bytes of one connection. Dropping this value returns them to the budget.
#[derive(Debug)]
pub(super) struct UnreadBytes {
    budget: &'static Budget,
    bytes: u64,
}

impl Default for UnreadBytes {
    fn default() -> Self {
        Self { budget: &BUDGET, bytes: 0 }
    }
}

impl UnreadBytes {
    pub(super) fn get(&self) -> u64 {
        self.bytes
    }

    pub(super) fn add(&mut self, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.budget.used.fetch_add(bytes.into(), Relaxed);
    }

    pub(super) fn remove(&mut self, bytes: u32) {
        let bytes = u64::from(bytes).min(self.bytes);
        self.bytes -= bytes;
        self.budget.used.fetch_sub(bytes, Relaxed);
    }

    /// Whether the unread bytes of all connections exceed the budget of the process.
    pub(super) fn is_budget_exhausted(&self) -> bool {
        self.budget.used.load(Relaxed) > self.budget.max
    }

    /// Whether uploads on this connection must be refused: the budget is exceeded, and the connection holds more than
    /// [`MAX_UNREAD_OF_ONE`].
    pub(super) fn exceeds_its_part(&self) -> bool {
        self.bytes > MAX_UNREAD_OF_ONE && self.is_budget_exhausted()
    }
}

impl Drop for UnreadBytes {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_unread_byte_budget_affects_only_connections_over_share() {
        static SMALL: Budget = Budget { used: AtomicU64::new(0), max: 4 << 20 };
        let connection = || UnreadBytes { budget: &SMALL, bytes: 0 };
        let (mut large, mut small) = (connection(), connection());
        large.add(4 << 20);
        assert!(!large.exceeds_its_part(), "there is room");
        small.add(1 << 20);
        assert!(large.exceeds_its_part() && !small.exceeds_its_part());
        assert!(small.is_budget_exhausted());
        large.remove(1 << 20);
        assert!(!large.exceeds_its_part() && !small.is_budget_exhausted());
        drop(large);
        assert_eq!((SMALL.used.load(Relaxed), small.get()), (1 << 20, 1 << 20));
        drop(small);
        assert_eq!(SMALL.used.load(Relaxed), 0);
    }
}
