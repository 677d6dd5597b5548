use super::name;
use fairmesh_model::*;
use proptest::{collection, option, prelude::*, sample::select};

pub(super) fn traffic() -> impl Strategy<Value = Traffic> {
    let shares = collection::btree_map(name::<Region>(), traffic_shares(), 1..4);
    let by_hand = (shares, any::<bool>()).prop_map(|(shares, is_shadow)| {
        let mode = if is_shadow { TrafficMode::Shadow } else { TrafficMode::Active };
        Traffic { mode, shares, ..Traffic::default() }
    });
    prop_oneof![by_hand, planned_traffic()]
}

fn planned_traffic() -> impl Strategy<Value = Traffic> {
    let load = |percent: u32| Share::of_millionths(percent * 10_000).unwrap();
    let rings = option::of((10..50_u32, 50..=100_u32)).prop_map(move |loads| {
        let ring = |(ring, percent)| LoadRing { ring, load: load(percent) };
        let rings = |(near, far)| [(Ring::Region, near), (Ring::Any, far)].map(ring).to_vec();
        loads.map(rings).unwrap_or_default()
    });
    let classes = collection::btree_set(name::<Label>(), 0..4);
    let metric = option::of(("[a-z]{1,8}", 1..1_000_u32));
    let mode = prop_oneof![Just(TrafficMode::Active), Just(TrafficMode::Shadow), Just(TrafficMode::Hold)];
    let planner = select(vec![TrafficPlanner::Rings, TrafficPlanner::Optimizer]);
    (rings, classes, metric, mode, planner).prop_map(|(rings, classes, metric, mode, planner)| Traffic {
        planner: Some(planner),
        mode,
        rings,
        classes: classes.into_iter().collect(),
        load: metric
            .filter(|_| planner == TrafficPlanner::Rings)
            .map(|(name, full_scale)| LoadMetric { name, full_scale }),
        ..Traffic::default()
    })
}

fn traffic_shares() -> impl Strategy<Value = TrafficShares> {
    let classes = collection::btree_map(name::<Label>(), region_shares(), 1..4);
    (option::of(region_shares()), classes).prop_map(|(default, classes)| TrafficShares { default, classes })
}

fn region_shares() -> impl Strategy<Value = RegionShares> {
    collection::btree_map(name::<Region>(), 10_000..200_000_u32, 0..5).prop_map(|to| {
        let dropped = 1_000_000 - to.values().sum::<u32>();
        let share = |millionths| Share::of_millionths(millionths).unwrap();
        RegionShares {
            to: to.into_iter().map(|(region, millionths)| (region, share(millionths))).collect(),
            dropped: share(dropped),
        }
    })
}

pub(super) fn region_table() -> impl Strategy<Value = RegionTable> {
    let confirmed = option::of((any::<u64>(), any::<u64>()));
    let subsets = collection::btree_map(name::<Region>(), 1..u32::MAX, 0..4);
    (traffic_shares(), collection::btree_set(name::<Zone>(), 0..4), subsets, confirmed).prop_map(
        |(shares, zones, subsets, confirmed)| {
            let planned = confirmed.map(|(round, at_ms)| TableOrigin::Planned(Confirmation { round, at_ms }));
            let zones = zones.into_iter().map(|zone| (zone.clone(), [(zone, Share::ALL)].into())).collect();
            RegionTable { shares, zones, subsets, origin: planned.unwrap_or(TableOrigin::ByHand) }
        },
    )
}
