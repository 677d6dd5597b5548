use std::time::Duration;

use fairmesh_controllers::{ControllerState, ControllerStatus, Round, Statuses};
use fairmesh_wire::v1::{self, controller_status as message};
use tokio::time::Instant;

/// Describes the statuses of all controllers for operators.
pub(crate) fn describe(statuses: &Statuses, now: Instant) -> v1::ListControllersResponse {
    v1::ListControllersResponse {
        controllers: statuses.read().into_iter().map(|status| describe_one(status, now)).collect(),
    }
}

fn describe_one(status: ControllerStatus, now: Instant) -> v1::ControllerStatus {
    let ago = |at: Instant| millis(now.saturating_duration_since(at));
    v1::ControllerStatus {
        name: status.name.to_owned(),
        state: match status.state {
            ControllerState::Waiting => message::State::Waiting,
            ControllerState::Running => message::State::Running,
            ControllerState::BackingOff => message::State::BackingOff,
            ControllerState::WithoutLease => message::State::WithoutLease,
        }
        .into(),
        shadow: status.is_shadow,
        last: status.last.map(|round| describe_round(round, now)),
        changed_ago_ms: status.changed.map(ago),
        next_in_ms: status.next.map(|next| millis(next.saturating_duration_since(now))),
        failures: status.failures,
        rounds: status.totals.done,
        writes: status.totals.writes,
    }
}

fn describe_round(round: Round, now: Instant) -> message::Round {
    let refusal = |refusal: fairmesh_controllers::Refusal| message::Refusal {
        subject: refusal.subject,
        reason: refusal.reason,
    };
    message::Round {
        ago_ms: millis(now.saturating_duration_since(round.began)),
        took_us: u64::try_from(round.took.as_micros()).unwrap_or(u64::MAX),
        writes: round.writes as u64,
        effects: round.effects as u64,
        decided: round.decided,
        decided_total: round.decided_total as u64,
        refused: round.refused.into_iter().map(refusal).collect(),
        refused_total: round.refused_total as u64,
        problem: round.problem.unwrap_or_default(),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
