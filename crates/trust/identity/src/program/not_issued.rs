//! Reasons why an agent issues no certificate, and when a program asks again.

use std::time::Duration;

use tonic::{Code, Status};

/// Pauses before a program without an identity asks again: while the agent does not respond or has no control plane, and
/// while the mesh has no trust domain.
const NO_AGENT_INTERVAL: Duration = Duration::from_secs(5);
const NO_DOMAIN_INTERVAL: Duration = Duration::from_secs(60);

/// Reason why an agent issued no certificate.
#[derive(Debug)]
pub(super) enum NotIssued {
    /// The mesh has no trust domain, or the agent does not serve identities.
    NoDomain,
    /// No agent listens at the address.
    NoAgent(String),
    /// The agent does not know yet whether the mesh has a trust domain.
    Undecided(String),
    /// The agent is a member of a trust domain but cannot issue certificates now, or hangs.
    Unavailable(String),
    /// The agent refused, or its response is invalid.
    Failed(String),
}

impl NotIssued {
    /// The reason that an agent's status gives.
    pub(super) fn of(status: &Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::NoDomain,
            Code::Unavailable | Code::DeadlineExceeded => Self::Unavailable(status.message().to_owned()),
            _ => Self::Failed(status.message().to_owned()),
        }
    }

    /// The pause before a program that has no certificate yet asks again; `None` if the agent refused, so that pauses grow.
    /// An agent without a control plane gets one any moment, and the program cannot serve until then.
    pub(super) const fn first_pause(&self) -> Option<Duration> {
        match self {
            Self::NoDomain => Some(NO_DOMAIN_INTERVAL),
            Self::NoAgent(_) | Self::Undecided(_) | Self::Unavailable(_) => Some(NO_AGENT_INTERVAL),
            Self::Failed(_) => None,
        }
    }

    pub(super) fn into_message(self) -> String {
        match self {
            Self::NoDomain => "the agent has left the trust domain".into(),
            Self::NoAgent(error)
            | Self::Undecided(error)
            | Self::Unavailable(error)
            | Self::Failed(error) => error,
        }
    }
}

impl From<String> for NotIssued {
    fn from(error: String) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_without_certificate_asks_soon_while_agent_has_no_control_plane() {
        let pause = |failure: fn(String) -> NotIssued| failure("no control plane".into()).first_pause();
        assert_eq!(pause(NotIssued::Unavailable), Some(NO_AGENT_INTERVAL));
        assert_eq!(pause(NotIssued::NoAgent), Some(NO_AGENT_INTERVAL));
        assert_eq!(pause(NotIssued::Failed), None, "refusals are repeated with growing pauses");
        let pause = |code| NotIssued::of(&Status::new(code, "no answer")).first_pause();
        assert_eq!(pause(Code::Unavailable), Some(NO_AGENT_INTERVAL));
        assert_eq!(pause(Code::DeadlineExceeded), Some(NO_AGENT_INTERVAL), "a hang is no refusal");
        assert_eq!(pause(Code::PermissionDenied), None);
    }
}
