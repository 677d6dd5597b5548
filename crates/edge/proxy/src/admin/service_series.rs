//! Metric series by service, route, backend, region, status or endpoint.

mod call_counters;
mod endpoints;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use fairmesh_calls::forwarding::{RouteBackend, RouteBackendIndex, route_backend_name};
use fairmesh_edge::{
    observe::{observer::RequestObserver, response_metrics::BackendMetrics, service_metrics::ServiceMetrics},
    services::{Services, target::Target},
};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

/// Label `from_region` while the proxy's region is unknown.
const UNKNOWN: &str = "(unknown)";
/// Service label for services without series of their own and for evicted services. It is not a valid service
/// name.
const OVERFLOW: &str = "(other)";

/// Registers the metrics of services, endpoints, the access log and spans.
pub(crate) fn register(registry: &mut Registry, services: &Arc<Services>, observer: &RequestObserver) {
    registry.register("services", "Services subscribed to", ConstGauge::new(services.count() as u64));
    let idle = ConstCounter::new(services.evictions.load(Relaxed));
    registry.register("idle_services_evicted", "Services evicted because they were not called", idle);
    let help = "Requests refused because of the maximum of services";
    registry.register("services_refused", help, ConstCounter::new(services.refused.load(Relaxed)));
    let of = |kind| ServiceFamily { kind, services: Arc::clone(services) };
    registry.register(
        "responses",
        "Responses by service, route, backend, status class and regions",
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
    call_counters::register(registry, services);
    if let Some(endpoints) = &observer.endpoints {
        endpoints::register(registry, endpoints);
    }
    observer.register(registry);
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

/// The metrics of one service, with the region that it is called from.
struct ServiceView<'a> {
    name: &'a str,
    home: &'a str,
    metrics: &'a ServiceMetrics,
    /// The names of a route and backend.
    route_backend_name: &'a dyn Fn(RouteBackendIndex) -> RouteBackend,
}

/// Counters of a route and backend.
struct BackendView<'a> {
    service: &'a str,
    home: &'a str,
    route_backend: RouteBackend,
    metrics: &'a BackendMetrics,
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

impl EncodeMetric for ServiceFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let (labelled, overflow) = self.services.labelled();
        for (name, target) in labelled {
            let (name, home, route_backend_name) =
                (name.to_string(), home(&target), |index| route_backend_name(&target.handle, index));
            let metrics = &target.metrics;
            let view =
                ServiceView { name: &name, home: &home, metrics, route_backend_name: &route_backend_name };
            view.encode(self.kind, &mut encoder)?;
        }
        let Some(overflow) = overflow else { return Ok(()) };
        let (metrics, route_backend_name) = (&overflow.metrics, |_| RouteBackend::overflow());
        let view =
            ServiceView { name: OVERFLOW, home: UNKNOWN, metrics, route_backend_name: &route_backend_name };
        view.encode(self.kind, &mut encoder)
    }

    fn metric_type(&self) -> MetricType {
        match self.kind {
            ServiceSeries::Durations => MetricType::Histogram,
            _ => MetricType::Counter,
        }
    }
}

impl ServiceView<'_> {
    fn encode(&self, kind: ServiceSeries, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        let Self { name, metrics, .. } = *self;
        match kind {
            ServiceSeries::Faults => count(encoder, &[("service", name)], metrics.faults.load(Relaxed)),
            ServiceSeries::GrpcStatus => {
                let mut statuses = metrics.grpc_statuses.iter();
                statuses.try_for_each(|(code, responses)| {
                    count(encoder, &[("service", name), ("code", code)], responses)
                })
            }
            ServiceSeries::Responses => self.paths().try_for_each(|path| path.responses(encoder)),
            ServiceSeries::Durations => self.paths().try_for_each(|path| path.durations(encoder)),
        }
    }

    fn paths(&self) -> impl Iterator<Item = BackendView<'_>> {
        let Self { name: service, home, metrics, route_backend_name } = *self;
        let paths = metrics.responses.route_backends();
        paths.map(move |(index, metrics)| BackendView {
            service,
            home,
            route_backend: route_backend_name(index),
            metrics,
        })
    }
}

impl BackendView<'_> {
    fn responses(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        for (to, region) in self.metrics.iter() {
            for (class, responses) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(region.classes()) {
                let [service, from, to, route, backend] = self.labels(to);
                count(encoder, &[service, ("class", class), from, to, route, backend], responses)?;
            }
        }
        Ok(())
    }

    fn durations(&self, encoder: &mut MetricEncoder<'_>) -> fmt::Result {
        for (to, region) in self.metrics.iter() {
            let (buckets, sum) = region.durations();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = self.labels(to);
            let mut series = encoder.encode_family(&labels)?;
            series.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    fn labels<'a>(&'a self, to: &'a str) -> [(&'static str, &'a str); 5] {
        let Self { service, home, route_backend: RouteBackend { route, backend, .. }, .. } = self;
        [
            ("service", service),
            ("from_region", home),
            ("to_region", to),
            ("route", route),
            ("backend", backend),
        ]
    }
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
