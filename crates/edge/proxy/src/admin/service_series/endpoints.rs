//! Series by endpoint.

use std::{fmt, sync::Arc};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use super::count;
use fairmesh_edge::observe::endpoint_metrics::EndpointMetrics;

/// Registers the metrics of endpoints.
pub(super) fn register(registry: &mut Registry, endpoints: &Arc<EndpointMetrics>) {
    let of = |is_time| EndpointFamily { is_time, endpoints: Arc::clone(endpoints) };
    registry.register("endpoint_attempts", "Attempts by endpoint and outcome", of(false));
    let help = "Duration of attempts by endpoint";
    registry.register_with_unit("endpoint_attempt_duration", help, Unit::Seconds, of(true));
}

/// One metric family with a series for each endpoint.
#[derive(Debug)]
struct EndpointFamily {
    is_time: bool,
    endpoints: Arc<EndpointMetrics>,
}

impl EncodeMetric for EndpointFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for row in self.endpoints.rows() {
            // Not `instance`, which Prometheus sets to the scraped proxy.
            let labels = [("service", &*row.service), ("endpoint", &*row.instance), ("region", &*row.region)];
            if self.is_time {
                let mut encoder = encoder.encode_family(&labels)?;
                encoder.encode_counter::<NoLabelSet, _, u64>(&row.seconds, None)?;
                continue;
            }
            for (outcome, attempts) in row.outcomes {
                let [service, endpoint, region] = labels;
                count(&mut encoder, &[service, endpoint, region, ("outcome", outcome)], attempts)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
