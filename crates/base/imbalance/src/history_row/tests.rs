use fairmesh_model::{Cluster, HostType, Location, Zone};
use proptest::prelude::*;

use super::*;

fn place(region: &str, cluster: &str, host_type: Option<&str>) -> Location {
    Location {
        region: Region::new(region).unwrap(),
        zone: Some(Zone::new(format!("{region}-a")).unwrap()),
        cluster: Some(Cluster::new(cluster).unwrap()),
        host_type: host_type.map(|name| HostType::new(name).unwrap()),
    }
}

fn row(containers: &[(Location, u64)]) -> Row {
    Row::of_minute(containers.iter().map(|(place, used)| (place, *used)))
}

/// `n` containers in a cluster: the first uses `p99`, and the rest use as much as makes the mean `mean`.
fn cluster(name: &str, n: u64, mean: u64, p99: u64) -> Vec<(Location, u64)> {
    let rest = n * mean - p99;
    let each = rest / (n - 1);
    let first = each + rest % (n - 1);
    let used = [p99, first].into_iter().chain(std::iter::repeat_n(each, n as usize - 2));
    used.map(|used| (place("eu", name, Some("old")), used)).collect()
}

#[test]
fn example_of_paper_has_imbalance_index_1_25() {
    let row = row(&cluster("c1", 10, 4_000, 5_000));
    assert_eq!(row.whole, Area { containers: 10, used: 40_000, peak: 50_000 });
    assert_eq!(row.whole.wasted(), 10_000);
    assert_eq!(row.whole.index(), Some(1_250));
}

#[test]
fn imbalance_of_one_cluster_is_not_hidden_by_balanced_ones() {
    // One service with five small clusters at 110 % and one big cluster at 140 %.
    let mut all = Vec::new();
    for name in ["a", "b", "c", "d", "e"] {
        all.extend(cluster(name, 3, 2_000, 2_200));
    }
    all.extend(cluster("big", 60, 4_000, 5_600));
    let row = row(&all);
    let slice = |name: &str| row.slices[&(Dimension::Cluster, Arc::from(name))];
    let own_index = |slice: Slice| slice.own_peak * 1000 / slice.area.used;
    assert_eq!(own_index(slice("eu/a")), 1_100);
    assert_eq!(own_index(slice("eu/big")), 1_400);

    // The average of ratios is 115 %: five small clusters outweigh the big one.
    let clusters: Vec<_> =
        row.slices.iter().filter(|((d, _), _)| *d == Dimension::Cluster).map(|(_, slice)| *slice).collect();
    let average = clusters.iter().map(|slice| own_index(*slice)).sum::<u64>() / clusters.len() as u64;
    assert_eq!(average, 1_150);

    // Sums show the big cluster, both by cluster and for the service.
    let own: u64 = clusters.iter().map(|slice| slice.own_peak).sum();
    let used: u64 = clusters.iter().map(|slice| slice.area.used).sum();
    assert!(own * 1000 / used > 1_360, "{}", own * 1000 / used);
    assert!(row.whole.index().unwrap() >= 1_400, "{:?}", row.whole.index());
    // The clusters' shares add up exactly to the whole.
    let mut sum = Area::default();
    clusters.iter().for_each(|slice| sum += slice.area);
    assert_eq!(sum, row.whole);
}

#[test]
fn imbalance_index_weights_minutes_by_cpu_usage() {
    // An idle minute has 200 % and a busy minute 110 %. The result is weighted by area, so it is not the average of
    // 155 %.
    let mut hour = row(&cluster("c", 10, 100, 200));
    hour.add(&row(&cluster("c", 10, 10_000, 11_000)));
    assert_eq!(hour.minutes, 2);
    assert_eq!(hour.whole, Area { containers: 20, used: 101_000, peak: 112_000 });
    assert_eq!(hour.whole.index(), Some(1_108));
}

#[test]
fn single_imbalance_cause_accounts_for_all_waste() {
    let spread = |places: [Location; 2]| {
        let [a, b] = places;
        row(&[(a.clone(), 4_000), (a, 4_000), (b.clone(), 2_000), (b, 2_000)]).causes
    };
    let wasted = 4_000;
    let regions = spread([place("eu", "c", Some("old")), place("us", "c", Some("old"))]);
    assert_eq!(regions, Causes { regions: wasted, ..Causes::default() });
    let types = spread([place("eu", "c", Some("old")), place("eu", "c", Some("new"))]);
    assert_eq!(types, Causes { host_types: wasted, ..Causes::default() });
    let within = spread([place("eu", "c", Some("old")), place("eu", "d", Some("old"))]);
    assert_eq!(within, Causes { within: wasted, ..Causes::default() });
    let unknown = spread([place("eu", "c", None), place("eu", "d", None)]);
    assert_eq!(unknown, Causes { unknown: wasted, ..Causes::default() });
}

#[test]
fn waste_is_divided_among_all_four_imbalance_causes() {
    let row = row(&[
        (place("eu", "c", Some("old")), 10),
        (place("eu", "c", Some("old")), 8),
        (place("eu", "c", Some("new")), 5),
        (place("eu", "c", None), 4),
        (place("us", "c", Some("old")), 6),
        (place("us", "c", Some("old")), 6),
    ]);
    // P = 10, P(us) = 6: two containers × 4. P(eu,new) = 5: one container × 5. eu/old: 10 - 8. No host type: 10 - 4.
    assert_eq!(row.causes, Causes { regions: 8, host_types: 5, within: 2, unknown: 6 });
    assert_eq!(row.causes.total(), row.whole.wasted());
}

#[test]
fn imbalance_slices_are_bounded_and_add_up_to_whole() {
    let many: Vec<_> = (0..500).map(|i| (place("eu", &format!("c{i:03}"), None), 100 + i)).collect();
    let row = row(&many);
    let clusters = || row.slices.iter().filter(|((dimension, _), _)| *dimension == Dimension::Cluster);
    assert_eq!(clusters().count(), MAX_SLICES);
    let mut sum = Area::default();
    clusters().for_each(|(_, slice)| sum += slice.area);
    assert_eq!(sum, row.whole);
    assert_eq!(row.slices[&(Dimension::Cluster, Arc::from(OTHERS))].area.containers, 301);
}

#[test]
fn imbalance_minute_without_containers_is_empty() {
    assert_eq!(Row::of_minute([]), Row::default());
    assert_eq!(Row::default().whole.index(), None);
}

fn fleet(most: usize) -> impl Strategy<Value = Vec<(Location, u64)>> {
    let host_type = prop_oneof![Just(None), Just(Some("old")), Just(Some("new"))];
    let region = prop_oneof![Just("eu"), Just("us"), Just("asia")];
    let container = (region, host_type, prop_oneof![Just("c"), Just("d")], 0..64_000u64);
    let container = container.prop_map(|(region, host, cluster, used)| (place(region, cluster, host), used));
    prop::collection::vec(container, 1..most)
}

proptest! {
    #[test]
    fn imbalance_by_every_dimension_and_cause_adds_up_to_whole(fleet in fleet(400)) {
        let row = row(&fleet);
        for dimension in Dimension::ALL {
            let mut sum = Area::default();
            let slices = row.slices.iter().filter(|((of, _), _)| *of == dimension);
            slices.for_each(|(_, slice)| sum += slice.area);
            prop_assert_eq!(sum, row.whole);
        }
        prop_assert_eq!(row.causes.total(), row.whole.wasted());
    }

    #[test]
    fn imbalance_causes_are_not_negative_below_hundred_containers(fleet in fleet(100)) {
        let Row { causes, whole, slices, .. } = row(&fleet);
        let parts = [causes.regions, causes.host_types, causes.within, causes.unknown, whole.wasted()];
        prop_assert!(parts.iter().all(|part| *part >= 0), "{parts:?}");
        prop_assert!(slices.values().all(|slice| slice.own_peak <= slice.area.peak));
        prop_assert!(slices.values().all(|slice| slice.own_peak >= slice.area.used));
    }

    #[test]
    fn imbalance_row_is_independent_of_container_order(fleet in fleet(150), turn in 0..150usize) {
        let mut turned = fleet.clone();
        let by = turn % turned.len();
        turned.rotate_left(by);
        prop_assert_eq!(row(&fleet), row(&turned));
    }
}
