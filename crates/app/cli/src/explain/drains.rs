//! Region drains that affect a call.

use fairmesh_console::view_reader::{ServiceView, View};
use fairmesh_model::{Region, RegionDrain};
use serde_json::{Value, json};

use fairmesh_traffic::region_drain;

/// A region drain that affects the service's calls from or to the region.
#[derive(Debug)]
pub(super) struct DrainOfCalls {
    region: Region,
    drain: RegionDrain,
    /// Reason why the drain moves none of these calls; `None` if it moves them.
    why_not: Option<&'static str>,
}

/// Adds the region drains that affect the call.
pub(super) fn add(drains: &[DrainOfCalls], whole: &mut Value, text: &mut String) {
    let item = |one: &DrainOfCalls| {
        let mut item = region_drain::item(&one.drain);
        item["region"] = json!(one.region.to_string());
        item["movesCalls"] = json!(one.why_not.is_none());
        item
    };
    whole["drains"] = drains.iter().map(item).collect();
    for one in drains {
        let effect = match one.why_not {
            None => "the planner's table moves its calls".to_owned(),
            Some(why) => format!("it moves no more calls of this service: {why}"),
        };
        let words = region_drain::words(&one.drain);
        *text += &format!("{:<8} region {} is {words}; {effect}\n", "drain", one.region);
    }
}

/// Drains of the caller's region, and of regions with endpoints.
pub(super) fn of(view: &View, one: &ServiceView, from: &Region) -> Vec<DrainOfCalls> {
    let policy = one.effective_policy();
    let why_not = region_drain::why_unmoved(&policy);
    let concerns = |region: &Region| {
        region == from || one.endpoints.iter().any(|endpoint| endpoint.value.location.region == *region)
    };
    let drains = view.drains.iter().filter(|(region, _)| concerns(region));
    drains.map(|(region, drain)| DrainOfCalls { region: region.clone(), drain: *drain, why_not }).collect()
}
