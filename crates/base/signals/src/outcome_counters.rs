use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_model::{CallCounts, CallFault, LATENCY_BUCKETS, ResponseClass, latency_bucket};

/// Counts outcomes of calls and the latency of their attempts.
///
/// The counters are allocated with the first outcome, since most paths of a service never have a call. Counters of
/// faults are allocated separately, since most paths with calls have no faults.
#[derive(Debug, Default)]
pub(crate) struct OutcomeCounters {
    answered: OnceLock<Box<Answered>>,
    faults: OnceLock<Box<[AtomicU64; CallFault::ALL.len()]>>,
}

#[derive(Debug, Default)]
struct Answered {
    responses: [AtomicU64; ResponseClass::ALL.len()],
    latency: [AtomicU64; LATENCY_BUCKETS],
}

impl OutcomeCounters {
    #[inline]
    pub(crate) fn record_latency(&self, us: u64) {
        self.answered().latency[latency_bucket(us)].fetch_add(1, Relaxed);
    }

    #[inline]
    pub(crate) fn record_response(&self, class: ResponseClass, count: u64) {
        self.answered().responses[class as usize].fetch_add(count, Relaxed);
    }

    #[cold]
    pub(crate) fn record_fault(&self, fault: CallFault, count: u64) {
        if count > 0 {
            self.faults.get_or_init(Box::default)[fault as usize].fetch_add(count, Relaxed);
        }
    }

    /// The number of measured latencies.
    pub(crate) fn timed(&self) -> u64 {
        let latency = self.answered.get().map(|answered| &answered.latency);
        latency.into_iter().flatten().map(|bucket| bucket.load(Relaxed)).sum()
    }

    /// Adds the responses, faults and latencies to `counts`.
    pub(crate) fn add_to(&self, counts: CallCounts) -> CallCounts {
        fn read<const N: usize>(counters: &[AtomicU64; N]) -> [u64; N] {
            std::array::from_fn(|i| counters[i].load(Relaxed))
        }
        let answered = self.answered.get();
        let responses = answered.map(|answered| read(&answered.responses)).unwrap_or_default();
        let latency = answered.map(|answered| read(&answered.latency)).unwrap_or_default();
        let faults = self.faults.get().map(|faults| read(faults)).unwrap_or_default();
        counts.with_outcomes(&responses, &faults, &latency)
    }

    #[inline]
    fn answered(&self) -> &Answered {
        self.answered.get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_outcomes_are_counted_by_class_fault_and_latency_bucket() {
        let outcomes = OutcomeCounters::default();
        assert_eq!(outcomes.add_to(CallCounts::ZERO), CallCounts::ZERO);
        outcomes.record_response(ResponseClass::ServerError, 2);
        outcomes.record_fault(CallFault::Reset, 0);
        outcomes.record_fault(CallFault::Deadline, 3);
        outcomes.record_latency(1_000);
        let counts = outcomes.add_to(CallCounts::ZERO);
        assert_eq!(counts.responses()[ResponseClass::ServerError as usize], 2);
        assert_eq!(counts.faults()[CallFault::Deadline as usize], 3);
        assert_eq!((counts.latency()[latency_bucket(1_000)], counts.failures()), (1, 5));
    }
}
