//! Rate, errors and duration of the program's responses by caller.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_calls::ServiceName;
use fairmesh_edge::observe::response_metrics::RegionMetrics;
use fairmesh_server::Caller;
use http::StatusCode;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::{Registry, Unit},
};

/// Maximum number of callers with their own series; further ones are counted together.
const MAX_CALLERS: usize = 64;
/// Caller labels of requests without a proved identity, and of callers beyond the maximum; not valid names.
const NO_CALLER: &str = "(none)";
const OVERFLOW: &str = "(other)";

/// Responses by caller. Only proved identities are labels, so that no caller invents a series.
#[derive(Debug)]
pub(crate) struct CallerMetrics {
    service: String,
    callers: RwLock<BTreeMap<String, Arc<RegionMetrics>>>,
}

impl CallerMetrics {
    pub(crate) fn new(service: &ServiceName) -> Self {
        Self { service: service.to_string(), callers: RwLock::default() }
    }

    /// Counts a response to a caller, and the time to its headers.
    pub(crate) fn record(&self, caller: Option<&Caller>, status: StatusCode, took: Duration) {
        let label = caller.map_or_else(|| NO_CALLER.to_owned(), |caller| caller.id().path.to_string());
        self.of(&label).record(status, took);
    }

    fn of(&self, caller: &str) -> Arc<RegionMetrics> {
        // No code that holds the lock panics.
        if let Some(known) = self.callers.read().unwrap_or_else(PoisonError::into_inner).get(caller) {
            return Arc::clone(known);
        }
        let mut callers = self.callers.write().unwrap_or_else(PoisonError::into_inner);
        let caller = if callers.len() < MAX_CALLERS { caller } else { OVERFLOW };
        Arc::clone(callers.entry(caller.to_owned()).or_default())
    }

    fn snapshot(&self) -> Vec<(String, Arc<RegionMetrics>)> {
        let callers = self.callers.read().unwrap_or_else(PoisonError::into_inner);
        callers.iter().map(|(caller, metrics)| (caller.clone(), Arc::clone(metrics))).collect()
    }
}

/// Registers the series of all callers.
pub(crate) fn register(registry: &mut Registry, metrics: &Arc<CallerMetrics>) {
    let responses = ResponseFamily(Arc::clone(metrics));
    registry.register("inbound_responses", "Responses of the program by caller and status class", responses);
    registry.register_with_unit(
        "inbound_response_headers_duration",
        "Time to the response headers of the program by caller",
        Unit::Seconds,
        DurationFamily(Arc::clone(metrics)),
    );
}

#[derive(Debug)]
struct ResponseFamily(Arc<CallerMetrics>);

#[derive(Debug)]
struct DurationFamily(Arc<CallerMetrics>);

impl EncodeMetric for ResponseFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (caller, metrics) in self.0.snapshot() {
            for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(metrics.classes()) {
                let labels = [("service", &*self.0.service), ("caller", &caller), ("class", class)];
                encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}

impl EncodeMetric for DurationFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (caller, metrics) in self.0.snapshot() {
            let (buckets, sum) = metrics.durations();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("service", &*self.0.service), ("caller", &caller)];
            encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_beyond_the_maximum_are_counted_together() {
        let metrics = CallerMetrics::new(&ServiceName::new("shop/cart").unwrap());
        for number in 0..MAX_CALLERS + 3 {
            metrics.of(&format!("shop/caller-{number}")).record(StatusCode::OK, Duration::ZERO);
        }
        metrics.of("shop/caller-0").record(StatusCode::BAD_GATEWAY, Duration::ZERO);
        let callers = metrics.snapshot();
        assert_eq!(callers.len(), MAX_CALLERS + 1);
        let classes = |caller: &str| metrics.of(caller).classes();
        assert_eq!((classes("shop/caller-0"), classes(OVERFLOW)), ([0, 1, 0, 0, 1], [0, 3, 0, 0, 0]));
    }
}
