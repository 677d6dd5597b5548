use std::{
    ops::AddAssign,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use super::Metric;

/// Declares each counter once. Generates a number, an atomic and a metric for it.
macro_rules! service_counters {
    ($($(#[$about:meta])* $counter:ident,)*) => {
        /// Counters of the calls of one [`ServiceHandle`](crate::ServiceHandle) and its clones, as in
        /// [`Stats`](super::Stats).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct ServiceStats {
            $($(#[$about])* pub $counter: u64,)*
        }

        /// Atomic counters of [`ServiceStats`], for one service or for all services.
        #[derive(Debug, Default)]
        pub(crate) struct ServiceCounters {
            $(pub(crate) $counter: AtomicU64,)*
        }

        impl ServiceStats {
            /// Every counter with its name, as in [`Stats::metrics`](super::Stats::metrics). An exporter should add the
            /// label `service`.
            pub fn metrics(&self) -> impl Iterator<Item = Metric> {
                [$((concat!("fairmesh_client_service_", stringify!($counter), "_total"), self.$counter)),*]
                    .into_iter()
                    .map(|(name, count)| Metric { name, value: count as f64 })
            }
        }

        impl AddAssign for ServiceStats {
            fn add_assign(&mut self, other: Self) {
                $(self.$counter += other.$counter;)*
            }
        }

        impl ServiceCounters {
            pub(crate) fn read(&self) -> ServiceStats {
                ServiceStats { $($counter: self.$counter.load(Relaxed)),* }
            }
        }
    };
}

service_counters! {
    /// Attempts: calls that found an endpoint, and their retries.
    attempts,
    /// Attempts after the first.
    retries,
    /// Retries that the retry budget refused.
    retry_budget_exhausted,
    /// Hedged attempts.
    hedges,
    /// Calls that a rate limit of the policy refused.
    rate_limited_calls,
    /// Calls that the region table dropped.
    dropped_calls,
    /// Calls that the policy aborted by fault injection.
    injected_aborts,
    /// Calls that the policy delayed by fault injection.
    injected_delays,
    /// Calls mirrored to another service.
    mirrored_calls,
    /// Mirrored calls without a response.
    mirrors_failed,
    /// Mirrored calls that were not sent.
    mirrors_skipped,
    /// Attempts for which no endpoint was eligible.
    attempts_without_endpoint,
    /// Calls decided by records because the service's lookaside has never responded.
    lookaside_fallbacks,
    /// Attempts picked in panic mode: so many endpoints failed that outlier detection was ignored.
    panic_picks,
}
