use fairmesh_calls::FaultKind;
use fairmesh_router::DirectResponse;
use serde_json::{Value, json};

use crate::{Explained, UndeclaredBackend};

/// Formats the decision for programs, with the fields `steps`, `goesTo`, `answered`, `unhealthy` and `basedOn`.
pub fn document(Explained { report, last, undeclared_backend }: &Explained) -> Value {
    let unhealthy = last.avoided.iter().map(|(instance, why)| json!({ "instance": instance, "why": why }));
    let unhealthy: Vec<Value> = unhealthy.collect();
    let steps = report.decisions.iter().flat_map(|decision| &decision.explanation.steps);
    let steps: Vec<_> = steps.map(|step| json!({ "step": step.title, "detail": step.detail })).collect();
    let based_on = report.decisions.iter().map(|decision| {
        let map_version = Some(decision.map_version).filter(|version| *version > 0);
        json!({ "service": decision.service.to_string(), "revision": decision.revision, "mapVersion": map_version })
    });
    let based_on: Vec<Value> = based_on.collect();
    let last = report.decisions.last().map(|decision| &decision.explanation);
    let instead = last.and_then(|last| last.direct_response.as_ref()).map(|instead| match instead {
        DirectResponse::Redirect { status, location } => json!({ "status": status, "location": location }),
        DirectResponse::Abort { status } => json!({ "status": status }),
    });
    let end = match (undeclared_backend, last.and_then(|last| last.picked.as_ref()), &report.endpoint) {
        (Some(undeclared), ..) => {
            json!({ "error": undeclared.to_string(), "reason": UndeclaredBackend::REASON.label() })
        }
        (None, Some(Ok(picked)), Some(target)) => json!({
            "service": last.map(|last| last.target.to_string()),
            "instance": target.instance.to_string(),
            "address": target.address.to_string(),
            "region": target.location.region.to_string(),
            "shard": picked.shard.map(|shard| shard.0),
            "policy": report.decisions.last().map(|decision| decision.policy.as_str()),
            "lastResort": picked.last_resort,
        }),
        (None, Some(Err(why)), _) => {
            json!({ "error": why.to_string(), "reason": FaultKind::from(&**why).label() })
        }
        _ => Value::Null,
    };
    json!({ "steps": steps, "goesTo": end, "answered": instead, "unhealthy": unhealthy, "basedOn": based_on })
}
