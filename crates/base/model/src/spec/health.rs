use serde::{Deserialize, Serialize};

use super::value_text::{read_duration_option, write_duration};
use crate::{HealthCheck, Invalid, Probe};

/// How the endpoints of a service are probed. Exactly one of `tcp`, `http` and `grpc` is set; the other fields have
/// defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheckSpec {
    /// Probe that opens a TCP connection, written as `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpProbeSpec>,
    /// Probe that sends an HTTP GET request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpProbeSpec>,
    /// Probe that calls the gRPC health service, which must return `SERVING`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcProbeSpec>,
    /// Time between probes, such as `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// Random variation of the interval in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_percent: Option<u32>,
    /// The timeout of a probe, such as `1s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Consecutive successes that make an endpoint healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rise: Option<u32>,
    /// Consecutive failures that make an endpoint unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fall: Option<u32>,
    /// Number of probes before the first verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_samples: Option<u32>,
}

/// Probe that opens a TCP connection. It has no fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpProbeSpec {}

/// Probe that sends an HTTP GET request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpProbeSpec {
    /// The path, such as `/healthz`.
    pub path: String,
    /// The expected status; 200 to 399 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// Probe that calls `grpc.health.v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcProbeSpec {
    /// The service to check; the whole server by default.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
}

impl HealthCheckSpec {
    pub(super) fn validate(&self) -> Result<HealthCheck, Invalid> {
        let default = HealthCheck::new(self.probe()?);
        Ok(HealthCheck {
            interval: read_duration_option("interval", self.interval.as_ref())?.unwrap_or(default.interval),
            timeout: read_duration_option("timeout", self.timeout.as_ref())?.unwrap_or(default.timeout),
            jitter_percent: self.jitter_percent.unwrap_or(default.jitter_percent),
            rise: self.rise.unwrap_or(default.rise),
            fall: self.fall.unwrap_or(default.fall),
            minimum_samples: self.minimum_samples.unwrap_or(default.minimum_samples),
            ..default
        })
    }

    fn probe(&self) -> Result<Probe, Invalid> {
        match (&self.tcp, &self.http, &self.grpc) {
            (Some(_), None, None) => Ok(Probe::Tcp),
            (None, Some(http), None) => Ok(Probe::Http { path: http.path.clone(), status: http.status }),
            (None, None, Some(grpc)) => Ok(Probe::Grpc { service: grpc.service.clone() }),
            (None, None, None) => Err(Invalid::new(
                "",
                "has no probe",
                "write one of 'tcp: {}', 'http: {path: /healthz}', 'grpc: {}'",
            )),
            _ => Err(Invalid::new("", "has more than one probe", "keep one of tcp, http and grpc")),
        }
    }

    pub(super) fn of(check: &HealthCheck) -> Self {
        let default = HealthCheck::new(check.probe.clone());
        let non_default = |value: u32, default: u32| (value != default).then_some(value);
        let mut spec = Self {
            interval: (check.interval != default.interval).then(|| write_duration(check.interval)),
            timeout: (check.timeout != default.timeout).then(|| write_duration(check.timeout)),
            jitter_percent: non_default(check.jitter_percent, default.jitter_percent),
            rise: non_default(check.rise, default.rise),
            fall: non_default(check.fall, default.fall),
            minimum_samples: non_default(check.minimum_samples, default.minimum_samples),
            ..Self::default()
        };
        match default.probe {
            Probe::Tcp => spec.tcp = Some(TcpProbeSpec {}),
            Probe::Http { path, status } => spec.http = Some(HttpProbeSpec { path, status }),
            Probe::Grpc { service } => spec.grpc = Some(GrpcProbeSpec { service }),
        }
        spec
    }
}
