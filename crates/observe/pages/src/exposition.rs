//! The page `/metrics` of every process: the metrics that it registers, and those of its build and of the operating
//! system's process. The format is the one that the client accepts.
//!
//! All metrics are first converted to families of the Prometheus data model. Each format, and the push with OTLP, is
//! made from these. The text encoder of the client library was rejected: it does not support exemplars, nor the older
//! Prometheus text format.

mod call_durations;
mod negotiation;
mod process_metrics;
mod text_format;

use fairmesh_metrics::Register as _;
use fairmesh_otlp::MetricsCounts;
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use prometheus_client::{
    encoding::prometheus_protobuf::{self, prometheus_data_model::MetricFamily},
    metrics::info::Info,
    registry::Registry,
};
use prost::Message as _;

pub use process_metrics::resident_memory;

use crate::{Process, exposition::negotiation::Format};

/// Returns the current values of all metrics of a process. `pushes` has the outcomes of pushes to a collector, if
/// any.
pub(crate) fn gather<P: Process>(process: &P, pushes: Option<MetricsCounts>) -> Vec<MetricFamily> {
    let mut all = Registry::default();
    process_metrics::register(all.sub_registry_with_prefix("process"));
    let mesh = all.sub_registry_with_prefix("fairmesh");
    let build = Info::new(vec![("process", P::KIND), ("version", env!("CARGO_PKG_VERSION"))]);
    mesh.register("build", "Version of this process", build);
    if let Some(counts) = pushes {
        register_pushes(mesh.sub_registry_with_prefix(P::KIND), counts);
    }
    process.register(mesh);
    // Encoding fails for no metric of the mesh.
    let mut families = prometheus_protobuf::encode(&all).unwrap_or_default();
    families.extend(process.calls().into_iter().map(call_durations::family));
    families
}

fn register_pushes(own: &mut Registry, counts: MetricsCounts) {
    let row = |outcome: &'static str, count: u64| ([("outcome", outcome.into())], count);
    let outcomes = [row("succeeded", counts.succeeded), row("failed", counts.failed)];
    own.counters("metrics_exports", "Pushes of metrics to the collector by outcome", outcomes);
    let help = "Data points that the collector rejected";
    own.counter("metrics_points_rejected", help, counts.rejected_points);
}

/// Returns the page with these metrics, in the format that the request's headers ask for.
pub(crate) fn page(families: &[MetricFamily], headers: &HeaderMap) -> Response<Vec<u8>> {
    let format = negotiation::format(headers);
    let body = match format {
        // Writing to memory cannot fail.
        Format::Protobuf => {
            let families = families.iter().filter(|family| !family.metric.is_empty());
            families.flat_map(|family| family.encode_length_delimited_to_vec()).collect()
        }
        Format::OpenMetrics => text_format::open_metrics(families).into_bytes(),
        Format::Text => text_format::prometheus(families).into_bytes(),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(format.content_type()));
    response
}

#[cfg(test)]
mod tests;
