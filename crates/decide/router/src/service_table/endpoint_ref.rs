use std::sync::Arc;

use fairmesh_balancer::{EndpointStats, LoadReport, Outcome, load_poll::PollState};

use super::ServiceTable;
use crate::EndpointTarget;

/// A handle to one endpoint without its snapshot. With the snapshot, a stream that lasts for hours would keep the whole
/// table alive.
///
/// The index stays assigned to its instance while an attempt is counted, until [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct EndpointRef {
    endpoint_stats: Arc<EndpointStats>,
    target: Arc<EndpointTarget>,
    index: u32,
}

impl ServiceTable {
    /// Returns a handle for attempts that [begin](Self::begin) at `index`.
    ///
    /// # Panics
    /// This snapshot has no endpoint with that index.
    pub fn endpoint_ref(&self, index: u32) -> EndpointRef {
        EndpointRef {
            endpoint_stats: Arc::clone(&self.endpoint_stats),
            target: Arc::clone(self.target(index)),
            index,
        }
    }
}

impl EndpointRef {
    /// The endpoint.
    pub fn target(&self) -> &Arc<EndpointTarget> {
        &self.target
    }

    /// Counts a further attempt, which also needs a [`finish`](Self::finish).
    pub fn begin(&self) {
        self.endpoint_stats.begin(self.index);
    }

    /// Counts an attempt as a stream from now on, since streams load a server differently (Uber, assisted balancing).
    /// If this returns `true`, end the stream with [`finish_stream`](Self::finish_stream).
    #[cold]
    pub fn mark_as_stream(&self) -> bool {
        self.endpoint_stats.convert_to_stream(self.index)
    }

    /// Like [`finish`](Self::finish), for an attempt that counts as a stream.
    #[cold]
    pub fn finish_stream(&self, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish_stream(self.index, outcome, now);
    }

    /// Like [`ServiceTable::record_report`].
    #[inline]
    pub fn record_report(&self, load: LoadReport, now: u64) {
        self.endpoint_stats.record_report(self.index, load, now);
    }

    /// Like [`ServiceTable::record_unrewarded_report`].
    pub fn record_unrewarded_report(&self, load: LoadReport, now: u64) {
        self.endpoint_stats.record_unrewarded_report(self.index, load, now);
    }

    /// Records a polled report like [`PollState::record_report`].
    pub fn record_polled_report(&self, poll_state: &PollState, load: LoadReport, now: u64) {
        poll_state.record_report(&self.endpoint_stats, self.index, load, now);
    }

    /// Records the latency of a response that arrived at `now`, both in nanoseconds, for policies that use it.
    pub fn record_latency(&self, latency: u64, now: u64) {
        self.endpoint_stats.record_latency(self.index, latency, now);
    }

    /// Like [`ServiceTable::finish`].
    #[inline]
    pub fn finish(&self, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish(self.index, outcome, now);
    }
}
