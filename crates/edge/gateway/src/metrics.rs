//! Counters of a gateway, by tenant and by service. A service's name begins with its tenant.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use fairmesh_edge::{metrics::EdgeMetrics, observe::service_metrics::ServiceMetrics};
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter},
    registry::Registry,
};

use crate::{connection::Connections, tenants::TenantServer};

/// Counters of connections before their tenant is known, and of what is refused.
#[derive(Debug, Default)]
pub(crate) struct GatewayMetrics {
    /// Connections as they are accepted.
    pub(crate) edge: Arc<EdgeMetrics>,
    /// Connections whose peer did not prove the identity of a tenant's service, or sent no valid header.
    pub(crate) refused_peers: AtomicU64,
    /// Connections of tenants beyond the maximum.
    pub(crate) tenants_refused: AtomicU64,
    /// Connections of tenants whose virtual addresses are not known yet.
    pub(crate) unrouted: AtomicU64,
}

/// What is shown of each tenant.
type TenantSeries = (MetricType, fn(&TenantServer) -> u64);

static TENANT_SERIES: &[(&str, &str, TenantSeries)] = &[
    ("tenant_connections_open", "Open connections by tenant", (MetricType::Gauge, TenantServer::open)),
    (
        "tenant_connections",
        "Connections by tenant",
        (MetricType::Counter, |tenant| tenant.accepted.load(Relaxed)),
    ),
    (
        "tenant_connections_refused",
        "Connections refused at the limit of the tenant",
        (MetricType::Counter, |tenant| tenant.refused.load(Relaxed)),
    ),
    (
        "tenant_services",
        "Services that the tenant's pods called lately",
        (MetricType::Gauge, |tenant| tenant.server.forwarder.services.count() as u64),
    ),
    (
        "tenant_services_refused",
        "Requests refused because of the tenant's maximum of services",
        (MetricType::Counter, |tenant| tenant.server.forwarder.services.refused.load(Relaxed)),
    ),
];

/// The service of calls beyond the number of services that have series of their own; not a valid name.
const OVERFLOW: &str = "(other)";

/// Registers all metrics as they are now.
pub(crate) fn register(registry: &mut Registry, connections: &Arc<Connections>) {
    let metrics = &connections.metrics;
    for (name, help, counter) in [
        (
            "peers_refused",
            "Connections whose peer proved no identity of a tenant's service",
            &metrics.refused_peers,
        ),
        ("tenants_refused", "Connections of tenants beyond the maximum of tenants", &metrics.tenants_refused),
        (
            "connections_unrouted",
            "Connections of tenants whose virtual addresses are not known yet",
            &metrics.unrouted,
        ),
    ] {
        registry.register(name, help, ConstCounter::new(counter.load(Relaxed)));
    }
    metrics.edge.connections.register(registry);
    for (name, help, series) in TENANT_SERIES {
        registry.register(*name, *help, TenantFamily { series, connections: Arc::clone(connections) });
    }
    for (name, help, kind) in [
        (
            "responses",
            "Responses by tenant of the caller, service and status class",
            ServiceSeries::Responses,
        ),
        (
            "faults",
            "Requests without a response of a server, by tenant of the caller and service",
            ServiceSeries::Faults,
        ),
    ] {
        registry.register(name, help, ServiceFamily { kind, connections: Arc::clone(connections) });
    }
}

/// A metric with a series for each tenant.
#[derive(Debug)]
struct TenantFamily {
    series: &'static TenantSeries,
    connections: Arc<Connections>,
}

impl EncodeMetric for TenantFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (tenant, server) in self.connections.tenants.all() {
            let labels = [("tenant", tenant.as_str())];
            let mut series = encoder.encode_family(&labels)?;
            let value = (self.series.1)(&server);
            match self.series.0 {
                MetricType::Gauge => series.encode_gauge(&value)?,
                _ => series.encode_counter::<NoLabelSet, _, u64>(&value, None)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.series.0
    }
}

#[derive(Clone, Copy, Debug)]
enum ServiceSeries {
    Responses,
    Faults,
}

/// A metric with a series for each tenant and service that its pods call.
#[derive(Debug)]
struct ServiceFamily {
    kind: ServiceSeries,
    connections: Arc<Connections>,
}

impl ServiceFamily {
    fn encode_service(
        &self,
        (tenant, service): (&str, &str),
        metrics: &ServiceMetrics,
        encoder: &mut MetricEncoder<'_>,
    ) -> fmt::Result {
        let mut count = |class: Option<&str>, value: u64| match class {
            Some(class) => encoder
                .encode_family(&[("tenant", tenant), ("service", service), ("class", class)])?
                .encode_counter::<NoLabelSet, _, u64>(&value, None),
            None => encoder
                .encode_family(&[("tenant", tenant), ("service", service)])?
                .encode_counter::<NoLabelSet, _, u64>(&value, None),
        };
        match self.kind {
            ServiceSeries::Faults => count(None, metrics.faults.load(Relaxed)),
            ServiceSeries::Responses => {
                let mut classes =
                    ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(metrics.responses.classes());
                classes.try_for_each(|(class, responses)| count(Some(class), responses))
            }
        }
    }
}

impl EncodeMetric for ServiceFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (tenant, server) in self.connections.tenants.all() {
            let (labelled, others) = server.server.forwarder.services.labelled();
            for (service, target) in labelled {
                let labels = (tenant.as_str(), &*service.to_string());
                self.encode_service(labels, &target.metrics, &mut encoder)?;
            }
            if let Some(others) = others {
                self.encode_service((tenant.as_str(), OVERFLOW), &others.metrics, &mut encoder)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Counter
    }
}
