use proptest::prelude::*;

use super::*;

fn claim(caller: u64, demand: u64) -> Claim {
    Claim { caller, demand, held: None }
}

/// The limit: 200 calls a second.
const WHOLE: u64 = 200_000;

/// All claim every two seconds, so many times, and receive their parts; what each has in the end, in percent.
fn asked(quota: &mut Quota, now: &mut u64, times: u32, demands: &[(u64, u64)]) -> Vec<u32> {
    let mut parts = Vec::new();
    for _ in 0..times {
        *now += 2_000;
        parts = demands.iter().map(|one| told(quota, *now, *one) / 10_000_000).collect();
        assert!(quota.told() <= ALL_PARTS.into());
    }
    parts
}

/// The part of a caller that holds what it was given before.
fn told(quota: &mut Quota, now: u64, (caller, demand): (u64, u64)) -> u32 {
    let held = quota.callers.get(&caller).map(|known| known.parts);
    quota.claim(Claim { caller, demand, held }, WHOLE, now).unwrap()
}

#[test]
fn three_to_one_is_divided_so_and_who_is_left_gets_all() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let parts = asked(&mut quota, &mut now, 5, &[(1, 120_000), (2, 40_000)]);
    assert!((70..=75).contains(&parts[0]) && (23..=27).contains(&parts[1]), "{parts:?}");
    // It is there and asks for nothing.
    let parts = asked(&mut quota, &mut now, 5, &[(1, 120_000), (2, 0)]);
    assert!(parts[0] >= 93 && parts[1] <= 3, "{parts:?}");
    // It has gone.
    let parts = asked(&mut quota, &mut now, 5, &[(1, 300_000)]);
    assert!(parts[0] >= 93 && quota.callers() == 1, "{parts:?}");
    // It comes back, and both want more than there is.
    let parts = asked(&mut quota, &mut now, 5, &[(1, 300_000), (2, 600_000)]);
    assert!(parts.iter().all(|part| (46..=50).contains(part)), "{parts:?}");
}

#[test]
fn what_is_claimed_takes_nothing_that_others_want_of_their_equal_part() {
    for claimed in [u64::MAX, 1_000_000_000_000] {
        let (mut quota, mut now) = (Quota::default(), 0);
        asked(&mut quota, &mut now, 5, &[(1, 90_000), (2, 30_000)]);
        // 45 % and 15 % are wanted, and a third is an equal part.
        let parts = asked(&mut quota, &mut now, 10, &[(1, 90_000), (2, 30_000), (3, claimed)]);
        assert!(parts[0] >= 35 && parts[1] >= 16 && parts[2] <= 46, "{parts:?}");
    }
}

#[test]
fn nobody_holds_more_than_it_was_given_whatever_it_claims() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let honest = asked(&mut quota, &mut now, 5, &[(1, 150_000)]);
    for _ in 0..10 {
        now += 2_000;
        let liar = Claim { held: Some(ALL_PARTS), ..claim(2, 0) };
        quota.claim(liar, WHOLE, now).unwrap();
        quota.claim(claim(3, 0), WHOLE, now).unwrap();
        assert!(told(&mut quota, now, (1, 150_000)) / 10_000_000 >= honest[0] - 3);
    }
}

#[test]
fn a_part_that_is_not_given_back_is_free_in_the_end() {
    let (mut quota, mut now) = (Quota::default(), 0);
    asked(&mut quota, &mut now, 5, &[(1, 150_000)]);
    let all = quota.callers[&1].parts;
    let mut came = |quota: &mut Quota, times| {
        let mut part = 0;
        for _ in 0..times {
            now += 2_000;
            quota.claim(Claim { held: Some(all), ..claim(1, u64::MAX) }, WHOLE, now).unwrap();
            part = told(quota, now, (2, 60_000));
        }
        part / 10_000_000
    };
    assert!(came(&mut quota, 3) <= 4, "responses may have been lost");
    assert!(came(&mut quota, 5) >= 30, "not as many");
}

#[test]
fn after_a_restart_parts_are_believed_as_far_as_they_add_up_and_small_ones_first() {
    let mut quota = Quota::default();
    let held = |caller, held| Claim { held: Some(held), ..claim(caller, 100_000) };
    quota.note(held(1, 200_000_000), 0);
    quota.note(held(2, ALL_PARTS), 0);
    quota.note(held(3, 300_000_000), 0);
    quota.note(claim(4, 100_000), 0);
    assert!(quota.claim(held(1, 200_000_000), WHOLE, 1_000).unwrap() >= 200_000_000);
    assert_eq!(quota.claim(held(3, 300_000_000), WHOLE, 1_000).map(|parts| parts / 10_000_000), Some(24));
    assert_eq!(quota.claim(claim(4, 100_000), WHOLE, 1_000), Some(0), "the others have all");
    let liar = quota.claim(held(2, ALL_PARTS), WHOLE, 1_000).unwrap();
    assert!(liar <= 260_000_000 && quota.told() <= ALL_PARTS.into(), "{liar}");
}

#[test]
fn little_more_changes_nothing_and_too_many_callers_are_left_alone() {
    let (mut quota, mut now) = (Quota::default(), 0);
    asked(&mut quota, &mut now, 10, &[(1, 50_000), (2, 50_000)]);
    let (one, two) = (quota.callers[&1].parts, quota.callers[&2].parts);
    asked(&mut quota, &mut now, 10, &[(1, 52_000), (2, 50_000)]);
    assert_eq!(quota.callers[&1].parts, one);
    assert!(quota.callers[&2].parts < two, "what is given back is there for others, be it little");
    for caller in 3..=MAX_CALLERS as u64 {
        assert!(quota.claim(claim(caller, 1), WHOLE, now).is_some());
    }
    assert_eq!(quota.claim(claim(0, 1), WHOLE, now), None);
}

#[test]
fn those_who_come_late_and_ask_for_little_get_something() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let mut demands: Vec<_> = (0..10).map(|caller| (caller, 100_000)).collect();
    asked(&mut quota, &mut now, 50, &demands);
    demands.extend((10..15).map(|caller| (caller, 2_000)));
    asked(&mut quota, &mut now, 10, &demands);
    let late: Vec<_> = (10..15).map(|caller| quota.callers[&caller].parts).collect();
    assert!(late.iter().all(|parts| *parts > 0), "{late:?}");
}

#[test]
fn who_was_heard_of_once_is_not_forgotten_before_it_may_have_been_told_to_ask_again() {
    let mut quota = Quota::default();
    quota.claim(claim(1, 1_000), WHOLE, 0).unwrap();
    assert!(quota.expire(10_000));
    quota.claim(claim(1, 1_000), WHOLE, 10_000).unwrap();
    assert!(quota.expire(40_000) && !quota.expire(40_001), "three of its periods");
}

#[test]
fn what_a_caller_was_told_to_give_back_is_free_once_it_says_so() {
    let mut quota = Quota::default();
    let held = |caller, demand, held| Claim { held: Some(held), ..claim(caller, demand) };
    let all = quota.claim(claim(1, 100_000), WHOLE, 0).unwrap();
    let first = quota.claim(claim(2, 100_000), WHOLE, 0).unwrap();
    assert!(quota.claim(held(1, 100_000, all), WHOLE, 2_000).unwrap() < all / 10 * 6);
    // That may have been lost.
    assert_eq!(quota.claim(held(2, 100_000, first), WHOLE, 2_000), Some(ALL_PARTS - all));
    let less = quota.claim(held(1, 100_000, all), WHOLE, 4_000).unwrap();
    assert_eq!(quota.claim(held(2, 100_000, ALL_PARTS - all), WHOLE, 4_000), Some(ALL_PARTS - all));
    quota.claim(held(1, 100_000, less), WHOLE, 6_000).unwrap();
    assert!(quota.claim(held(2, 100_000, ALL_PARTS - all), WHOLE, 6_000).unwrap() > ALL_PARTS / 10 * 4);
}

proptest! {
    #[test]
    fn whatever_is_asked_for_in_whatever_order_all_never_have_more_than_the_whole(
        claims in proptest::collection::vec((0..8_u64, 0..u64::MAX, proptest::option::of(0..u32::MAX), 0..3_000_u64), 1..200),
    ) {
        let (mut quota, mut now) = (Quota::default(), 0);
        for (caller, demand, held, after) in claims {
            now += after;
            let claim = Claim { caller, demand, held };
            if now < 6_000 {
                quota.note(claim, now);
                continue;
            }
            let parts = quota.claim(claim, WHOLE, now).unwrap();
            prop_assert!(parts <= ALL_PARTS && quota.told() <= u64::from(ALL_PARTS), "{}", quota.told());
        }
    }

    #[test]
    fn whatever_answers_are_lost_all_never_hold_more_than_the_whole(
        claims in proptest::collection::vec((0..8_u64, 0..10_000_000_u64, any::<bool>(), 0..500_u64), 1..300),
    ) {
        let (mut quota, mut now, mut holds) = (Quota::default(), 0, std::collections::BTreeMap::new());
        let mut lost = std::collections::BTreeMap::<u64, u32>::new();
        for (caller, demand, arrives, after) in claims {
            now += after;
            // Not so many in a row that it has had time enough to give back.
            let lost = lost.entry(caller).or_default();
            *lost = if arrives || *lost == 2 { 0 } else { *lost + 1 };
            let arrives = *lost == 0;
            // Those who were forgotten have gone.
            let _ = quota.expire(now);
            holds.retain(|caller, _| quota.callers.contains_key(caller));
            let held = holds.get(&caller).copied();
            let parts = quota.claim(Claim { caller, demand, held }, WHOLE, now).unwrap();
            if arrives {
                holds.insert(caller, parts);
            }
            let all = holds.values().copied().map(u64::from).sum::<u64>();
            prop_assert!(all <= u64::from(ALL_PARTS), "{all} {holds:?}");
        }
    }

    #[test]
    fn demands_that_stay_come_to_parts_in_their_proportion_and_who_asks_for_more_gets_no_less(
        demands in proptest::collection::vec(0..10_000_000_u64, 1..20),
    ) {
        let (mut quota, mut now) = (Quota::default(), 0);
        let demands: Vec<_> = (0..).zip(demands).collect();
        asked(&mut quota, &mut now, 60, &demands);
        let told: Vec<_> = demands.iter().map(|(caller, _)| quota.callers[caller].parts).collect();
        prop_assert!(quota.told() >= u64::from(ALL_PARTS) * 85 / 100, "little is left over: {}", quota.told());
        for (one, (_, less)) in told.iter().zip(&demands) {
            for (other, (_, more)) in told.iter().zip(&demands) {
                // Up to what is too little to be told.
                prop_assert!(less > more || f64::from(*one) <= f64::from(*other) * 1.12 + 1e6, "{:?} {:?}", told, demands);
            }
        }
    }
}
