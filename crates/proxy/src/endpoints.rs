//! What is counted by endpoint, where that is wanted: of every try, and not only of those that were heard.

use std::{
    collections::HashMap,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_client::{
    EndpointTarget, InstanceId, Region, ServiceName,
    observe::{AttemptEnd, Observer},
};
use http::StatusCode;
use tokio::time::Instant;

use crate::metrics::count;

/// Endpoints that are told apart; each is a set of series.
const MOST: usize = 1_000;
/// What those beyond the bound are called; no name of anything.
const OTHERS: &str = "(other)";
/// How often, at most, endpoints that were not called lately make room for others.
const SWEEP: Duration = Duration::from_secs(60);

const OUTCOMES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "failed"];
const FAILED: usize = OUTCOMES.len() - 1;

/// Counts tries by endpoint, up to a bounded number of them: an [`Observer`] of the mesh that a proxy calls by.
#[derive(Debug, Default)]
pub struct EndpointMetrics {
    known: RwLock<Known>,
    others: Tries,
}

#[derive(Debug, Default)]
struct Known {
    services: HashMap<ServiceName, HashMap<InstanceId, (Region, Tries)>>,
    endpoints: usize,
    swept: Option<Instant>,
}

#[derive(Debug, Default)]
struct Tries {
    outcomes: [AtomicU64; OUTCOMES.len()],
    us: AtomicU64,
    /// Since the last sweep.
    is_called: AtomicBool,
}

/// What is counted of one endpoint.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) service: String,
    pub(crate) instance: String,
    pub(crate) region: String,
    pub(crate) outcomes: Vec<(&'static str, u64)>,
    pub(crate) seconds: f64,
}

impl Tries {
    fn ended(&self, outcome: Option<StatusCode>, took: Duration) {
        let class = outcome.map(|status| usize::from(status.as_u16() / 100).wrapping_sub(1));
        count(&self.outcomes[class.map_or(FAILED, |class| class.min(FAILED))]);
        self.us.fetch_add(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Relaxed);
        if !self.is_called.load(Relaxed) {
            self.is_called.store(true, Relaxed);
        }
    }

    fn row(&self, service: &str, instance: &str, region: &str) -> Row {
        let outcomes = OUTCOMES.into_iter().zip(&self.outcomes);
        let outcomes = outcomes.map(|(name, count)| (name, count.load(Relaxed)));
        Row {
            service: service.to_owned(),
            instance: instance.to_owned(),
            region: region.to_owned(),
            outcomes: outcomes.filter(|(_, count)| *count > 0).collect(),
            seconds: self.us.load(Relaxed) as f64 / 1e6,
        }
    }
}

impl Known {
    fn tries(&self, service: &ServiceName, endpoint: &EndpointTarget) -> Option<&Tries> {
        self.services.get(service)?.get(&endpoint.instance).map(|(_, tries)| tries)
    }

    fn has_room(&mut self) -> bool {
        let now = Instant::now();
        if self.endpoints >= MOST && self.swept.is_none_or(|swept| now.duration_since(swept) >= SWEEP) {
            self.swept = Some(now);
            self.services.retain(|_, endpoints| {
                endpoints.retain(|_, (_, tries)| tries.is_called.swap(false, Relaxed));
                !endpoints.is_empty()
            });
            self.endpoints = self.services.values().map(HashMap::len).sum();
        }
        self.endpoints < MOST
    }
}

impl Observer for EndpointMetrics {
    fn attempt_ended(&self, ended: &AttemptEnd<'_>) {
        let AttemptEnd { service, endpoint, outcome, took } = *ended;
        let outcome = outcome.ok();
        if let Some(tries) =
            self.known.read().unwrap_or_else(PoisonError::into_inner).tries(service, endpoint)
        {
            return tries.ended(outcome, took);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.tries(service, endpoint).is_none() {
            if !known.has_room() {
                return self.others.ended(outcome, took);
            }
            known.endpoints += 1;
            let endpoints = known.services.entry(service.clone()).or_default();
            let region = endpoint.location.region.clone();
            endpoints.insert(endpoint.instance.clone(), (region, Tries::default()));
        }
        if let Some(tries) = known.tries(service, endpoint) {
            tries.ended(outcome, took);
        }
    }
}

impl EndpointMetrics {
    /// One that has counted nothing yet, for a mesh and the proxy over it.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Those that were called, by service and instance; those beyond the bound last, where there are any.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let each = known.services.iter().flat_map(|(service, endpoints)| {
            let row = move |(instance, (region, tries)): (&InstanceId, &(Region, Tries))| {
                tries.row(&service.to_string(), instance.as_str(), region.as_str())
            };
            endpoints.iter().map(row)
        });
        let mut rows: Vec<_> = each.collect();
        rows.sort_by(|a, b| (&a.service, &a.instance).cmp(&(&b.service, &b.instance)));
        let others = self.others.row(OTHERS, OTHERS, OTHERS);
        rows.extend((!others.outcomes.is_empty()).then_some(others));
        rows
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_client::{FaultKind, Location, Protocol};
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
            metric: None,
            by_latency: false,
        }
    }

    fn tried(metrics: &EndpointMetrics, instance: &str, outcome: Result<StatusCode, FaultKind>) {
        let (service, endpoint) = (ServiceName::new("shop/cart").unwrap(), endpoint(instance));
        let took = Duration::from_millis(250);
        metrics.attempt_ended(&AttemptEnd { service: &service, endpoint: &endpoint, outcome, took });
    }

    #[test]
    fn every_try_is_counted_where_it_went() {
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
    async fn their_number_is_bounded_and_those_that_are_gone_make_room() {
        let metrics = EndpointMetrics::default();
        for number in 0..MOST + 5 {
            tried(&metrics, &format!("old-{number}"), Ok(StatusCode::OK));
        }
        let rows = metrics.rows();
        assert_eq!((rows.len(), &*rows[MOST].instance), (MOST + 1, "(other)"));
        assert_eq!(rows[MOST].outcomes, [("2xx", 5)]);
        for _ in 0..2 {
            tokio::time::advance(SWEEP).await;
            tried(&metrics, "old-7", Ok(StatusCode::OK));
            tried(&metrics, "new", Ok(StatusCode::OK));
        }
        let rows = metrics.rows();
        assert!(rows.len() < MOST && rows.iter().any(|row| row.instance == "new"), "{}", rows.len());
        assert!(rows.iter().any(|row| row.instance == "old-7"));
    }
}
