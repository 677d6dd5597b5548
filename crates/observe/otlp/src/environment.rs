//! Reads the OpenTelemetry environment variables for traces and metrics (specifications: SDK configuration by
//! environment variables; OTLP exporter configuration).

use std::time::Duration;

use http::{HeaderName, HeaderValue};

use crate::{Collector, RootSampler, Sampler};

/// The exported signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exported {
    Traces,
    Metrics,
}

/// Values of the variables that are set. A variable with an invalid value counts as unset and is named in `warnings`,
/// as the specification requires.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Environment {
    /// Set by `OTEL_SDK_DISABLED`, and by `none` in `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER`.
    pub disabled: bool,
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` with the protocol in `OTEL_EXPORTER_OTLP_PROTOCOL`, or the corresponding
    /// variables for traces or metrics only.
    pub collector: Option<Collector>,
    /// `OTEL_EXPORTER_OTLP_HEADERS`, sent to every collector.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// `OTEL_RESOURCE_ATTRIBUTES`, and `OTEL_SERVICE_NAME` as `service.name`.
    pub resource: Vec<(String, String)>,
    /// `OTEL_TRACES_SAMPLER` with `OTEL_TRACES_SAMPLER_ARG`.
    pub sampler: Option<Sampler>,
    /// `OTEL_METRIC_EXPORT_INTERVAL`: interval between exports of metrics.
    pub interval: Option<Duration>,
    /// `OTEL_METRIC_EXPORT_TIMEOUT`: time limit for an export of metrics.
    pub timeout: Option<Duration>,
    /// Invalid variables, and why they are invalid.
    pub warnings: Vec<String>,
}

impl Environment {
    /// Reads the variables for traces. An empty variable counts as unset.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| set(&variable, name);
        let mut this = Self::read_common(Exported::Traces, &get);
        if let Some(name) = get("OTEL_TRACES_SAMPLER") {
            this.read_sampler(&name, get("OTEL_TRACES_SAMPLER_ARG").as_deref());
        }
        this
    }

    /// Reads the variables for metrics. An empty variable counts as unset.
    pub fn read_metrics(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| set(&variable, name);
        let mut this = Self::read_common(Exported::Metrics, &get);
        this.interval = this.read_millis("OTEL_METRIC_EXPORT_INTERVAL", &get);
        this.timeout = this.read_millis("OTEL_METRIC_EXPORT_TIMEOUT", &get);
        this
    }

    fn read_common(exported: Exported, get: &impl Fn(&str) -> Option<String>) -> Self {
        let signal = exported.name();
        let of_signal = |name: &str| {
            get(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"))
                .or_else(|| get(&format!("OTEL_EXPORTER_OTLP_{name}")))
        };
        let mut this = Self {
            disabled: get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")),
            ..Self::default()
        };
        match get(&format!("OTEL_{signal}_EXPORTER")).as_deref() {
            Some("none") => this.disabled = true,
            Some("otlp") | None => {}
            Some(other) => this.warn(format!("OTEL_{signal}_EXPORTER={other}: otlp is the only exporter")),
        }
        let is_specific = get(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")).is_some();
        if let Some(endpoint) = of_signal("ENDPOINT") {
            let path = (!is_specific).then_some(exported.path());
            this.read_endpoint((exported, &endpoint), of_signal("PROTOCOL").as_deref(), path);
        }
        if let Some(headers) = of_signal("HEADERS") {
            this.read_headers(&headers);
        }
        if let Some(attributes) = get("OTEL_RESOURCE_ATTRIBUTES") {
            this.read_resource(&attributes);
        }
        if let Some(name) = get("OTEL_SERVICE_NAME") {
            this.resource.retain(|(key, _)| key != "service.name");
            this.resource.push(("service.name".to_owned(), name));
        }
        this
    }

    fn read_millis(&mut self, name: &str, get: &impl Fn(&str) -> Option<String>) -> Option<Duration> {
        let text = get(name)?;
        let millis = text.parse().ok().filter(|millis| *millis > 0);
        if millis.is_none() {
            self.warn(format!("{name}={text} is not a number of milliseconds"));
        }
        millis.map(Duration::from_millis)
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Sets the collector. `path` is the path of this signal below an endpoint that is the base for all signals;
    /// `None` means that the endpoint is used as written.
    fn read_endpoint(
        &mut self,
        (exported, endpoint): (Exported, &str),
        protocol: Option<&str>,
        path: Option<&str>,
    ) {
        let is_grpc = match protocol {
            Some("grpc") => true,
            Some("http/protobuf") | None => false,
            Some(other) => {
                self.warn(format!(
                    "OTEL_EXPORTER_OTLP_PROTOCOL={other}: http/protobuf is used; grpc would be the other"
                ));
                false
            }
        };
        let is_control_plane = exported == Exported::Traces && !is_grpc && endpoint.starts_with("https://");
        let (scheme, rest) = match endpoint.split_once("://") {
            Some((scheme @ "http", rest)) => (scheme, rest),
            Some((scheme @ "https", rest)) if is_control_plane => (scheme, rest),
            _ => {
                let message = "only http:// is spoken, and https:// with traces to a control plane; use an agent of the collector on this machine";
                return self.warn(format!("OTEL_EXPORTER_OTLP_ENDPOINT={endpoint}: {message}"));
            }
        };
        let base = rest.trim_end_matches('/');
        let text = match (is_grpc, path) {
            (true, _) => format!("grpc://{base}"),
            (false, None) => endpoint.to_owned(),
            (false, Some(path)) => format!("{scheme}://{base}{path}"),
        };
        match text.parse() {
            Ok(collector) => self.collector = Some(collector),
            Err(problem) => self.warn(format!("OTEL_EXPORTER_OTLP_ENDPOINT: {problem}")),
        }
    }

    fn read_headers(&mut self, text: &str) {
        for (name, value) in pairs(text) {
            let header = name.parse().ok().zip(HeaderValue::from_str(&value).ok());
            match header {
                Some((name, mut value)) => {
                    // The value may be a password.
                    value.set_sensitive(true);
                    self.headers.push((name, value));
                }
                None => self.warn(format!("OTEL_EXPORTER_OTLP_HEADERS: '{name}' is not a header")),
            }
        }
    }

    fn read_resource(&mut self, text: &str) {
        for (key, value) in pairs(text) {
            self.resource.retain(|(known, _)| *known != key);
            self.resource.push((key, value));
        }
    }

    fn read_sampler(&mut self, name: &str, argument: Option<&str>) {
        let (follows_parent, rest) = match name.strip_prefix("parentbased_") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let roots = match rest {
            "always_on" => RootSampler::OneIn(1),
            "always_off" => RootSampler::OneIn(0),
            "traceidratio" => match argument.map(str::parse) {
                None => RootSampler::share(1.0),
                Some(Ok(share)) if (0.0..=1.0).contains(&share) => RootSampler::share(share),
                Some(_) => {
                    self.warn("OTEL_TRACES_SAMPLER_ARG has to be from 0 to 1; all are sampled".to_owned());
                    RootSampler::share(1.0)
                }
            },
            _ => {
                let known = "[parentbased_]always_on, always_off or traceidratio";
                return self.warn(format!("OTEL_TRACES_SAMPLER={name} is not known; write {known}"));
            }
        };
        self.sampler = Some(Sampler { follows_parent, roots });
    }
}

impl Exported {
    /// Returns the signal's name in the variables.
    const fn name(self) -> &'static str {
        match self {
            Self::Traces => "TRACES",
            Self::Metrics => "METRICS",
        }
    }

    /// Returns the signal's path below the base endpoint, in OTLP/HTTP.
    const fn path(self) -> &'static str {
        match self {
            Self::Traces => "/v1/traces",
            Self::Metrics => "/v1/metrics",
        }
    }
}

/// Returns the value of a variable that is set and not empty.
fn set(variable: &impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// Parses `key=value` pairs separated by commas and percent-encoded, as in W3C Baggage.
fn pairs(text: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (decoded(key.trim()), decoded(value.trim())))
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match hex.filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<> {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone())
    }

    fn read(variables: &[(&str, &str)]) -> Environment {
        Environment::read(of(variables))
    }

    #[test]
    fn otlp_endpoint_gets_signal_path_and_traces_endpoint_is_used_verbatim() {
        let to = |variables: &[(&str, &str)]| read(variables).collector.map(|to| to.to_string());
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318/");
        assert_eq!(to(&[base]).as_deref(), Some("http://otel:4318/v1/traces"));
        assert_eq!(
            to(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318/a")]).as_deref(),
            Some("http://otel:4318/a/v1/traces")
        );
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://tempo:4318/own");
        assert_eq!(to(&[base, own]).as_deref(), Some("http://tempo:4318/own"));
        let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
        assert_eq!(
            to(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317"), grpc]).as_deref(),
            Some("grpc://otel:4317")
        );
        let control_plane = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://control:4318");
        assert_eq!(to(&[control_plane]).as_deref(), Some("https://control:4318/v1/traces"));
        assert!(to(&[control_plane, grpc]).is_none());
        assert!(Environment::read_metrics(of(&[control_plane])).collector.is_none(), "only spans");
        for wrong in ["otel:4318", "http://"] {
            let read = read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", wrong)]);
            assert!(read.collector.is_none() && read.warnings.len() == 1, "{wrong}: {read:?}");
        }
        assert_eq!(read(&[]), Environment::default());
        assert_eq!(read(&[("OTEL_SERVICE_NAME", " ")]), Environment::default(), "as unset");
    }

    #[test]
    fn otel_attributes_are_decoded_and_service_name_variable_wins() {
        let read = read(&[
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=no,deployment.environment.name=a%2Cb, x = y ,junk"),
            ("OTEL_SERVICE_NAME", "edge"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20YTpi,x-scope=shop,bad name=1"),
        ]);
        let resource: Vec<_> =
            read.resource.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(resource, [("deployment.environment.name", "a,b"), ("x", "y"), ("service.name", "edge")]);
        let headers: Vec<_> =
            read.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("authorization", &b"Basic YTpi"[..]), ("x-scope", b"shop")]);
        assert!(!format!("{:?}", read.headers).contains("YTpi"), "secrets are not printed");
        assert_eq!(read.warnings, ["OTEL_EXPORTER_OTLP_HEADERS: 'bad name' is not a header"]);
    }

    #[test]
    fn samplers_match_opentelemetry_specification() {
        let sampler = |name, argument: &str| {
            read(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]).sampler
        };
        let of = |follows_parent, roots| Some(Sampler { follows_parent, roots });
        assert_eq!(sampler("always_on", ""), of(false, RootSampler::OneIn(1)));
        assert_eq!(sampler("parentbased_always_off", ""), of(true, RootSampler::OneIn(0)));
        assert_eq!(sampler("traceidratio", "0.25"), of(false, RootSampler::share(0.25)));
        assert_eq!(sampler("parentbased_traceidratio", "2"), of(true, RootSampler::share(1.0)));
        assert_eq!(sampler("jaeger_remote", ""), None);
        assert!(
            read(&[("OTEL_SDK_DISABLED", "TRUE")]).disabled && !read(&[("OTEL_SDK_DISABLED", "1")]).disabled
        );
        assert!(read(&[("OTEL_TRACES_EXPORTER", "none")]).disabled);
    }

    #[test]
    fn otel_metrics_are_configured_by_separate_variables() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://tempo:4318/v1/traces"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
            ("OTEL_METRIC_EXPORT_TIMEOUT", "soon"),
            ("OTEL_TRACES_EXPORTER", "none"),
        ];
        let read = Environment::read_metrics(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(read.collector.map(|to| to.to_string()).as_deref(), Some("http://otel:4318/v1/metrics"));
        assert_eq!((read.interval, read.timeout, read.disabled), (Some(Duration::from_secs(5)), None, false));
        assert_eq!(read.warnings, ["OTEL_METRIC_EXPORT_TIMEOUT=soon is not a number of milliseconds"]);
        let disabled =
            Environment::read_metrics(|name| (name == "OTEL_METRICS_EXPORTER").then(|| "none".to_owned()));
        assert!(disabled.disabled);
    }
}
