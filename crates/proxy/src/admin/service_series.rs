//! Metric series by service, region, status or endpoint.

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::{
    forward::{services::Services, target::Target},
    observe::{
        endpoint_metrics::EndpointMetrics, observer::RequestObserver, service_metrics::ServiceMetrics,
    },
};

/// `from_region` while the proxy's region is unknown.
const UNKNOWN: &str = "(unknown)";
/// Service label of services without their own series and of evicted services; not a valid service name.
const OVERFLOW: &str = "(other)";

/// Registers the metrics of services, endpoints, the access log and spans.
pub(crate) fn register(registry: &mut Registry, services: &Arc<Services>, observer: &RequestObserver) {
    registry.register("services", "Services subscribed to", ConstGauge::new(services.len() as u64));
    let idle = ConstCounter::new(services.evictions.load(Relaxed));
    registry.register("idle_services_evicted", "Services evicted because they were not called", idle);
    let help = "Requests refused because of the maximum of services";
    registry.register("services_refused", help, ConstCounter::new(services.refused.load(Relaxed)));
    let of = |kind| ServiceFamily { kind, services: Arc::clone(services) };
    registry.register(
        "responses",
        "Responses by service, status class and regions",
        of(ServiceSeries::Responses),
    );
    registry.register(
        "grpc_responses",
        "Responses to gRPC calls by service and status code",
        of(ServiceSeries::GrpcStatus),
    );
    registry.register("faults", "Requests without a response of a server", of(ServiceSeries::Faults));
    let times = of(ServiceSeries::Durations);
    registry.register_with_unit(
        "response_headers_duration",
        "Time to the response headers",
        Unit::Seconds,
        times,
    );
    let help = "Endpoints that the proxy avoids because of the outcomes of its calls, by service";
    registry.register("ejected_endpoints", help, EjectedFamily { services: Arc::clone(services) });
    if let Some(endpoints) = &observer.endpoints {
        let of = |is_time| EndpointFamily { is_time, endpoints: Arc::clone(endpoints) };
        registry.register("endpoint_attempts", "Attempts by endpoint and outcome", of(false));
        let help = "Duration of attempts by endpoint";
        registry.register_with_unit("endpoint_attempt_duration", help, Unit::Seconds, of(true));
    }
    let dropped = ConstCounter::new(observer.access.dropped());
    registry.register(
        "access_log_lines_dropped",
        "Access log lines dropped because the reader was slow",
        dropped,
    );
    if let Some(counts) = observer.spans() {
        for (name, help, count) in [
            ("spans_exported", "Spans accepted by the collector", counts.exported),
            ("spans_dropped", "Spans dropped because the queue was full", counts.dropped),
            ("spans_rejected", "Spans rejected by the collector, or not delivered", counts.refused),
        ] {
            registry.register(name, help, ConstCounter::new(count));
        }
    }
}

/// One metric family with a series for each service.
#[derive(Debug)]
struct ServiceFamily {
    kind: ServiceSeries,
    services: Arc<Services>,
}

#[derive(Clone, Copy, Debug)]
enum ServiceSeries {
    Responses,
    GrpcStatus,
    Faults,
    Durations,
}

/// The number of ejected endpoints of each service.
#[derive(Debug)]
struct EjectedFamily {
    services: Arc<Services>,
}

impl EncodeMetric for EjectedFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (name, target) in self.services.labelled().0 {
            let ejected = target.handle.ejected_endpoints() as u64;
            encoder.encode_family(&[("service", &*name.to_string())])?.encode_gauge(&ejected)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// One metric family with a series for each endpoint.
#[derive(Debug)]
struct EndpointFamily {
    is_time: bool,
    endpoints: Arc<EndpointMetrics>,
}

impl EncodeMetric for ServiceFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let (labelled, overflow) = self.services.labelled();
        for (name, target) in labelled {
            self.series(&mut encoder, &name.to_string(), &home(&target), &target.metrics)?;
        }
        overflow.map_or(Ok(()), |metrics| self.series(&mut encoder, OVERFLOW, UNKNOWN, &metrics))
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            ServiceSeries::Durations => MetricType::Histogram,
            _ => MetricType::Counter,
        }
    }
}

impl ServiceFamily {
    /// Encodes the series of one service as called from region `from`.
    fn series(
        &self,
        encoder: &mut MetricEncoder<'_>,
        name: &str,
        from: &str,
        metrics: &ServiceMetrics,
    ) -> fmt::Result {
        match self.kind {
            ServiceSeries::Faults => count(encoder, &[("service", name)], metrics.faults.load(Relaxed)),
            ServiceSeries::GrpcStatus => {
                let mut statuses = metrics.grpc_statuses.iter();
                statuses.try_for_each(|(code, responses)| {
                    count(encoder, &[("service", name), ("code", code)], responses)
                })
            }
            ServiceSeries::Responses => responses(encoder, name, from, metrics),
            ServiceSeries::Durations => durations(encoder, name, from, metrics),
        }
    }
}

fn responses(
    encoder: &mut MetricEncoder<'_>,
    name: &str,
    from: &str,
    metrics: &ServiceMetrics,
) -> fmt::Result {
    for (to, region) in metrics.responses.iter() {
        for (class, responses) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(region.classes()) {
            let labels = [("service", name), ("class", class), ("from_region", from), ("to_region", to)];
            count(encoder, &labels, responses)?;
        }
    }
    Ok(())
}

fn durations(
    encoder: &mut MetricEncoder<'_>,
    name: &str,
    from: &str,
    metrics: &ServiceMetrics,
) -> fmt::Result {
    for (to, region) in metrics.responses.iter() {
        let (buckets, sum) = region.durations();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let labels = [("service", name), ("from_region", from), ("to_region", to)];
        encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

fn home(target: &Target) -> String {
    target.home_and_revision().map_or_else(|| UNKNOWN.to_owned(), |(home, _)| home.to_string())
}

fn count<const N: usize>(
    encoder: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); N],
    count: u64,
) -> fmt::Result {
    encoder.encode_family(labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)
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
