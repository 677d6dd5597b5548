//! Exports spans and metrics to a collector, by OTLP over HTTP or gRPC.
//!
//! This crate is independent of the mesh: callers hand [`Span`]s to an [`Exporter`], which never waits and is bounded.
//! A task of its own exports them in batches to the [`Collector`]. A [`MetricsExporter`] exports the present values of all metrics
//! periodically, so that nothing is queued.
//!
//! Decision: the few messages in use are compiled from `proto/opentelemetry`, over the prost, tonic and hyper that the
//! project uses anyway. The crates of OpenTelemetry were rejected: they bring an API for instrumented programs, a
//! runtime of processors and a second HTTP client, for one message a second.

mod collector;
mod environment;
mod exporter;
mod metric_families;
mod metrics_exporter;
mod sampler;
mod span;

pub use collector::{Collector, InvalidCollector};
pub use environment::Environment;
pub use exporter::{Counts, Exporter};
pub use metrics_exporter::{MetricsConfig, MetricsCounts, MetricsExporter};
pub use sampler::{RootSampler, Sampler};
pub use span::{AttributeValue, Span, SpanKind};

pub use generated::{metrics, trace::v1};

/// Types generated from `proto/opentelemetry`, documented there.
// Lints apply to written code only. Generated types name one another by their packages.
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
