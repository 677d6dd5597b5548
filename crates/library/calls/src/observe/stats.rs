use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_connections::PoolCounters;

use super::ServiceCounters;

/// Counters of a mesh since it was connected, with the age of its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that have begun.
    pub calls: u64,
    /// Calls that ended in a fault before their response began; responses of servers, good or bad, do not count.
    pub faults: u64,
    /// Attempts: calls that found an endpoint, and their retries.
    pub attempts: u64,
    /// Attempts after the first, including those after a wrong shard.
    pub retries: u64,
    /// Retries that the retry budget refused.
    pub retry_budget_exhausted: u64,
    /// Hedged attempts, made by the policy (`hedge`) while a slow attempt is in flight.
    pub hedges: u64,
    /// Calls that a rate limit of a policy refused.
    pub rate_limited_calls: u64,
    /// Calls that a region table dropped.
    pub dropped_calls: u64,
    /// Calls that a policy aborted by fault injection (`fault.abort`).
    pub injected_aborts: u64,
    /// Calls that a policy delayed by fault injection (`fault.delay`).
    pub injected_delays: u64,
    /// Calls mirrored to another service (`mirror`).
    pub mirrored_calls: u64,
    /// Mirrored calls without a response.
    pub mirrors_failed: u64,
    /// Mirrored calls that were not sent, because too many were in flight, or because the body was too long or not
    /// buffered.
    pub mirrors_skipped: u64,
    /// Responses from servers that did not hold the shard.
    pub wrong_shard: u64,
    /// Attempts that found no eligible endpoint.
    pub attempts_without_endpoint: u64,
    /// Calls to services with a lookaside that were decided by records because the lookaside had never responded.
    pub lookaside_fallbacks: u64,
    /// Attempts at an endpoint that should no longer be called, because no other endpoint was left.
    pub last_resort: u64,
    /// Attempts picked in panic mode: so many endpoints failed that outlier detection was ignored.
    pub panic_picks: u64,
    /// Number of regions, over all services in use, in which health checks are currently ignored because they fail for
    /// more than half of the serving endpoints.
    pub health_panics: u64,
    /// Load reports of servers that were ignored as malformed or implausible.
    pub reports_ignored: u64,
    /// Load estimates from a recent report in a call's response (ServiceRouter §3.4.3). The `estimates_*` counters
    /// sample endpoints: in each service, one call per 20 ms samples up to 32 endpoints in rotation. Services that do
    /// not balance by load reports, or whose policy disables polling, are not sampled.
    pub estimates_cached: u64,
    /// Load estimates from a poll, recent or just made, because a nearby server had no recent report.
    pub estimates_polled: u64,
    /// Load estimates without a recent report, for servers that were picked at random.
    pub estimates_random: u64,
    /// Connections opened.
    pub connections_opened: u64,
    /// Connections that are open now.
    pub connections_open: u64,
    /// Attempts on a connection that had carried an attempt before.
    pub connection_reuses: u64,
    /// Time since the data was last confirmed; zero while the agent is connected to its source.
    pub data_age: Duration,
}

/// One number of [`Stats`], for an exporter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Name by Prometheus conventions. The names of counters end in `_total`.
    pub name: &'static str,
    /// Value, in seconds if the name says so.
    pub value: f64,
}

impl Metric {
    /// Whether the value is a counter, which only grows.
    pub fn is_counter(&self) -> bool {
        self.name.ends_with("_total")
    }
}

impl Stats {
    /// Every number with its name, for the exporter of a program, such as the crate `metrics`:
    ///
    /// ```
    /// # fn export(mesh: &fairmesh_client::Mesh, set: impl Fn(&'static str, f64)) {
    /// for metric in mesh.stats().metrics() {
    ///     set(metric.name, metric.value);     // such as metrics::gauge!(metric.name).set(metric.value)
    /// }
    /// # }
    /// ```
    pub fn metrics(&self) -> impl Iterator<Item = Metric> {
        let counts = [
            ("fairmesh_client_calls_total", self.calls),
            ("fairmesh_client_faults_total", self.faults),
            ("fairmesh_client_attempts_total", self.attempts),
            ("fairmesh_client_retries_total", self.retries),
            ("fairmesh_client_retry_budget_exhausted_total", self.retry_budget_exhausted),
            ("fairmesh_client_hedges_total", self.hedges),
            ("fairmesh_client_rate_limited_calls_total", self.rate_limited_calls),
            ("fairmesh_client_dropped_calls_total", self.dropped_calls),
            ("fairmesh_client_injected_aborts_total", self.injected_aborts),
            ("fairmesh_client_injected_delays_total", self.injected_delays),
            ("fairmesh_client_mirrored_calls_total", self.mirrored_calls),
            ("fairmesh_client_mirrors_failed_total", self.mirrors_failed),
            ("fairmesh_client_mirrors_skipped_total", self.mirrors_skipped),
            ("fairmesh_client_wrong_shard_total", self.wrong_shard),
            ("fairmesh_client_attempts_without_endpoint_total", self.attempts_without_endpoint),
            ("fairmesh_client_lookaside_fallbacks_total", self.lookaside_fallbacks),
            ("fairmesh_client_last_resort_total", self.last_resort),
            ("fairmesh_client_panic_picks_total", self.panic_picks),
            ("fairmesh_client_health_panics", self.health_panics),
            ("fairmesh_client_reports_ignored_total", self.reports_ignored),
            ("fairmesh_client_estimates_cached_total", self.estimates_cached),
            ("fairmesh_client_estimates_polled_total", self.estimates_polled),
            ("fairmesh_client_estimates_random_total", self.estimates_random),
            ("fairmesh_client_connections_opened_total", self.connections_opened),
            ("fairmesh_client_connections_open", self.connections_open),
            ("fairmesh_client_connection_reuses_total", self.connection_reuses),
        ];
        let age = Metric { name: "fairmesh_client_data_age_seconds", value: self.data_age.as_secs_f64() };
        counts.into_iter().map(|(name, count)| Metric { name, value: count as f64 }).chain([age])
    }
}

/// Atomic counters of [`Stats`].
#[derive(Debug)]
pub(crate) struct Counters {
    /// Counters summed over all services.
    pub(crate) services: ServiceCounters,
    pub(crate) pools: Arc<PoolCounters>,
    pub(crate) calls: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) wrong_shard: AtomicU64,
    pub(crate) last_resort: AtomicU64,
}

impl Counters {
    /// Creates the counters, with those of the endpoint pools.
    pub(crate) fn new(pools: Arc<PoolCounters>) -> Self {
        Self {
            services: ServiceCounters::default(),
            pools,
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            wrong_shard: AtomicU64::new(0),
            last_resort: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self, health_panics: u64, data_age: Duration) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Relaxed);
        let services = self.services.read();
        let (connections_opened, connections_open) = self.pools.connections();
        let [estimates_cached, estimates_polled, estimates_random] = self.pools.estimates.counts();
        Stats {
            calls: of(&self.calls),
            faults: of(&self.faults),
            attempts: services.attempts,
            retries: services.retries,
            retry_budget_exhausted: services.retry_budget_exhausted,
            hedges: services.hedges,
            rate_limited_calls: services.rate_limited_calls,
            dropped_calls: services.dropped_calls,
            injected_aborts: services.injected_aborts,
            injected_delays: services.injected_delays,
            mirrored_calls: services.mirrored_calls,
            mirrors_failed: services.mirrors_failed,
            mirrors_skipped: services.mirrors_skipped,
            wrong_shard: of(&self.wrong_shard),
            attempts_without_endpoint: services.attempts_without_endpoint,
            lookaside_fallbacks: services.lookaside_fallbacks,
            last_resort: of(&self.last_resort),
            panic_picks: services.panic_picks,
            health_panics,
            reports_ignored: of(&self.pools.reports_ignored),
            estimates_cached,
            estimates_polled,
            estimates_random,
            connections_opened,
            connections_open,
            connection_reuses: self.pools.connection_reuses(),
            data_age,
        }
    }
}
