//! Every zone of a ring gets calls in proportion to its capacity (Uber, zone weights and host-aware balancing;
//! ServiceRouter §3.4.2).

use fairmesh_model::{Capacities, Capacity, HostType, Zone};

use super::*;

/// Number of clients. Each makes one call, so that calls are independent of each other and of subsets.
const CLIENTS: u64 = 4000;

/// A fleet with one ring: regions `eu` and `near`, two zones each, and machines of three types.
fn fleet(sizes: [usize; 4]) -> Fleet {
    let places = [("eu", "a", "slow"), ("eu", "b", "usual"), ("near", "c", "fast"), ("near", "d", "usual")];
    let mut fleet = Fleet::many(ServiceKind::Replicated, 0);
    for ((place, zone, host_type), size) in places.into_iter().zip(sizes) {
        fleet.endpoints.extend((0..size).map(|i| {
            let mut endpoint = endpoint(&format!("{zone}{i}"), place);
            endpoint.location.zone = Some(Zone::new(zone).unwrap());
            endpoint.location.host_type = Some(HostType::new(host_type).unwrap());
            endpoint
        }));
    }
    let speeds = [("slow", 700), ("fast", 1400)];
    let speeds = speeds.map(|(name, speed)| (HostType::new(name).unwrap(), speed)).into();
    fleet.hosts = Hosts::new(speeds, Vec::new()).unwrap();
    fleet
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn every_zone_gets_calls_in_proportion_to_capacity(
        sizes in prop::array::uniform4(1..40_usize),
        subset in 5..25_u32,
        first in any::<u64>(),
    ) {
        let mut fleet = fleet(sizes);
        fleet.policy.balancing = Balancing { subset, ..Balancing::default() };
        let wanted = Capacities::of(&fleet.endpoints, &fleet.hosts);
        let mut got = Capacities::default();
        for i in 0..CLIENTS {
            fleet.client = mix64(first.wrapping_add(i));
            let table = fleet.compile(None);
            let picked = table.pick(&PickParams::default(), 0, first ^ i).unwrap();
            got.add(&table.target(picked.index).location, 1);
        }
        for (place, capacity) in &wanted.zones {
            let share = capacity.power as f64 / wanted.total.power as f64;
            let found = got.zones.get(place).map_or(0.0, |got| got.power as f64) / CLIENTS as f64;
            // One in 150,000 binomial samples is outside these bounds.
            let chance = 4.5 * (share * (1.0 - share) / CLIENTS as f64).sqrt();
            // A strong endpoint belongs to every subset in which it competes, and so also competes with itself: an
            // effect of first order in 1/k.
            let each = |capacity: &Capacity| capacity.power as f64 / capacity.endpoints as f64;
            let narrow = share * (each(capacity) / each(&wanted.total) - 1.0).abs() / f64::from(subset);
            prop_assert!(
                (found - share).abs() <= chance + narrow,
                "{place:?}: {found:.4} of the calls, {share:.4} of the capacity"
            );
        }
    }
}
