use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tonic::{Code, Status};

/// Number of watches that this side terminated, by reason: the peer was silent, sent invalid data or exceeded a
/// limit. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TerminatedWatches(Arc<[AtomicU64; 3]>);

impl TerminatedWatches {
    const REASONS: [&str; 3] = ["timeout", "malformed", "limit"];

    /// Returns each reason with its count.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::REASONS.into_iter().zip(self.0.iter().map(|count| count.load(Relaxed)))
    }

    /// Counts a watch that ended with this status. Watches that ended because the peer closed the connection or this
    /// process stops are not counted.
    pub(crate) fn count(&self, status: &Status) {
        let reason = match status.code() {
            Code::DeadlineExceeded => 0,
            Code::InvalidArgument => 1,
            Code::ResourceExhausted => 2,
            _ => return,
        };
        self.0[reason].fetch_add(1, Relaxed);
    }
}
