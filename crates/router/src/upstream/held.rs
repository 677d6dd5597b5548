use std::sync::Arc;

use fairmesh_balancer::{EndpointStats, LoadReport, Outcome, poll::PollState};

use super::Upstream;
use crate::EndpointTarget;

/// An endpoint without the snapshot that chose it: a stream that is open for hours would else keep all that was known of
/// the service when it began.
///
/// The index stays with its instance while a try counts there, until [`finish`](Self::finish).
#[derive(Clone, Debug)]
pub struct Held {
    endpoint_stats: Arc<EndpointStats>,
    target: Arc<EndpointTarget>,
    index: u32,
}

impl Upstream {
    /// What is to keep of this snapshot for tries that are [begun](Self::begin) at `index`.
    ///
    /// # Panics
    /// When this snapshot knows no endpoint of that index.
    pub fn hold(&self, index: u32) -> Held {
        Held {
            endpoint_stats: Arc::clone(&self.endpoint_stats),
            target: Arc::clone(self.target(index)),
            index,
        }
    }
}

impl Held {
    /// The endpoint.
    pub fn target(&self) -> &Arc<EndpointTarget> {
        &self.target
    }

    /// Counts a further try there, which is to be [finished](Self::finish) too.
    pub fn begin(&self) {
        self.endpoint_stats.begin(self.index);
    }

    /// Counts a try there as a stream from now on, another kind of load than a call (Uber, assisted balancing): where this is `true`, it ends
    /// with [`finish_stream`](Self::finish_stream).
    #[cold]
    pub fn becomes_stream(&self) -> bool {
        self.endpoint_stats.convert_to_stream(self.index)
    }

    /// As [`finish`](Self::finish), for a try that counts as a stream.
    #[cold]
    pub fn finish_stream(&self, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish_stream(self.index, outcome, now);
    }

    /// As [`Upstream::report`].
    #[inline]
    pub fn report(&self, load: LoadReport, now: u64) {
        self.endpoint_stats.record_report(self.index, load, now);
    }

    /// As [`Upstream::report_unearned`].
    pub fn report_unearned(&self, load: LoadReport, now: u64) {
        self.endpoint_stats.record_unrewarded_report(self.index, load, now);
    }

    /// As [`PollState::record_report`].
    pub fn told(&self, poll_state: &PollState, load: LoadReport, now: u64) {
        poll_state.record_report(&self.endpoint_stats, self.index, load, now);
    }

    /// Keeps how long the server took for an answer that came at `now`, both in nanoseconds, for policies that go by it.
    pub fn observe(&self, latency: u64, now: u64) {
        self.endpoint_stats.record_latency(self.index, latency, now);
    }

    /// As [`Upstream::finish`].
    #[inline]
    pub fn finish(&self, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish(self.index, outcome, now);
    }
}
