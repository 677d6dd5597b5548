//! Metrics by endpoint, if enabled: every attempt, including those whose response was not used.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_calls::{
    EndpointTarget, InstanceId, Region, ServiceName,
    observe::{AttemptEnd, Observer},
};
use http::StatusCode;
use tokio::time::Instant;

use crate::counter::increment;

/// Maximum number of endpoints that have their own metric series.
const MAX_ENDPOINTS: usize = 1_000;
/// Label of the sum over all endpoints beyond the maximum. It is not a valid name.
const OVERFLOW: &str = "(other)";
/// Minimum interval between evictions of endpoints that are no longer called.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_secs(60);

const OUTCOMES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "failed"];
const FAILED: usize = OUTCOMES.len() - 1;

/// Counts attempts by endpoint, up to a maximum number of endpoints. Registered as an [`Observer`] of the proxy's
/// mesh.
#[derive(Debug, Default)]
pub struct EndpointMetrics {
    table: RwLock<EndpointTable>,
    overflow: AttemptMetrics,
}

#[derive(Debug, Default)]
struct EndpointTable {
    services: HashMap<ServiceName, HashMap<InstanceId, (Region, AttemptMetrics)>>,
    endpoints: usize,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
struct AttemptMetrics {
    outcomes: [AtomicU64; OUTCOMES.len()],
    total_us: AtomicU64,
    /// Whether the endpoint was called since the last sweep.
    is_called: AtomicBool,
}

/// The counters of one endpoint.
#[derive(Debug)]
pub struct EndpointRow {
    /// The service, or `(other)` for the sum over endpoints beyond the maximum.
    pub service: String,
    /// The instance of the endpoint.
    pub instance: String,
    /// Region of the endpoint.
    pub region: String,
    /// Attempts by status class, and `failed`. Classes without attempts are left out.
    pub outcomes: Vec<(&'static str, u64)>,
    /// Total duration of all attempts, in seconds.
    pub seconds: f64,
}

impl AttemptMetrics {
    fn record(&self, outcome: Option<StatusCode>, took: Duration) {
        let class = outcome.map(|status| usize::from(status.as_u16() / 100).wrapping_sub(1));
        increment(&self.outcomes[class.map_or(FAILED, |class| class.min(FAILED))]);
        self.total_us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        if !self.is_called.load(Relaxed) {
            self.is_called.store(true, Relaxed);
        }
    }

    fn row(&self, service: &str, instance: &str, region: &str) -> EndpointRow {
        let outcomes = OUTCOMES.into_iter().zip(&self.outcomes);
        let outcomes = outcomes.map(|(name, count)| (name, count.load(Relaxed)));
        EndpointRow {
            service: service.to_owned(),
            instance: instance.to_owned(),
            region: region.to_owned(),
            outcomes: outcomes.filter(|(_, count)| *count > 0).collect(),
            seconds: self.total_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

impl EndpointTable {
    fn get(&self, service: &ServiceName, endpoint: &EndpointTarget) -> Option<&AttemptMetrics> {
        self.services.get(service)?.get(&endpoint.instance).map(|(_, attempts)| attempts)
    }

    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        if self.endpoints >= MAX_ENDPOINTS
            && self.swept.is_none_or(|swept| now.duration_since(swept) >= MIN_SWEEP_INTERVAL)
        {
            self.swept = Some(now);
            self.services.retain(|_, endpoints| {
                endpoints.retain(|_, (_, attempts)| attempts.is_called.swap(false, Relaxed));
                !endpoints.is_empty()
            });
            self.endpoints = self.services.values().map(HashMap::len).sum();
        }
        self.endpoints < MAX_ENDPOINTS
    }
}

impl Observer for EndpointMetrics {
    fn attempt_ended(&self, ended: &AttemptEnd<'_>) {
        let AttemptEnd { service, endpoint, outcome, took, .. } = *ended;
        let outcome = outcome.ok();
        if let Some(attempts) =
            self.table.read().unwrap_or_else(PoisonError::into_inner).get(service, endpoint)
        {
            return attempts.record(outcome, took);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.get(service, endpoint).is_none() {
            if !table.has_room() {
                return self.overflow.record(outcome, took);
            }
            table.endpoints += 1;
            let endpoints = table.services.entry(service.clone()).or_default();
            let region = endpoint.location.region.clone();
            endpoints.insert(endpoint.instance.clone(), (region, AttemptMetrics::default()));
        }
        if let Some(attempts) = table.get(service, endpoint) {
            attempts.record(outcome, took);
        }
    }
}

impl EndpointMetrics {
    /// Creates empty metrics, shared by a mesh and its proxy.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// All called endpoints, sorted by service and instance; last, the sum over endpoints beyond the maximum.
    pub fn rows(&self) -> Vec<EndpointRow> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let each = table.services.iter().flat_map(|(service, endpoints)| {
            let row = move |(instance, (region, attempts)): (&InstanceId, &(Region, AttemptMetrics))| {
                attempts.row(&service.to_string(), instance.as_str(), region.as_str())
            };
            endpoints.iter().map(row)
        });
        let mut rows: Vec<_> = each.collect();
        rows.sort_by(|a, b| (&a.service, &a.instance).cmp(&(&b.service, &b.instance)));
        let overflow = self.overflow.row(OVERFLOW, OVERFLOW, OVERFLOW);
        rows.extend((!overflow.outcomes.is_empty()).then_some(overflow));
        rows
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_calls::{FaultKind, Location, Protocol};
    use fairmesh_model::EndpointState;

    use super::*;

    fn endpoint(instance: &str) -> EndpointTarget {
        EndpointTarget {
            instance: InstanceId::new(instance).unwrap(),
            address: ([127, 0, 0, 1], 80).into(),
            location: Location::in_region(Region::new("eu").unwrap()),
            state: EndpointState::Serving,
            weight: 1000,
            speed: 1000,
            power: 1000,
            protocol: Protocol::Http1,
            identity: None,
            accepts_plaintext: true,
            pod: None,
            metric: None,
            by_latency: false,
        }
    }

    fn tried(metrics: &EndpointMetrics, instance: &str, outcome: Result<StatusCode, FaultKind>) {
        let (service, endpoint) = (ServiceName::new("shop/cart").unwrap(), endpoint(instance));
        let took = Duration::from_millis(250);
        metrics.attempt_ended(&AttemptEnd::new(&service, &endpoint, outcome, took));
    }

    #[test]
    fn endpoint_metrics_count_every_attempt() {
        let metrics = EndpointMetrics::default();
        tried(&metrics, "a", Err(FaultKind::Unreachable));
        tried(&metrics, "b", Ok(StatusCode::OK));
        tried(&metrics, "b", Ok(StatusCode::from_u16(999).unwrap()));
        let rows = metrics.rows();
        assert_eq!((rows.len(), &*rows[0].instance, &*rows[0].region), (2, "a", "eu"));
        assert_eq!(rows[0].outcomes, [("failed", 1)]);
        assert_eq!((&rows[1].outcomes[..], rows[1].seconds), (&[("2xx", 1), ("failed", 1)][..], 0.5));
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_metrics_are_bounded_and_evict_uncalled_endpoints() {
        let metrics = EndpointMetrics::default();
        for number in 0..MAX_ENDPOINTS + 5 {
            tried(&metrics, &format!("old-{number}"), Ok(StatusCode::OK));
        }
        let rows = metrics.rows();
        assert_eq!((rows.len(), &*rows[MAX_ENDPOINTS].instance), (MAX_ENDPOINTS + 1, "(other)"));
        assert_eq!(rows[MAX_ENDPOINTS].outcomes, [("2xx", 5)]);
        for _ in 0..2 {
            tokio::time::advance(MIN_SWEEP_INTERVAL).await;
            tried(&metrics, "old-7", Ok(StatusCode::OK));
            tried(&metrics, "new", Ok(StatusCode::OK));
        }
        let rows = metrics.rows();
        assert!(rows.len() < MAX_ENDPOINTS && rows.iter().any(|row| row.instance == "new"), "{}", rows.len());
        assert!(rows.iter().any(|row| row.instance == "old-7"));
    }
}
