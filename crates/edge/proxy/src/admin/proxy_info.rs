//! Version, process and options of the proxy.

use std::{collections::BTreeMap, fmt, time::Duration};

use fairmesh_calls::ServiceName;
use fairmesh_edge::observe::{access_log::AccessLogFormat, observer::unix_time};
use fairmesh_identity::RemoteKeys;
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use crate::config::ProxyConfig;

/// Facts about the proxy that do not change while it runs.
#[derive(Debug)]
pub(crate) struct ProxyInfo {
    /// The service whose programs call through the proxy, if there is one.
    pub(crate) service: Option<ServiceName>,
    start: Instant,
    /// Start of the proxy, since the Unix epoch.
    started: Duration,
    listen: Vec<String>,
    options: BTreeMap<&'static str, String>,
}

/// Serialized form of [`ProxyInfo`].
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProxyInfoView<'a> {
    version: &'static str,
    pid: u32,
    started: String,
    up_seconds: u64,
    listen: &'a [String],
    options: &'a BTreeMap<&'static str, String>,
}

impl ProxyInfo {
    /// Describes a proxy that starts now.
    pub(crate) fn of(config: &ProxyConfig) -> Self {
        let ProxyConfig {
            listen,
            tls,
            key_servers,
            admin,
            handover,
            cores,
            limits,
            access_log,
            traces,
            endpoints,
            // Listed among the further options.
            zone: _,
            options,
            service,
            inbound: _,
        } = config;
        let none = || "none".to_owned();
        let seconds = |limit: Duration| format!("{limit:?}");
        let certificate = tls.as_ref().map(|files| files.certificate.display().to_string());
        let own = [
            ("tls-cert", certificate.unwrap_or_else(none)),
            ("tls-key-server", key_servers.as_ref().map_or_else(none, |keys| key_server_names(keys))),
            ("cores", cores.to_string()),
            ("admin", admin.map_or_else(none, |admin| admin.to_string())),
            ("handover", handover.as_ref().map_or_else(none, |path| path.display().to_string())),
            ("max-connections", limits.connections.to_string()),
            ("max-body", limits.body.map_or_else(none, |bytes| bytes.to_string())),
            ("idle-timeout", seconds(limits.idle_timeout)),
            ("tunnel-idle-timeout", seconds(limits.tunnel_idle)),
            ("max-services", limits.services.to_string()),
            ("service-idle-timeout", seconds(limits.service_idle)),
            ("drain-deadline", seconds(limits.drain)),
            ("access-log", log_format(access_log.form).to_owned()),
            ("access-log-one-in", access_log.one_in.to_string()),
            ("trace-to", traces.as_ref().map_or_else(none, |traces| traces.to.to_string())),
            ("trace-sampler", traces.as_ref().map_or_else(none, |traces| traces.sampler.to_string())),
            ("metrics-per-endpoint", endpoints.is_some().to_string()),
        ];
        Self {
            service: service.clone(),
            start: Instant::now(),
            started: unix_time(),
            listen: listen.iter().map(ToString::to_string).collect(),
            options: options.clone().into_iter().chain(own).collect(),
        }
    }

    pub(crate) fn shown(&self) -> ProxyInfoView<'_> {
        let started = i64::try_from(self.started.as_millis()).unwrap_or_default();
        ProxyInfoView {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            started: Timestamp::from_millisecond(started).unwrap_or_default().to_string(),
            up_seconds: self.start.elapsed().as_secs(),
            listen: &self.listen,
            options: &self.options,
        }
    }
}

impl fmt::Display for ProxyInfoView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, pid, started, up_seconds, listen, options } = self;
        writeln!(f, "fairmesh proxy {version}, process {pid}, since {started} ({up_seconds} s)")?;
        listen.iter().try_for_each(|listen| writeln!(f, "{:<22} {listen}", "listen"))?;
        options.iter().try_for_each(|(name, value)| writeln!(f, "{name:<22} {value}"))
    }
}

/// Name of the format, as the command-line option spells it.
const fn log_format(form: AccessLogFormat) -> &'static str {
    match form {
        AccessLogFormat::Off => "off",
        AccessLogFormat::Text => "text",
        AccessLogFormat::Json => "json",
    }
}

fn key_server_names(keys: &RemoteKeys) -> String {
    let names: Vec<_> = keys.iter().map(|key| key.name()).collect();
    format!("{} ({:?})", names.join(", "), keys.deadline())
}
