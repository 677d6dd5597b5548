use fairmesh_wire::v1::{self, controller_status::State};
use serde_json::{Value, json};

use super::given;
use crate::{command_queries::coarse, event_delta::Shown};

/// Shows the state of this control plane's controllers, like `fairmesh control status`.
pub(crate) fn controllers(response: &v1::ListControllersResponse) -> Shown {
    Shown::head(&json!({ "controllers": response.controllers.iter().map(controller).collect::<Vec<_>>() }))
}

fn controller(status: &v1::ControllerStatus) -> Value {
    json!({
        "name": status.name,
        "state": match status.state() {
            State::Waiting => "waiting",
            State::Running => "running",
            State::BackingOff => "backing off",
            State::WithoutLease => "without lease",
        },
        "shadow": status.shadow,
        "last": status.last.as_ref().map(round),
        "changedAgoMs": status.changed_ago_ms.map(coarse),
        "failures": status.failures,
        "writes": status.writes,
    })
}

fn round(round: &v1::controller_status::Round) -> Value {
    let refused = |one: &v1::controller_status::Refusal| format!("{}: {}", one.subject, one.reason);
    json!({
        "agoMs": coarse(round.ago_ms),
        "tookUs": round.took_us,
        "decided": round.decided,
        "decidedTotal": round.decided_total,
        "refused": round.refused.iter().map(refused).collect::<Vec<_>>(),
        "refusedTotal": round.refused_total,
        "problem": given(&round.problem),
    })
}
