use fairmesh_model::InstanceId;

use super::*;

fn slots(n: usize) -> Slots {
    let slots = Slots::default();
    let ids: Vec<_> = (0..n).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = slots.assign(&ids);
    slots
}

#[test]
fn every_index_has_its_own_place() {
    let mut expected = (0, 0);
    for index in 0..10_000 {
        assert_eq!(place(index), expected, "{index}");
        expected.1 += 1;
        if expected.1 == FIRST << expected.0 {
            expected = (expected.0 + 1, 0);
        }
    }
    assert!(place(i32::MAX as u32).0 <= FURTHER);
}

#[test]
fn every_index_has_its_own_count() {
    let slots = slots(1000);
    for index in 0..1000 {
        (0..index % 7).for_each(|_| slots.begin(index));
    }
    assert!((0..1000).all(|index| slots.outstanding(index) == index % 7));
}

#[test]
fn an_index_that_nobody_has_counts_nothing() {
    let slots = Slots::default();
    for index in [70, u32::MAX] {
        slots.begin(index);
        slots.finish(index, Outcome::Unreachable, 0);
        assert_eq!((slots.outstanding(index), slots.penalised_until(index)), (0, 0));
    }
}

#[test]
fn every_index_keeps_its_own_report() {
    let slots = slots(100);
    let load = |index| LoadReport { requests: Some(index), ..LoadReport::default() };
    for index in 0..100 {
        assert_eq!(slots.reported(index), None);
        slots.report(index, load(index), u64::from(index) + 1);
        slots.report(index, LoadReport::default(), 9_999);
    }
    for index in 0..100 {
        assert_eq!(slots.reported(index), Some(Reported { load: load(index), at: u64::from(index) + 1 }));
    }
    for nobody in [5_000, u32::MAX] {
        slots.report(nobody, load(1), 1);
        assert_eq!(slots.reported(nobody), None);
    }
}

#[test]
fn outstanding_never_drops_below_zero() {
    let slots = slots(1);
    slots.begin(0);
    slots.finish(0, Outcome::Ok, 0);
    slots.finish(0, Outcome::Ok, 0);
    assert_eq!(slots.outstanding(0), 0);
}

#[test]
fn counts_of_many_threads_add_up() {
    let slots = slots(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for call in 0..10_000_u32 {
                    let outcome = if call % 3 == 0 { Outcome::Failed } else { Outcome::Ok };
                    slots.begin(call % 3);
                    slots.finish(call % 3, outcome, 0);
                }
            });
        }
    });
    assert!((0..3).all(|index| slots.outstanding(index) == 0));
    slots.finish(0, Outcome::Ok, 0);
    assert_eq!(slots.failures(0), 0);
}

#[test]
fn an_unreachable_endpoint_is_penalised_at_once_and_longer_each_time() {
    let slots = slots(1);
    let mut ends = Vec::new();
    for _ in 0..10 {
        slots.finish(0, Outcome::Unreachable, 1000);
        ends.push(slots.penalised_until(0));
    }
    assert_eq!(ends[0], 100_001_000);
    assert!(ends.windows(2).all(|pair| pair[0] <= pair[1]));
    assert_eq!(ends[9], 12_800_001_000);
}

#[test]
fn failed_answers_count_from_the_third_in_a_row() {
    let slots = slots(40);
    let end = |outcome| slots.finish(39, outcome, 1000);
    let seen = || (slots.failures(39), slots.penalised_until(39));
    end(Outcome::Failed);
    end(Outcome::Failed);
    end(Outcome::Ok);
    end(Outcome::Failed);
    end(Outcome::Failed);
    end(Outcome::Unknown);
    assert_eq!(seen(), (2, 0));
    end(Outcome::Failed);
    assert_eq!(seen(), (3, 100_001_000));
    slots.finish(38, Outcome::Ok, 1000);
    assert_eq!(seen(), (3, 100_001_000), "what others do well forgives nothing");
    end(Outcome::Ok);
    assert_eq!(seen(), (0, 0));
}

#[test]
fn it_is_known_how_many_have_failed() {
    let slots = slots(3);
    for (index, outcome) in [(0, Outcome::Failed), (0, Outcome::Unreachable), (1, Outcome::Failed)] {
        slots.finish(index, outcome, 1);
    }
    assert_eq!(slots.troubled(), 2);
    slots.forgive(0);
    slots.forgive(0);
    slots.forgive(2);
    assert_eq!(slots.troubled(), 1);
    // Answers enough for the failure among them to be forgotten.
    (0..1000).for_each(|_| slots.finish(1, Outcome::Ok, 2));
    assert_eq!(slots.troubled(), 0);
    slots.finish(2, Outcome::Failed, 3);
    let _ = slots.assign(&[InstanceId::new("another").unwrap()]);
    assert_eq!(slots.troubled(), 0, "whoever is gone is held nothing against");
}

#[test]
fn who_has_no_room_is_passed_over_for_a_moment_and_nothing_is_held_against_it() {
    let slots = Slots::default();
    slots.ensure(0);
    for now in 1..=10 {
        slots.begin(0);
        slots.finish(0, Outcome::Full, now);
    }
    assert_eq!((slots.failures(0), slots.outstanding(0)), (0, 0));
    assert_eq!(slots.penalised_until(0), 20_000_010);
    slots.begin(0);
    slots.finish(0, Outcome::Ok, 20);
    assert_eq!((slots.penalised_until(0), slots.troubled()), (0, 0), "a call that ends makes room");
}
