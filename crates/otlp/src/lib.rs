//! Spans on their way to a collector, by OTLP over HTTP or gRPC.
//!
//! Nothing of the mesh is known here: whoever has seen something says it in [`Span`]s to an [`Exporter`], which never waits
//! and never grows. A task of its own takes them in batches to the [`Collector`].
//!
//! Decision: the few messages that this takes are compiled from `proto/opentelemetry`, over the prost, tonic and hyper that are
//! here anyway. The crates of OpenTelemetry were rejected: they bring an API for programs that make spans, a runtime of
//! processors and a second HTTP client, for what is one message a second.

mod collector;
mod exporter;
mod span;

pub use collector::{Collector, NoCollector};
pub use exporter::{Counts, Exporter};
pub use span::{Kind, Span, Value};

/// The generated types of `proto/opentelemetry`, documented there.
// Our lints are for code that people wrote.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
pub mod v1 {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}
