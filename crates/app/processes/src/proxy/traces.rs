//! Where a proxy sends spans: by its options, else by the environment variables of OpenTelemetry.

use std::env;

use fairmesh_proxy::{Collector, Environment, RootSampler, Sampler, TraceConfig};

/// One of so many requests without a trace starts one, unless the options or the environment say otherwise.
const DEFAULT_ONE_IN: u64 = 100;

/// The configuration of spans; `None` where none are exported.
pub(super) fn config(to: Option<Collector>, one_in: Option<u64>, instance: String) -> Option<TraceConfig> {
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
    Some(TraceConfig { to, sampler, resource: environment.resource, instance })
}
