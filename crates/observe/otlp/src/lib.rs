//! Exports spans and metrics to an OpenTelemetry collector, with OTLP over HTTP or gRPC.
//!
//! This crate is independent of the mesh. Callers pass each [`Span`] to an [`Exporter`], whose queue is bounded and
//! never blocks. A separate task exports the spans in batches to the [`Collector`]. A [`MetricsExporter`]
//! periodically exports the current values of all metrics, so that nothing is queued.
//!
//! Decision: the few messages in use are compiled from `proto/opentelemetry`, with the prost, tonic and hyper that
//! the project uses anyway. The OpenTelemetry crates were rejected: for one message a second they bring an API for
//! instrumented programs, a runtime of processors and a second HTTP client.

mod collector;
mod environment;
mod metric_families;
mod metrics_exporter;
mod sampler;
mod secured_client;
mod span;
mod span_exporter;

pub use collector::{Collector, InvalidCollector};
pub use environment::Environment;
pub use metrics_exporter::{MetricsConfig, MetricsCounts, MetricsExporter};
pub use sampler::{RootSampler, Sampler};
pub use secured_client::{Connecting, SecuredConnect, SecuredStream};
pub use span::{AttributeValue, Span, SpanKind};
pub use span_exporter::{Counts, Exporter};

pub use generated::{metrics, trace::v1};

/// Types generated from `proto/opentelemetry`, documented there.
// Lints apply to hand-written code only. Generated types refer to one another by package.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#[allow(clippy::all, clippy::too_many_lines, clippy::cognitive_complexity, clippy::disallowed_methods)]
mod generated {
    pub mod trace {
        pub mod v1 {
            tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
        }
    }
    pub mod metrics {
        pub mod v1 {
            tonic::include_proto!("opentelemetry.proto.collector.metrics.v1");
        }
    }
}
