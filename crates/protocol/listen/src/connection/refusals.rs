use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of refusals within [`PERIOD`] that close a known peer's connection. It equals the limit on resets
/// ([`Http2Settings::RESETS`](crate::Http2Settings::RESETS)).
const MAX_REFUSALS: u32 = 64;
/// Number of refusals within [`PERIOD`] that close the connection of a peer without certificate and token.
const MAX_UNKNOWN_REFUSALS: u32 = 8;
/// Seconds after which refusals no longer count.
const PERIOD: u32 = 60;

/// Counts refused requests that cost this process more than the peer: only headers were sent, or the caller is
/// unknown.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    count: AtomicU32,
    since: AtomicU32,
}

impl Refusals {
    /// Counts a refusal at `now`, in seconds. Returns whether the connection must be closed.
    pub(crate) fn exceed(&self, is_known: bool, now: u32) -> bool {
        let is_first = self.count.load(Relaxed) == 0;
        if is_first || now.saturating_sub(self.since.load(Relaxed)) > PERIOD {
            self.since.store(now, Relaxed);
            self.count.store(0, Relaxed);
        }
        let max = if is_known { MAX_REFUSALS } else { MAX_UNKNOWN_REFUSALS };
        self.count.fetch_add(1, Relaxed) >= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unidentified_peer_is_disconnected_after_fewer_refusals() {
        for (is_known, max) in [(true, MAX_REFUSALS), (false, MAX_UNKNOWN_REFUSALS)] {
            let refusals = Refusals::default();
            assert!((0..max).all(|_| !refusals.exceed(is_known, 1)));
            assert!(refusals.exceed(is_known, PERIOD + 1));
            assert!(!refusals.exceed(is_known, PERIOD + 2 * PERIOD));
        }
    }
}
