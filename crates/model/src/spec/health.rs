use serde::{Deserialize, Serialize};

use super::text::{read_duration_option, write_duration};
use crate::{HealthCheck, Invalid, Probe};

/// How the endpoints of a service are probed. One of `tcp`, `http`, `grpc`; the rest has its default when it is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheckSpec {
    /// That it takes connections; written `{}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpProbeSpec>,
    /// That it answers a GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpProbeSpec>,
    /// That its gRPC health service says `SERVING`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcProbeSpec>,
    /// From one probe to the next, such as `5s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<String>,
    /// By how many percent of the interval each wait varies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_percent: Option<u32>,
    /// How long an answer may take, such as `1s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Good answers in a row that make an endpoint healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rise: Option<u32>,
    /// Failures in a row that make an endpoint unhealthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fall: Option<u32>,
    /// Probes before the first verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_samples: Option<u32>,
}

/// A probe by connecting; it has no fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TcpProbeSpec {}

/// A probe by GET.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpProbeSpec {
    /// Such as `/healthz`.
    pub path: String,
    /// The status that it must answer; any from 200 to 399 when it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// A probe by `grpc.health.v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcProbeSpec {
    /// The service that is asked about; the server as a whole when it is left out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
}

impl HealthCheckSpec {
    pub(super) fn plan(&self) -> Result<HealthCheck, Invalid> {
        let usual = HealthCheck::new(self.probe()?);
        Ok(HealthCheck {
            interval: read_duration_option("interval", self.interval.as_ref())?.unwrap_or(usual.interval),
            timeout: read_duration_option("timeout", self.timeout.as_ref())?.unwrap_or(usual.timeout),
            jitter_percent: self.jitter_percent.unwrap_or(usual.jitter_percent),
            rise: self.rise.unwrap_or(usual.rise),
            fall: self.fall.unwrap_or(usual.fall),
            minimum_samples: self.minimum_samples.unwrap_or(usual.minimum_samples),
            ..usual
        })
    }

    fn probe(&self) -> Result<Probe, Invalid> {
        match (&self.tcp, &self.http, &self.grpc) {
            (Some(_), None, None) => Ok(Probe::Tcp),
            (None, Some(http), None) => Ok(Probe::Http { path: http.path.clone(), status: http.status }),
            (None, None, Some(grpc)) => Ok(Probe::Grpc { service: grpc.service.clone() }),
            (None, None, None) => Err(Invalid::new(
                "",
                "does not say what to probe",
                "write one of 'tcp: {}', 'http: {path: /healthz}', 'grpc: {}'",
            )),
            _ => Err(Invalid::new("", "probes in more than one way", "keep one of tcp, http and grpc")),
        }
    }

    pub(super) fn of(check: &HealthCheck) -> Self {
        let usual = HealthCheck::new(check.probe.clone());
        let unless = |value: u32, usual: u32| (value != usual).then_some(value);
        let mut spec = Self {
            interval: (check.interval != usual.interval).then(|| write_duration(check.interval)),
            timeout: (check.timeout != usual.timeout).then(|| write_duration(check.timeout)),
            jitter_percent: unless(check.jitter_percent, usual.jitter_percent),
            rise: unless(check.rise, usual.rise),
            fall: unless(check.fall, usual.fall),
            minimum_samples: unless(check.minimum_samples, usual.minimum_samples),
            ..Self::default()
        };
        match usual.probe {
            Probe::Tcp => spec.tcp = Some(TcpProbeSpec {}),
            Probe::Http { path, status } => spec.http = Some(HttpProbeSpec { path, status }),
            Probe::Grpc { service } => spec.grpc = Some(GrpcProbeSpec { service }),
        }
        spec
    }
}
