//! Destination of a proxy's spans: by its options, else by the environment variables of OpenTelemetry.

use std::env;

use clap::Args;
use fairmesh_model::ServiceName;
use fairmesh_proxy::{Collector, Environment, RootSampler, Sampler, TraceConfig};

/// Default sampling: one in this many requests without a trace starts a trace.
const DEFAULT_ONE_IN: u64 = 100;

/// Options of spans.
#[derive(Clone, Debug, Args)]
pub(crate) struct TraceArgs {
    /// A trace collector: http://ip:4318 for OTLP over HTTP, grpc://ip:4317 for OTLP over gRPC, https://host:4318 for
    /// a control plane with '--traces' in a mesh with a trust domain. Requests whose
    /// 'traceparent' is sampled are exported [default: OTEL_EXPORTER_OTLP_ENDPOINT].
    #[arg(long, value_name = "URL")]
    trace_to: Option<Collector>,
    /// Start a trace for one of N requests that have none; 0 for none [default: OTEL_TRACES_SAMPLER, else 100].
    #[arg(long, value_name = "N")]
    trace_one_in: Option<u64>,
}

/// The tracing configuration of a process that represents `service`. `None` if no spans are exported.
pub(crate) fn config(
    args: &TraceArgs,
    service: Option<ServiceName>,
    instance: String,
) -> Option<TraceConfig> {
    let TraceArgs { trace_to: to, trace_one_in: one_in } = args.clone();
    let environment = Environment::read(|name| env::var(name).ok());
    for warning in &environment.warnings {
        tracing::warn!("{warning}; it is ignored");
    }
    if environment.disabled {
        if to.is_some() {
            tracing::warn!(
                "no spans are exported, although --trace-to is given: OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER"
            );
        }
        return None;
    }
    let to = to.or(environment.collector)?.with_headers(environment.headers);
    let own = |one_in| Sampler { follows_parent: true, roots: RootSampler::OneIn(one_in) };
    let sampler = one_in.map(own).or(environment.sampler).unwrap_or_else(|| own(DEFAULT_ONE_IN));
    Some(TraceConfig { to, sampler, resource: environment.resource, service, instance })
}
