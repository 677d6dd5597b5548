use std::{collections::BTreeMap, net::SocketAddr};

use crate::Place;

/// Maximum number of targets of an agent in one round.
pub const MAX_TARGETS: usize = 8;
/// Maximum number of places that are probed, in order of their names.
pub const MAX_PLACES: usize = 64;
/// Number of agents that probe the same place in one round. More than one, to tell a bad machine from a bad network.
const PROBERS: u64 = 3;

/// Computes the targets of each agent in a round.
///
/// The agents of a place share its destinations: each takes the next few, from a start that advances with the round.
/// Every ordered pair of places is therefore probed within `ceil(places / (agents of the place * MAX_TARGETS))` rounds.
/// A place probes itself if it has two agents or more.
pub fn plan(
    agents: &BTreeMap<SocketAddr, Place>,
    round: u64,
    seed: u64,
) -> BTreeMap<SocketAddr, Vec<SocketAddr>> {
    let mut places = BTreeMap::<&Place, Vec<SocketAddr>>::new();
    for (address, place) in agents {
        places.entry(place).or_default().push(*address);
    }
    let places: Vec<_> = places.into_iter().take(MAX_PLACES).collect();
    let mut planned = BTreeMap::new();
    for (place, probers) in &places {
        let destinations: Vec<_> =
            places.iter().filter(|(other, members)| other != place || members.len() > 1).collect();
        let share = destinations.len().min(MAX_TARGETS) as u64;
        let slots = share * probers.len() as u64;
        for (number, prober) in (0..).zip(probers) {
            let slots_here = (number * share..(number + 1) * share).filter(|slot| {
                // The remaining destinations have enough probers already.
                *slot < PROBERS * destinations.len() as u64
            });
            let targets = slots_here.map(|slot| {
                let at = round.wrapping_mul(slots).wrapping_add(seed).wrapping_add(slot);
                let (_, members) = destinations[(at % destinations.len() as u64) as usize];
                member(members, at.wrapping_add(round), prober)
            });
            planned.insert(*prober, targets.collect());
        }
    }
    planned
}

/// Returns the member at position `at`, skipping the prober itself.
fn member(members: &[SocketAddr], at: u64, prober: &SocketAddr) -> SocketAddr {
    let index = (at % members.len() as u64) as usize;
    let chosen = members[index];
    if chosen == *prober { members[(index + 1) % members.len()] } else { chosen }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fairmesh_model::{Region, Zone};

    use super::*;

    /// A fleet with `agents` agents in each of `zones` zones, in two regions.
    fn fleet(zones: u8, agents: u8) -> BTreeMap<SocketAddr, Place> {
        let mut fleet = BTreeMap::new();
        for zone in 0..zones {
            let region = Region::new(["eu", "us"][usize::from(zone % 2)]).unwrap();
            let place = Place { region, zone: Some(Zone::new(format!("z{zone:02}")).unwrap()) };
            for agent in 0..agents {
                fleet.insert(SocketAddr::from(([10, 0, zone, agent], 80)), place.clone());
            }
        }
        fleet
    }

    #[test]
    fn every_ordered_pair_of_zones_is_probed_within_its_rounds() {
        for (zones, agents, seed) in [(2, 1, 0), (3, 2, 7), (12, 1, 1), (20, 2, u64::MAX), (5, 9, 3)] {
            let fleet = fleet(zones, agents);
            let rounds = u64::from(zones).div_ceil(u64::from(agents) * MAX_TARGETS as u64);
            let mut probed = BTreeSet::new();
            for round in 5..5 + rounds {
                for (prober, targets) in plan(&fleet, round, seed) {
                    probed.extend(targets.iter().map(|target| (&fleet[&prober], &fleet[target])));
                }
            }
            let own = if agents > 1 { usize::from(zones) } else { 0 };
            let pairs = usize::from(zones) * (usize::from(zones) - 1) + own;
            assert_eq!(probed.len(), pairs, "{zones} zones of {agents} agents");
        }
    }

    #[test]
    fn zone_probe_count_is_linear_in_agents_and_bounded_by_zone_pairs() {
        for (zones, agents) in [(1, 1), (2, 1), (40, 1), (3, 200), (64, 4)] {
            let fleet = fleet(zones, agents);
            let planned = plan(&fleet, 9, 4);
            let most = planned.values().map(Vec::len).max().unwrap();
            assert!(most <= MAX_TARGETS.min(usize::from(zones)), "{most} targets of one agent");
            let total: usize = planned.values().map(Vec::len).sum();
            assert!(total <= PROBERS as usize * usize::from(zones) * usize::from(zones), "{total} probes");
            for (prober, targets) in &planned {
                let unique: BTreeSet<_> = targets.iter().collect();
                assert!(unique.len() == targets.len() && !unique.contains(prober), "{prober}: {targets:?}");
            }
        }
    }

    #[test]
    fn probe_plan_is_equal_on_every_agent_and_rotates_each_round() {
        let fleet = fleet(30, 1);
        assert_eq!(plan(&fleet, 3, 1), plan(&fleet, 3, 1));
        assert_ne!(plan(&fleet, 3, 1), plan(&fleet, 4, 1));
        assert!(plan(&BTreeMap::new(), 0, 0).is_empty());
    }
}
