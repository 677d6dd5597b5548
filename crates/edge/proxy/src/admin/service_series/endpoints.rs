//! Series by endpoint.

use fairmesh_edge::observe::endpoint_metrics::{EndpointMetrics, EndpointRow};
use fairmesh_metrics::Register as _;
use prometheus_client::registry::Registry;

/// Registers the metrics of endpoints.
pub(super) fn register(registry: &mut Registry, endpoints: &EndpointMetrics) {
    let (mut attempts, mut seconds) = (Vec::new(), Vec::new());
    for EndpointRow { service, instance, region, outcomes, seconds: took } in endpoints.rows() {
        // Not `instance`, which Prometheus sets to the scraped proxy.
        let labels = [("service", service.into()), ("endpoint", instance.into()), ("region", region.into())];
        for (outcome, count) in outcomes {
            let [service, endpoint, region] = labels.clone();
            attempts.push(([service, endpoint, region, ("outcome", outcome.into())], count));
        }
        seconds.push((labels, took));
    }
    registry.counters("endpoint_attempts", "Attempts by endpoint and outcome", attempts);
    let help = "Duration of attempts by endpoint";
    registry.counters("endpoint_attempt_duration_seconds", help, seconds);
}
