//! Counters of a gateway, by tenant and by service. Service names begin with their tenant.

use std::{
    borrow::Cow,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_edge::{metrics::EdgeMetrics, observe::service_metrics::ServiceMetrics};
use fairmesh_metrics::{OTHER, Register as _};
use fairmesh_model::Tenant;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::{Registry, Unit},
};

use crate::{node_connections::Connections, tenants::TenantServer};

/// Counters of connections whose tenant is not known yet, and of refusals.
#[derive(Debug, Default)]
pub(crate) struct GatewayMetrics {
    /// Counters of accepted connections.
    pub(crate) edge: Arc<EdgeMetrics>,
    /// Connections whose peer did not prove the identity of a tenant's service, or sent no valid PROXY
    /// protocol header.
    pub(crate) refused_peers: AtomicU64,
    /// Connections whose peer closed them before that.
    pub(crate) left_peers: AtomicU64,
    /// Connections refused because the maximum number of tenants was reached.
    pub(crate) tenants_refused: AtomicU64,
    /// Connections refused because the maximum of all tenants was reached.
    pub(crate) refused_connections: AtomicU64,
    /// Connections refused because the virtual addresses of their tenant were not known yet.
    pub(crate) unrouted: AtomicU64,
    /// Load reports that failed.
    pub(crate) failed_reports: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
}

/// Kind and value of a metric of each tenant.
type TenantSeries = (Kind, fn(&TenantServer) -> u64);

static TENANT_SERIES: &[(&str, &str, TenantSeries)] = &[
    ("tenant_connections_open", "Open connections by tenant", (Kind::Gauge, TenantServer::open)),
    ("tenant_connections", "Connections by tenant", (Kind::Counter, |tenant| tenant.accepted.load(Relaxed))),
    (
        "tenant_connections_refused",
        "Connections refused at the limit of the tenant",
        (Kind::Counter, |tenant| tenant.refused.load(Relaxed)),
    ),
    (
        "tenant_handshakes_refused",
        "Connections refused since too many of the tenant began in the last second",
        (Kind::Counter, |tenant| tenant.refused_by_rate.load(Relaxed)),
    ),
    (
        "tenant_requests_in_flight",
        "Requests in flight by tenant",
        (Kind::Gauge, |tenant| tenant.requests.in_flight()),
    ),
    (
        "tenant_requests_refused",
        "Requests refused at the limit of the tenant",
        (Kind::Counter, |tenant| tenant.requests.refused()),
    ),
    (
        "tenant_services",
        "Services that the tenant's pods called lately",
        (Kind::Gauge, |tenant| tenant.server.forwarder.services.count() as u64),
    ),
    (
        "tenant_services_unavailable",
        "Services whose calls fail since their records, or their policy, cannot be read",
        (Kind::Gauge, |tenant| tenant.server.forwarder.services.unavailable() as u64),
    ),
    (
        "tenant_services_refused",
        "Requests refused because of the tenant's maximum of services",
        (Kind::Counter, |tenant| tenant.server.forwarder.services.refused.load(Relaxed)),
    ),
];

/// Registers all metrics with their current values.
pub(crate) fn register(registry: &mut Registry, connections: &Arc<Connections>) {
    let metrics = &connections.metrics;
    for (name, help, counter) in [
        (
            "peers_refused",
            "Connections whose peer proved no identity of a tenant's service",
            &metrics.refused_peers,
        ),
        ("peers_left", "Connections whose peer closed them before it said who it is", &metrics.left_peers),
        ("tenants_refused", "Connections of tenants beyond the maximum of tenants", &metrics.tenants_refused),
        (
            "connections_refused",
            "Connections refused at the maximum of all tenants",
            &metrics.refused_connections,
        ),
        ("load_reports_failed", "Reports of the load that no control plane took", &metrics.failed_reports),
        (
            "handshakes_refused",
            "Connections refused since their address had its share of unfinished handshakes",
            &connections.unidentified.refused,
        ),
        (
            "connections_unrouted",
            "Connections of tenants whose virtual addresses are not known yet",
            &metrics.unrouted,
        ),
        (
            "misdirected",
            "Connections and requests for services that are placed on other backends",
            &connections.directory.misdirected,
        ),
    ] {
        registry.counter(name, help, counter);
    }
    let help = "Connections whose caller has not proved its identity";
    registry.gauge("handshakes_open", help, connections.unidentified.open());
    metrics.edge.connections.register(registry);
    let tenants = connections.tenants.all();
    for (name, help, (kind, value)) in TENANT_SERIES {
        let rows = tenants.iter().map(|(tenant, server)| ([label("tenant", tenant)], value(server)));
        match kind {
            Kind::Counter => registry.counters(name, help, rows),
            Kind::Gauge => registry.gauges(name, help, rows),
        }
    }
    register_services(registry, &tenants);
    let (throttled, others) = connections.directory.throttled();
    let named = throttled.iter().map(|(service, refused)| ([label("service", service)], *refused));
    let others = (others > 0).then(|| ([label("service", OTHER)], others));
    let help = "Connections refused at the limit in the placement of their service";
    registry.counters("service_connections_refused", help, named.chain(others));
}

/// Series of the services that the pods of each tenant call, by region of the servers.
fn register_services(registry: &mut Registry, tenants: &[(Tenant, Arc<TenantServer>)]) {
    let mut rows = ServiceRows::default();
    for (tenant, server) in tenants {
        let (labelled, others) = server.server.forwarder.services.labelled();
        for (service, target) in labelled {
            rows.add(tenant, &service.to_string(), &target.metrics);
        }
        if let Some(others) = others {
            rows.add(tenant, OTHER, &others.metrics);
        }
    }
    let help = "Responses by tenant of the caller, service, region of the server and status class";
    registry.counters("responses", help, rows.responses);
    let help = "Requests without a response of a server, by tenant of the caller and service";
    registry.counters("faults", help, rows.faults);
    let help = "Time to the response headers, by tenant of the caller, service and region of the server";
    registry.register_with_unit("response_headers_duration", help, Unit::Seconds, Durations(rows.durations));
}

#[derive(Default)]
struct ServiceRows {
    responses: Vec<([Label; 4], u64)>,
    faults: Vec<([Label; 2], u64)>,
    durations: Vec<([Label; 3], Histogram)>,
}

impl ServiceRows {
    fn add(&mut self, tenant: &Tenant, service: &str, metrics: &ServiceMetrics) {
        let [tenant, service] = [label("tenant", tenant), label("service", service)];
        let total = metrics.responses.total();
        for (region, responded) in total.iter().filter(|(_, region)| region.classes() != [0; 5]) {
            let labels = || [tenant.clone(), service.clone(), label("region", region)];
            for (class, count) in CLASSES.into_iter().zip(responded.classes()) {
                let [tenant, service, region] = labels();
                self.responses.push(([tenant, service, region, ("class", class.into())], count));
            }
            self.durations.push((labels(), responded.durations()));
        }
        self.faults.push(([tenant, service], metrics.faults.load(Relaxed)));
    }
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Counts by upper bound in seconds, and the sum of all durations.
type Histogram = (Vec<(f64, u64)>, f64);

#[derive(Debug)]
struct Durations(Vec<([Label; 3], Histogram)>);

impl EncodeMetric for Durations {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(labels, (buckets, sum))| {
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = labels.each_ref().map(|(name, value)| (*name, &**value));
            encoder.encode_family(&labels)?.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
        })
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

type Label = (&'static str, Cow<'static, str>);

fn label(name: &'static str, value: impl ToString) -> Label {
    (name, value.to_string().into())
}
