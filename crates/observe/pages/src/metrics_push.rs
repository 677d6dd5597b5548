//! Pushes the metrics of a process to an OpenTelemetry collector.

use std::{env, fs, sync::Arc, time::Duration};

use fairmesh_otlp::{AttributeValue, Environment, MetricsConfig, MetricsExporter};

use crate::{Process, exposition};

/// Default of `OTEL_METRIC_EXPORT_INTERVAL` in the specification.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(60);
/// Default of `OTEL_METRIC_EXPORT_TIMEOUT` in the specification.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Starts pushing if the environment names a collector. The outcomes of pushes are shown only on the metrics page,
/// because a collector that receives pushes knows their outcomes.
pub(crate) fn start<P: Process>(process: &Arc<P>) -> Option<MetricsExporter> {
    let environment = Environment::read_metrics(|name| env::var(name).ok());
    for warning in &environment.warnings {
        tracing::warn!("{warning}; it is ignored");
    }
    if environment.disabled {
        return None;
    }
    let config = MetricsConfig {
        to: environment.collector?.with_headers(environment.headers),
        interval: environment.interval.unwrap_or(DEFAULT_INTERVAL),
        timeout: environment.timeout.unwrap_or(DEFAULT_TIMEOUT),
        resource: resource::<P>(environment.resource),
    };
    let process = Arc::clone(process);
    Some(MetricsExporter::start(config, move || exposition::gather(&*process, None)))
}

/// Returns the attributes of this process. Attributes from the environment take precedence.
fn resource<P: Process>(given: Vec<(String, String)>) -> Vec<(String, AttributeValue)> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = [
        ("service.name", format!("fairmesh-{}", P::KIND)),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("service.instance.id", format!("{}:{}", host.trim(), std::process::id())),
    ];
    let is_given = |key: &str| given.iter().any(|(name, _)| name == key);
    let own = own.into_iter().filter(|(key, _)| !is_given(key)).map(|(key, value)| (key.to_owned(), value));
    let all: Vec<_> = own.collect();
    all.into_iter().chain(given).map(|(key, value)| (key, value.into())).collect()
}
