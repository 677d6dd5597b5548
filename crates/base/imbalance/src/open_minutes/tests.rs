use fairmesh_model::Region;

use super::*;

const NOW: Minute = Minute(1_000);

fn usage(cpu_ms: u64, covered_ms: u32) -> Usage {
    Usage { cpu_us: cpu_ms * 1_000, covered_ms, ..Usage::default() }
}

fn take(open: &mut OpenMinutes, instance: &str, minute: u32, usage: Usage) -> AddOutcome {
    take_at(open, instance, minute, usage, NOW)
}

fn take_at(open: &mut OpenMinutes, instance: &str, minute: u32, usage: Usage, now: Minute) -> AddOutcome {
    let (service, place) = (cart(), Location::in_region(Region::new("eu").unwrap()));
    let instance = InstanceId::new(instance).unwrap();
    let instance = MeasuredInstance { service: &service, instance: &instance, location: &place };
    open.add(instance, (Minute(minute), usage), now)
}

fn cart() -> ServiceName {
    ServiceName::new("shop/cart").unwrap()
}

fn used(open: &OpenMinutes, minute: u32) -> u64 {
    open.rows(Minute(minute)).iter().map(|(_, row)| row.whole.used).sum()
}

#[test]
fn late_cpu_usage_within_bounds_counts_in_its_own_minute() {
    let mut open = OpenMinutes::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(60_000, 60_000)), AddOutcome::Counted);
    assert_eq!(take(&mut open, "b", 985, usage(30_000, 60_000)), AddOutcome::Counted);
    assert_eq!(take(&mut open, "b", 984, usage(30_000, 60_000)), AddOutcome::Late);
    assert_eq!(
        take(&mut open, "b", 1_001, usage(30_000, 60_000)),
        AddOutcome::Counted,
        "a clock a little ahead"
    );
    assert_eq!(take(&mut open, "b", 1_002, usage(30_000, 60_000)), AddOutcome::Future);
    assert_eq!((used(&open, 1_000), used(&open, 985)), (1_000, 500));
}

#[test]
fn cpu_usage_of_instance_is_sum_of_its_minutes() {
    let mut open = OpenMinutes::default();
    for minute in [999, 1_000] {
        take(&mut open, "a", minute, Usage { requests: 7, ..usage(30_000, 60_000) });
    }
    take(&mut open, "b", 1_000, usage(1_000, 20_000));
    let instances: Vec<_> =
        open.instances(&cart()).into_iter().map(|one| (one.cpu_us, one.covered_ms, one.requests)).collect();
    assert_eq!(instances, [(60_000_000, 120_000, 14), (1_000_000, 20_000, 0)]);
    assert!(open.instances(&ServiceName::new("shop/other").unwrap()).is_empty());
}

#[test]
fn longer_usage_report_replaces_shorter_one_of_same_minute() {
    let mut open = OpenMinutes::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(10_000, 20_000)), AddOutcome::Counted);
    assert_eq!(take(&mut open, "a", 1_000, usage(10_000, 20_000)), AddOutcome::Known);
    assert_eq!(take(&mut open, "a", 1_000, usage(60_000, 60_000)), AddOutcome::Counted);
    assert_eq!(
        take(&mut open, "a", 1_000, usage(10_000, 20_000)),
        AddOutcome::Known,
        "overtaken by a later report"
    );
    assert_eq!(used(&open, 1_000), 1_000);
    let row = &open.rows(Minute(1_000))[0].1;
    assert_eq!(row.whole.containers, 1);
}

#[test]
fn closed_usage_minutes_stay_closed_when_clock_is_set_back() {
    let mut open = OpenMinutes::default();
    take(&mut open, "a", 990, usage(1, 60_000));
    assert_eq!(open.due(Minute(1_005)), []);
    assert_eq!(open.due(Minute(1_006)), [Minute(990)]);
    open.close(Minute(990));
    assert_eq!(open.minutes(), []);
    assert_eq!(take_at(&mut open, "a", 990, usage(1, 60_000), Minute(990)), AddOutcome::Late);
    assert_eq!(take_at(&mut open, "a", 991, usage(1, 60_000), Minute(990)), AddOutcome::Counted);
}

#[test]
fn usage_of_few_seconds_counts_no_container_and_implausible_is_rejected() {
    let mut open = OpenMinutes::default();
    assert_eq!(take(&mut open, "a", 1_000, usage(1, 4_999)), AddOutcome::Counted);
    assert_eq!(open.rows(NOW), [], "known, but too short to count");
    assert!(matches!(take(&mut open, "b", 1_000, usage(u64::MAX / 1_000, 60_000)), AddOutcome::Unusable(_)));
    assert!(matches!(take(&mut open, "b", 1_000, usage(1, 0)), AddOutcome::Unusable(_)));
}

#[test]
fn changed_usage_minutes_are_returned_once_unless_marked_unwritten() {
    let mut open = OpenMinutes::default();
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
fn instances_per_usage_minute_are_bounded() {
    let mut open = OpenMinutes::default();
    for i in 0..MAX_INSTANCES {
        assert_eq!(take(&mut open, &format!("i{i}"), 1_000, usage(1, 60_000)), AddOutcome::Counted);
    }
    assert_eq!(take(&mut open, "more", 1_000, usage(1, 60_000)), AddOutcome::Full);
    assert_eq!(take(&mut open, "i7", 1_000, usage(1, 60_000)), AddOutcome::Known, "known instances stay");
}
