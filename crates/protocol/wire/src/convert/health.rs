//! Health checks, their verdicts, and the elected checkers: messages of `records.proto`.

use std::time::Duration;

use fairmesh_model::{ElectedChecker, HealthCheck, Invalid, Label, Probe, Verdict};

use super::{policy::micros, required};
use crate::v1::{self, health_check};

impl From<HealthCheck> for v1::HealthCheck {
    fn from(check: HealthCheck) -> Self {
        let probe = match check.probe {
            Probe::Tcp => health_check::Probe::Tcp(v1::TcpProbe {}),
            Probe::Http { path, status } => {
                health_check::Probe::Http(v1::HttpProbe { path, status: status.map_or(0, u32::from) })
            }
            Probe::Grpc { service } => health_check::Probe::Grpc(v1::GrpcProbe { service }),
        };
        Self {
            probe: Some(probe),
            interval_us: micros(check.interval),
            jitter_percent: check.jitter_percent,
            timeout_us: micros(check.timeout),
            rise: check.rise,
            fall: check.fall,
            minimum_samples: check.minimum_samples,
        }
    }
}

impl TryFrom<v1::HealthCheck> for HealthCheck {
    type Error = Invalid;

    fn try_from(message: v1::HealthCheck) -> Result<Self, Invalid> {
        let probe = match required("probe", message.probe)? {
            health_check::Probe::Tcp(_) => Probe::Tcp,
            health_check::Probe::Http(v1::HttpProbe { path, status }) => {
                // Numbers that are no status are rejected by validation below.
                let status = (status != 0).then(|| u16::try_from(status).unwrap_or(u16::MAX));
                Probe::Http { path, status }
            }
            health_check::Probe::Grpc(v1::GrpcProbe { service }) => Probe::Grpc { service },
        };
        let check = Self {
            probe,
            interval: Duration::from_micros(message.interval_us),
            jitter_percent: message.jitter_percent,
            timeout: Duration::from_micros(message.timeout_us),
            rise: message.rise,
            fall: message.fall,
            minimum_samples: message.minimum_samples,
        };
        check.validate()?;
        Ok(check)
    }
}

impl From<Verdict> for v1::Verdict {
    fn from(verdict: Verdict) -> Self {
        let Verdict { healthy, since_ms, confidence, cause, stale } = verdict;
        Self { healthy, since_ms, confidence, cause, stale }
    }
}

impl TryFrom<v1::Verdict> for Verdict {
    type Error = Invalid;

    fn try_from(message: v1::Verdict) -> Result<Self, Invalid> {
        let v1::Verdict { healthy, since_ms, confidence, cause, stale } = message;
        let verdict = Self { healthy, since_ms, confidence, cause, stale };
        verdict.validate()?;
        Ok(verdict)
    }
}

impl From<ElectedChecker> for v1::ElectedChecker {
    fn from(ElectedChecker { agent, elected_at_ms }: ElectedChecker) -> Self {
        Self { agent: agent.into(), elected_at_ms }
    }
}

impl TryFrom<v1::ElectedChecker> for ElectedChecker {
    type Error = Invalid;

    fn try_from(v1::ElectedChecker { agent, elected_at_ms }: v1::ElectedChecker) -> Result<Self, Invalid> {
        Ok(Self { agent: Label::try_from(agent).map_err(|e| e.within("agent"))?, elected_at_ms })
    }
}
