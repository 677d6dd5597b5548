use fairmesh_model::Region;

use super::*;

const NOW: Minute = Minute(1_000);

fn usage(cpu_ms: u64, covered_ms: u32) -> Usage {
    Usage { cpu_us: cpu_ms * 1_000, covered_ms, ..Usage::default() }
}

fn take(open: &mut Open, instance: &str, minute: u32, usage: Usage) -> Taken {
    take_at(open, instance, minute, usage, NOW)
}

fn take_at(open: &mut Open, instance: &str, minute: u32, usage: Usage, now: Minute) -> Taken {
    let (service, place) = (cart(), Location::in_region(Region::new("eu").unwrap()));
    let instance = InstanceId::new(instance).unwrap();
    open.take((&service, &instance, &place), (Minute(minute), usage), now)
}

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn used(open: &Open, minute: u32) -> u64 {
    open.rows(Minute(minute)).iter().map(|(_, row)| row.whole.used).sum()
}

#[test]
fn whoever_is_late_within_bounds_keeps_its_own_minute() {
    let mut open = Open::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(60_000, 60_000)), Taken::Counted);
    assert_eq!(take(&mut open, "b", 985, usage(30_000, 60_000)), Taken::Counted);
    assert_eq!(take(&mut open, "b", 984, usage(30_000, 60_000)), Taken::Late);
    assert_eq!(take(&mut open, "b", 1_001, usage(30_000, 60_000)), Taken::Counted, "a clock a little ahead");
    assert_eq!(take(&mut open, "b", 1_002, usage(30_000, 60_000)), Taken::Future);
    assert_eq!((used(&open, 1_000), used(&open, 985)), (1_000, 500));
}

#[test]
fn the_same_again_counts_once_and_the_fuller_report_of_a_minute_wins() {
    let mut open = Open::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(10_000, 20_000)), Taken::Counted);
    assert_eq!(take(&mut open, "a", 1_000, usage(10_000, 20_000)), Taken::Known);
    assert_eq!(take(&mut open, "a", 1_000, usage(60_000, 60_000)), Taken::Counted);
    assert_eq!(take(&mut open, "a", 1_000, usage(10_000, 20_000)), Taken::Known, "overtaken on its way");
    assert_eq!(used(&open, 1_000), 1_000);
    let row = &open.rows(Minute(1_000))[0].1;
    assert_eq!(row.whole.containers, 1);
}

#[test]
fn what_is_closed_stays_closed_even_when_the_clock_is_put_back() {
    let mut open = Open::default();
    take(&mut open, "a", 990, usage(1, 60_000));
    assert_eq!(open.due(Minute(1_005)), []);
    assert_eq!(open.due(Minute(1_006)), [Minute(990)]);
    open.close(Minute(990));
    assert_eq!(open.minutes(), []);
    assert_eq!(take_at(&mut open, "a", 990, usage(1, 60_000), Minute(990)), Taken::Late);
    assert_eq!(take_at(&mut open, "a", 991, usage(1, 60_000), Minute(990)), Taken::Counted);
}

#[test]
fn a_moment_is_no_container_and_nonsense_is_refused() {
    let mut open = Open::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(1, 4_999)), Taken::Counted);
    assert_eq!(open.rows(NOW), [], "heard of, but not long enough to count");
    assert!(matches!(take(&mut open, "b", 1_000, usage(u64::MAX / 1_000, 60_000)), Taken::Unusable(_)));
    assert!(matches!(take(&mut open, "b", 1_000, usage(1, 0)), Taken::Unusable(_)));
}

#[test]
fn what_changed_is_told_once_and_again_when_it_could_not_be_written() {
    let mut open = Open::default();
    take(&mut open, "a", 999, usage(1, 60_000));
    take(&mut open, "a", 1_000, usage(1, 60_000));
    take(&mut open, "b", 1_000, usage(1, 60_000));
    assert_eq!(open.take_changed().len(), 2);
    assert_eq!(open.take_changed().len(), 0);
    open.still_changed(Minute(1_000), cart());
    open.still_changed(Minute(5), cart());
    assert_eq!(open.take_changed().into_iter().collect::<Vec<_>>(), [(Minute(1_000), cart())]);
    assert_eq!(open.usages(Minute(1_000), &cart()).len(), 2);
}

#[test]
fn a_minute_holds_so_many_instances_and_no_more() {
    let mut open = Open::default();
    for i in 0..MAX_INSTANCES {
        assert_eq!(take(&mut open, &format!("i{i}"), 1_000, usage(1, 60_000)), Taken::Counted);
    }
    assert_eq!(take(&mut open, "more", 1_000, usage(1, 60_000)), Taken::Full);
    assert_eq!(take(&mut open, "i7", 1_000, usage(1, 60_000)), Taken::Known, "whoever is in stays in");
}
