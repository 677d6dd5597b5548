use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Maximum number of a connection's open streams whose requests the server has not begun. Above it reading pauses,
/// since every further stream takes memory that nothing has claimed yet.
const MAX_UNBEGUN: u32 = 64;

/// Streams whose headers were received and whose requests the server has not yet begun.
#[derive(Debug, Default)]
pub(crate) struct UnbegunStreams {
    count: AtomicU32,
    /// The count at the last sweep.
    swept: AtomicU32,
}

impl UnbegunStreams {
    pub(crate) fn open(&self, streams: u32) {
        self.count.fetch_add(streams, Relaxed);
    }

    /// Records that the server begins a request. Returns whether reading may resume.
    pub(crate) fn begin(&self) -> bool {
        let begun = self.count.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
        begun == Ok(MAX_UNBEGUN)
    }

    pub(crate) fn are_many(&self) -> bool {
        self.room() == 0
    }

    /// Number of streams that may be opened before reading pauses.
    pub(crate) fn room(&self) -> u32 {
        MAX_UNBEGUN.saturating_sub(self.count.load(Relaxed))
    }

    /// Forgets the streams that the server has not begun since the last sweep, because the server itself refused them.
    /// Returns whether reading may resume.
    pub(crate) fn sweep(&self) -> bool {
        let count = self.count.load(Relaxed);
        let is_stuck = count >= MAX_UNBEGUN && count == self.swept.swap(count, Relaxed);
        is_stuck && self.count.compare_exchange(count, 0, Relaxed, Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_without_running_handler_pause_reading_beyond_limit() {
        let streams = UnbegunStreams::default();
        assert!(!streams.begin(), "a request of HTTP/1.1 has no stream");
        streams.open(MAX_UNBEGUN + 1);
        assert!(streams.are_many());
        assert_eq!((streams.begin(), streams.begin(), streams.are_many()), (false, true, false));
        streams.open(1);
        assert_eq!((streams.sweep(), streams.are_many()), (false, true));
        assert_eq!((streams.sweep(), streams.are_many()), (true, false));
    }
}
