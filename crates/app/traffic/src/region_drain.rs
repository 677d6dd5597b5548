//! A region drain as text and JSON.

use std::time::Duration;

use fairmesh_console::view_reader::{ServiceView, View, age_of, instant};
use fairmesh_model::{DrainPhase, Policy, RegionDrain, TrafficMode};
use fairmesh_planner::why_not_drained;
use fairmesh_wire::v1;
use serde_json::{Value, json};

/// The state of a drain in one word.
pub fn word(drain: &RegionDrain) -> &'static str {
    match drain.phase() {
        DrainPhase::Draining => "draining",
        DrainPhase::Drained => "drained",
        DrainPhase::Returning => "returning",
    }
}

/// Describes a drain in words, such as `draining, 4 of 10 steps made, until 2026-05-04T12:30:00Z`.
pub fn words(drain: &RegionDrain) -> String {
    let word = word(drain);
    match drain.phase() {
        DrainPhase::Drained => word.to_owned(),
        DrainPhase::Draining | DrainPhase::Returning => {
            format!("{word}, {} of {} steps made, {}", drain.steps_made(), RegionDrain::STEPS, end(drain))
        }
    }
}

/// Like `words`, but takes the policies of the mesh into account: a drain only moves calls of services with a
/// planner.
pub fn words_in(view: &View, drain: &RegionDrain) -> String {
    match drain.phase() {
        DrainPhase::Drained if !moves_calls(view) => format!("{}, but {UNMOVED}", words(drain)),
        _ => words(drain),
    }
}

/// Explanation why a drain has moved no call.
const UNMOVED: &str = "its calls stay: no service is planned for";

/// Whether drains move the calls of any service.
pub fn moves_calls(view: &View) -> bool {
    view.services.values().filter_map(policy_in_force).any(|policy| match why_unmoved(&policy) {
        None => true,
        // The planner is only on hold, and calls that it has moved stay moved.
        Some(_) => policy.traffic.is_some_and(|traffic| traffic.mode == TrafficMode::Hold),
    })
}

/// The policy that planners read: that of a declared service, completed by defaults.
fn policy_in_force(service: &ServiceView) -> Option<Policy> {
    match service.service {
        Some(_) => Some(service.effective_policy()),
        None => service.policy.as_ref().map(|written| written.value.clone()),
    }
}

/// Why region drains move no calls of a service with this policy.
pub fn why_unmoved(policy: &Policy) -> Option<&'static str> {
    why_not_drained(policy.traffic.as_deref(), policy.locality.local_only)
}

/// The time at which the drain finishes.
fn end(drain: &RegionDrain) -> String {
    match drain.due_at_ms() {
        None => "as fast as each is seen".to_owned(),
        Some(due) if age_of(due) > Duration::ZERO => format!("was due at {}", instant(due)),
        Some(due) => format!("until {}", instant(due)),
    }
}

/// The drain as JSON.
pub fn item(drain: &RegionDrain) -> Value {
    json!({
        "state": word(drain),
        "keepPercent": percent(drain),
        "stepsMade": drain.steps_made(),
        "steps": RegionDrain::STEPS,
        "until": drain.due_at_ms().map(instant),
    })
}

/// Like `item`, but takes the policies of the mesh into account.
pub fn item_in(view: &View, drain: &RegionDrain) -> Value {
    let mut item = item(drain);
    item["movesCalls"] = json!(moves_calls(view));
    item
}

/// Describes a drain in a sentence, such as `region eu is draining, 4 of 10 steps made, until 2026-05-04T12:30:00Z:
/// it keeps 60 % of its calls`.
pub fn sentence(region: &str, drain: &RegionDrain) -> String {
    format!("region {region} is {}: it keeps {} % of its calls", words(drain), percent(drain))
}

/// Progress of a drain as reported by the control plane.
pub fn progress(status: &v1::RegionDrainStatus) -> String {
    let drain = status.drain.and_then(|drain| RegionDrain::try_from(drain).ok());
    let text = match drain {
        Some(drain) if drain.phase() == DrainPhase::Drained && status.services == Some(0) => {
            format!("region {} is {}, but {UNMOVED}", status.region, words(&drain))
        }
        Some(drain) => sentence(&status.region, &drain),
        // The drain was written by a later release.
        None => format!("region {} has a drain that this command cannot read", status.region),
    };
    // An older control plane reports no state before the first round.
    if status.state.is_empty() { text } else { format!("{text}; {}", status.state) }
}

fn percent(drain: &RegionDrain) -> f64 {
    f64::from(drain.keep.millionths()) / 10_000.0
}

#[cfg(test)]
mod tests {
    use fairmesh_console::view_reader::At;
    use fairmesh_model::{
        DefaultsByScope, DefaultsScope, PolicyDefaults, Protocol, Service, ServiceKind, ServiceName, Share,
        Traffic, TrafficPlanner,
    };

    use super::*;

    #[test]
    fn region_drain_moves_calls_of_declared_services_with_default_planner() {
        let traffic = Traffic { planner: Some(TrafficPlanner::Rings), ..Traffic::default() };
        let policy = Policy { traffic: Some(Box::new(traffic)), ..Policy::default() };
        let mut defaults = DefaultsByScope::default();
        defaults.set(DefaultsScope::Mesh, Some(PolicyDefaults::new(&policy).unwrap()));
        let name = ServiceName::new("shop/cart").unwrap();
        let inherited = At { value: defaults.of(&name.tenant), revision: 1 };
        let mut view = View::default();
        view.services.insert(name.clone(), ServiceView { inherited, ..ServiceView::default() });
        assert!(!moves_calls(&view), "it is not declared");
        let service = Service {
            kind: ServiceKind::Replicated,
            protocol: Protocol::Http1,
            virtual_address: None,
            identity: None,
        };
        view.services.get_mut(&name).unwrap().service = Some(At { value: service, revision: 2 });
        assert!(moves_calls(&view));
    }

    #[test]
    fn region_drain_text_names_direction_steps_and_end() {
        let keep = |millionths| Share::of_millionths(millionths).unwrap();
        let hour = Duration::from_secs(3_600);
        let due_later = u64::try_from(age_of(0).as_millis()).unwrap();
        let leaving = RegionDrain { keep: keep(600_000), returns: false, over: hour, began_at_ms: due_later };
        let text = words(&leaving);
        assert!(text.starts_with("draining, 4 of 10 steps made, until 2"), "{text}");
        let late = RegionDrain { began_at_ms: 0, ..leaving };
        assert_eq!(words(&late), "draining, 4 of 10 steps made, was due at 1970-01-01T01:00:00Z");
        let drained = RegionDrain { keep: keep(0), ..leaving };
        assert_eq!(sentence("eu", &drained), "region eu is drained: it keeps 0 % of its calls");
        let back = RegionDrain { keep: keep(305_000), returns: true, over: Duration::ZERO, began_at_ms: 0 };
        assert_eq!(
            sentence("eu", &back),
            "region eu is returning, 3 of 10 steps made, as fast as each is seen: it keeps 30.5 % of its calls"
        );
        let status = |state: &str| v1::RegionDrainStatus {
            region: "eu".into(),
            drain: Some(drained.into()),
            state: state.into(),
            ..v1::RegionDrainStatus::default()
        };
        assert_eq!(progress(&status("")), "region eu is drained: it keeps 0 % of its calls");
        assert_eq!(progress(&status("done")), "region eu is drained: it keeps 0 % of its calls; done");
        let none = v1::RegionDrainStatus { services: Some(0), ..status("done") };
        assert_eq!(
            progress(&none),
            "region eu is drained, but its calls stay: no service is planned for; done"
        );
        assert_eq!((&item(&back)["state"], &item(&back)["until"]), (&json!("returning"), &Value::Null));
    }
}
