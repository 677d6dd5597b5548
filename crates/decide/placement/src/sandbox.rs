//! Services whose calls harm backends, on backends of their own (Canal Mesh, section 6.2).

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::Label;

use crate::{
    input::{Backend, ELSEWHERE, HOME, PlacedService},
    missing_backends::Missing,
    plan::Plan,
};

/// The sandboxes, each with the number of services on it.
type Sandboxes<'a> = BTreeMap<&'a Label, (&'a Backend, usize)>;

/// The sandboxes of services: two in the home zone and one elsewhere, or those that there are.
///
/// One is enough, since a sandbox protects others and not the service. Where none has room, the service is refused: it stays where it is,
/// and is moved to no other backend that its calls could take down.
pub(crate) fn place(backends: &[Backend], services: Vec<&PlacedService>) -> Plan {
    let sandboxes = backends.iter().filter(|one| one.is_sandbox);
    let mut sandboxes: Sandboxes<'_> = sandboxes.map(|one| (&one.name, (one, 0))).collect();
    for name in services.iter().flat_map(|service| &service.present) {
        if let Some((_, load)) = sandboxes.get_mut(name) {
            *load += 1;
        }
    }
    let mut plan = Plan::default();
    for service in services {
        let present = service.present.iter().filter(|name| sandboxes.contains_key(*name));
        let mut set: BTreeSet<Label> = present.cloned().collect();
        fill(&mut sandboxes, service, &mut set);
        if set.is_empty() {
            plan.refused.insert(service.name.clone(), Missing::Sandbox);
        } else if set != service.present {
            plan.changes.insert(service.name.clone(), set);
        }
    }
    plan
}

/// Adds the sandboxes that a service lacks, those with the fewest services first.
fn fill(sandboxes: &mut Sandboxes<'_>, service: &PlacedService, set: &mut BTreeSet<Label>) {
    for (is_home, most) in [(true, HOME), (false, ELSEWHERE)] {
        let is_there = |one: &Backend| (one.zone == service.home) == is_home;
        let mut count = set.iter().filter(|name| is_there(sandboxes[*name].0)).count();
        while count < most {
            let free = sandboxes.values_mut().filter(|(one, load)| {
                is_there(one) && one.is_open && *load < one.capacity as usize && !set.contains(&one.name)
            });
            let Some((one, load)) = free.min_by_key(|(_, load)| *load) else { break };
            *load += 1;
            set.insert(one.name.clone());
            count += 1;
        }
    }
}
