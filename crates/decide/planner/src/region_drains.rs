//! Drains of whole regions: when all services together may make the next step, and why a service has no part in them.

use fairmesh_model::{RegionDrain, ServiceName, Share, Traffic, TrafficMode};

use crate::service_planner::DrainStep;

/// Why a drain makes no step yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainWait {
    /// For operators.
    pub text: String,
    /// Whether it may never be made by itself.
    pub is_held: bool,
}

impl DrainWait {
    /// A wait that ends by itself.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_held: false }
    }
}

/// The share of its calls that a region keeps from now on, by what each service says of the next step.
///
/// # Errors
/// Why that does not change yet.
pub fn next_keep(drain: &RegionDrain, steps: &[(ServiceName, DrainStep)]) -> Result<Share, DrainWait> {
    let held = steps.iter().find_map(|(service, step)| match step {
        DrainStep::Hold(why) => Some(format!("held: {service}: {why}")),
        _ => None,
    });
    if let Some(text) = held {
        return Err(DrainWait { text, is_held: true });
    }
    let waits = steps.iter().find_map(|(service, step)| match step {
        DrainStep::Wait(what) => Some(format!("waits for {what} ({service})")),
        _ => None,
    });
    if let Some(text) = waits {
        return Err(DrainWait::new(text));
    }
    let advanced = steps.iter().find_map(|(_, step)| match step {
        DrainStep::Advance(keep) => Some(*keep),
        _ => None,
    });
    let early = steps.iter().find(|(_, step)| *step == DrainStep::NotDue);
    match (advanced, early) {
        // The time is the same for all services: a step that is made before it is due saves calls from being dropped.
        (Some(keep), _) => Ok(keep),
        (None, Some((service, _))) => {
            Err(DrainWait::new(format!("waits for the time of the next step ({service})")))
        }
        // Without anything to move there is nothing to wait for.
        (None, None) => Ok(if drain.returns { Share::ALL } else { Share::NONE }),
    }
}

/// Why drains of regions move no calls of a service, by who divides its calls and whether its policy keeps them in their
/// region; `None` if drains move them.
pub fn why_not_drained(traffic: Option<&Traffic>, local_only: bool) -> Option<&'static str> {
    match traffic.map(|traffic| (traffic.is_planned(), traffic.mode)) {
        _ if local_only => Some("its policy keeps calls in their region (localOnly)"),
        None => Some("no planner plans for it"),
        Some((false, _)) => Some("its shares are written by hand"),
        Some((true, TrafficMode::Active)) => None,
        Some((true, TrafficMode::Shadow)) => Some("its tables are in shadow mode"),
        Some((true, TrafficMode::Hold)) => Some("its policy holds the tables (mode: hold)"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::TrafficPlanner;

    use super::*;

    #[test]
    fn region_drain_step_waits_for_every_service() {
        let name = |name: &str| ServiceName::new(name).unwrap();
        let share = |millionths| Share::of_millionths(millionths).unwrap();
        let drain = RegionDrain::begin(None, false, Duration::from_secs(10), 0);
        let advance = (name("shop/a"), DrainStep::Advance(share(900_000)));
        let wait = (name("shop/b"), DrainStep::Wait("reports".to_owned()));
        let hold = (name("shop/c"), DrainStep::Hold("full".to_owned()));
        assert_eq!(next_keep(&drain, std::slice::from_ref(&advance)), Ok(share(900_000)));
        let early = (name("shop/d"), DrainStep::NotDue);
        let waits = next_keep(&drain, std::slice::from_ref(&early)).unwrap_err();
        assert_eq!(waits, DrainWait::new("waits for the time of the next step (shop/d)"));
        let saves = [early, advance.clone()];
        assert_eq!(next_keep(&drain, &saves), Ok(share(900_000)), "what saves calls is not too early");
        let waits = next_keep(&drain, &[advance.clone(), wait.clone()]).unwrap_err();
        assert_eq!(waits, DrainWait::new("waits for reports (shop/b)"));
        let held = next_keep(&drain, &[advance, wait, hold]).unwrap_err();
        assert_eq!((held.text.as_str(), held.is_held), ("held: shop/c: full", true));
        assert_eq!(next_keep(&drain, &[]), Ok(Share::NONE), "nothing to move");
        assert_eq!(next_keep(&RegionDrain { returns: true, ..drain }, &[]), Ok(Share::ALL));
    }

    #[test]
    fn region_drain_moves_only_services_with_published_plans() {
        let of = |planner, mode| Traffic { planner, mode, ..Traffic::default() };
        let rings = Some(TrafficPlanner::Rings);
        assert_eq!(why_not_drained(Some(&of(rings, TrafficMode::Active)), false), None);
        assert!(why_not_drained(None, false).unwrap().contains("no planner"));
        assert!(why_not_drained(None, true).unwrap().contains("localOnly"));
        let cases = [
            (None, TrafficMode::Active, false, "by hand"),
            (rings, TrafficMode::Hold, true, "localOnly"),
            (rings, TrafficMode::Shadow, false, "shadow mode"),
            (rings, TrafficMode::Hold, false, "mode: hold"),
        ];
        for (planner, mode, local_only, part) in cases {
            assert!(why_not_drained(Some(&of(planner, mode)), local_only).unwrap().contains(part), "{part}");
        }
    }
}
