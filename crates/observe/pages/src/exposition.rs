//! The page `/metrics` of every process: its own metrics, those of the process and of the build, in the format that the reader accepts.
//!
//! All metrics become families of Prometheus's data model first, from which each format and the push by OTLP are made. The text
//! encoder of the client library was rejected: it cannot be given exemplars, and has no form of Prometheus's older text format.

mod call_durations;
mod negotiation;
mod process;
mod text;

use fairmesh_metrics::Register as _;
use fairmesh_otlp::MetricsCounts;
use http::{HeaderMap, Response, header::CONTENT_TYPE};
use prometheus_client::{
    encoding::prometheus_protobuf::{self, prometheus_data_model::MetricFamily},
    metrics::info::Info,
    registry::Registry,
};
use prost::Message as _;

pub use process::resident_memory;

use crate::{Process, exposition::negotiation::Format};

/// All metrics of a process as they are now. `pushes` are the outcomes of pushes to a collector, if there are any.
pub(crate) fn gather<P: Process>(process: &P, pushes: Option<MetricsCounts>) -> Vec<MetricFamily> {
    let mut all = Registry::default();
    process::register(all.sub_registry_with_prefix("process"));
    let mesh = all.sub_registry_with_prefix("fairmesh");
    let build = Info::new(vec![("process", P::KIND), ("version", env!("CARGO_PKG_VERSION"))]);
    mesh.register("build", "Version of this process", build);
    if let Some(counts) = pushes {
        register_pushes(mesh.sub_registry_with_prefix(P::KIND), counts);
    }
    process.register(mesh);
    // No metric of the mesh fails to encode.
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

/// The page with these metrics for a request with these headers.
pub(crate) fn page(families: &[MetricFamily], headers: &HeaderMap) -> Response<Vec<u8>> {
    let format = negotiation::format(headers);
    let body = match format {
        // Writing to memory cannot fail.
        Format::Protobuf => {
            let families = families.iter().filter(|family| !family.metric.is_empty());
            families.flat_map(|family| family.encode_length_delimited_to_vec()).collect()
        }
        Format::OpenMetrics => text::open_metrics(families).into_bytes(),
        Format::Text => text::prometheus(families).into_bytes(),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(format.content_type()));
    response
}

#[cfg(test)]
mod tests;
