//! How a limit of the whole mesh is divided among its callers.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use fairmesh_model::rate_limit_quota::{ALL_PARTS, Claim, MAX_CALLERS, Quota};
use proptest::prelude::*;

fn claim(caller: u64, demand: u64) -> Claim {
    Claim { caller, identity: caller, demand, held: None }
}

/// The limit: 200 calls per second.
const WHOLE: u64 = 200_000;

/// Lets every caller claim `times` times at intervals of two seconds and use its grants. Returns the final parts in
/// percent.
fn claim_repeatedly(quota: &mut Quota, now: &mut u64, times: u32, demands: &[(u64, u64)]) -> Vec<u32> {
    let mut parts = Vec::new();
    for _ in 0..times {
        *now += 2_000;
        parts = demands.iter().map(|one| claim_again(quota, *now, *one) / 10_000_000).collect();
        assert!(quota.granted() <= ALL_PARTS.into());
    }
    parts
}

/// Claims once more for a caller that holds its last grant.
fn claim_again(quota: &mut Quota, now: u64, (caller, demand): (u64, u64)) -> u32 {
    let held = quota.part_of(caller);
    quota.claim(Claim { caller, identity: caller, demand, held }, WHOLE, now).unwrap()
}

#[test]
fn rate_quota_follows_demand_and_single_caller_gets_all() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let parts = claim_repeatedly(&mut quota, &mut now, 5, &[(1, 120_000), (2, 40_000)]);
    assert!((70..=75).contains(&parts[0]) && (23..=27).contains(&parts[1]), "{parts:?}");
    // The second caller is present with zero demand.
    let parts = claim_repeatedly(&mut quota, &mut now, 5, &[(1, 120_000), (2, 0)]);
    assert!(parts[0] >= 93 && parts[1] <= 3, "{parts:?}");
    // The second caller has left.
    let parts = claim_repeatedly(&mut quota, &mut now, 5, &[(1, 300_000)]);
    assert!(parts[0] >= 93 && quota.callers() == 1, "{parts:?}");
    // The second caller returns, and the total demand exceeds the limit.
    let parts = claim_repeatedly(&mut quota, &mut now, 5, &[(1, 300_000), (2, 600_000)]);
    assert!(parts.iter().all(|part| (46..=50).contains(part)), "{parts:?}");
}

#[test]
fn callers_of_same_identity_share_its_rate_quota() {
    let (mut quota, mut now, mut honest) = (Quota::default(), 0, 0);
    const INVENTED: u64 = 150;
    let held = |quota: &Quota, caller| quota.part_of(caller);
    for _ in 0..20 {
        now += 2_000;
        honest = claim_again(&mut quota, now, (1, 100_000));
        for caller in 2..2 + INVENTED {
            let claim = Claim { caller, identity: 2, demand: WHOLE, held: held(&quota, caller) };
            quota.claim(claim, WHOLE, now).unwrap();
        }
        assert!(quota.granted() <= ALL_PARTS.into());
    }
    // There are two identities, and the honest caller asks for half of the limit.
    assert!(honest >= ALL_PARTS / 100 * 45, "{honest}");
    // Without an identity, each caller counts as its own identity.
    let (mut quota, mut now) = (Quota::default(), 0);
    let demands: Vec<_> = (1..2 + INVENTED).map(|caller| (caller, WHOLE)).collect();
    assert!(claim_repeatedly(&mut quota, &mut now, 20, &demands)[0] <= 2);
}

#[test]
fn full_quota_table_makes_room_for_identity_with_fewer_callers() {
    let mut quota = Quota::default();
    let invented = |caller| Claim { caller, identity: 2, demand: WHOLE, held: None };
    for caller in 0..MAX_CALLERS as u64 {
        assert!(quota.claim(invented(caller), WHOLE, caller / 100).is_some());
    }
    let another = MAX_CALLERS as u64;
    assert_eq!(quota.claim(invented(another), WHOLE, 200), None, "its own numbers make no room");
    let honest = Claim { caller: another, identity: 1, demand: WHOLE, held: None };
    let part = quota.claim(honest, WHOLE, 200).unwrap();
    assert!(part > 0 && quota.contains(another) && !quota.contains(0), "{part}");
    assert_eq!(quota.callers(), MAX_CALLERS);
    assert!(quota.granted() <= ALL_PARTS.into());
}

#[test]
fn programs_of_same_identity_get_rate_quota_by_demand() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let mut parts = [0; 3];
    for _ in 0..20 {
        now += 2_000;
        for (caller, identity, demand) in [(0, 7, 90_000), (1, 7, 10_000), (2, 9, 20_000)] {
            let held = quota.part_of(caller);
            let claim = Claim { caller, identity, demand, held };
            parts[caller as usize] = quota.claim(claim, WHOLE, now).unwrap() / 10_000_000;
        }
    }
    let [large, small, other] = parts;
    assert!(large >= 60 && (5..=12).contains(&small) && (13..=20).contains(&other), "{parts:?}");
}

#[test]
fn excessive_quota_claim_leaves_equal_parts_of_others_untouched() {
    for claimed in [u64::MAX, 1_000_000_000_000] {
        let (mut quota, mut now) = (Quota::default(), 0);
        claim_repeatedly(&mut quota, &mut now, 5, &[(1, 90_000), (2, 30_000)]);
        // Demands are 45 % and 15 % of the limit, and an equal part is a third.
        let parts = claim_repeatedly(&mut quota, &mut now, 10, &[(1, 90_000), (2, 30_000), (3, claimed)]);
        assert!(parts[0] >= 35 && parts[1] >= 16 && parts[2] <= 46, "{parts:?}");
    }
}

#[test]
fn false_claim_of_held_quota_is_bounded_by_grants() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let honest = claim_repeatedly(&mut quota, &mut now, 5, &[(1, 150_000)]);
    for _ in 0..10 {
        now += 2_000;
        let false_claim = Claim { held: Some(ALL_PARTS), ..claim(2, 0) };
        quota.claim(false_claim, WHOLE, now).unwrap();
        quota.claim(claim(3, 0), WHOLE, now).unwrap();
        assert!(claim_again(&mut quota, now, (1, 150_000)) / 10_000_000 >= honest[0] - 3);
    }
}

#[test]
fn excess_quota_that_caller_does_not_return_expires() {
    let (mut quota, mut now) = (Quota::default(), 0);
    claim_repeatedly(&mut quota, &mut now, 5, &[(1, 150_000)]);
    let all = quota.part_of(1).unwrap();
    let mut came = |quota: &mut Quota, times| {
        let mut part = 0;
        for _ in 0..times {
            now += 2_000;
            quota.claim(Claim { held: Some(all), ..claim(1, u64::MAX) }, WHOLE, now).unwrap();
            part = claim_again(quota, now, (2, 60_000));
        }
        part / 10_000_000
    };
    assert!(came(&mut quota, 3) <= 4, "responses may have been lost");
    assert!(came(&mut quota, 5) >= 30, "an unanswered excess is not kept");
}

#[test]
fn held_quota_parts_are_accepted_after_restart_smallest_first() {
    let mut quota = Quota::default();
    let held = |caller, held| Claim { held: Some(held), ..claim(caller, 100_000) };
    quota.record(held(1, 200_000_000), 0);
    quota.record(held(2, ALL_PARTS), 0);
    quota.record(held(3, 300_000_000), 0);
    quota.record(claim(4, 100_000), 0);
    assert!(quota.claim(held(1, 200_000_000), WHOLE, 1_000).unwrap() >= 200_000_000);
    assert_eq!(quota.claim(held(3, 300_000_000), WHOLE, 1_000).map(|parts| parts / 10_000_000), Some(24));
    assert_eq!(quota.claim(claim(4, 100_000), WHOLE, 1_000), Some(0), "the others hold the whole limit");
    let false_claim = quota.claim(held(2, ALL_PARTS), WHOLE, 1_000).unwrap();
    assert!(false_claim <= 260_000_000 && quota.granted() <= ALL_PARTS.into(), "{false_claim}");
}

#[test]
fn small_demand_growth_is_ignored_and_excess_callers_keep_their_quota() {
    let (mut quota, mut now) = (Quota::default(), 0);
    claim_repeatedly(&mut quota, &mut now, 10, &[(1, 50_000), (2, 50_000)]);
    let (one, two) = (quota.part_of(1).unwrap(), quota.part_of(2).unwrap());
    claim_repeatedly(&mut quota, &mut now, 10, &[(1, 52_000), (2, 50_000)]);
    assert_eq!(quota.part_of(1).unwrap(), one);
    assert!(quota.part_of(2).unwrap() < two, "even a small returned part is free for others");
    for caller in 3..=MAX_CALLERS as u64 {
        assert!(quota.claim(claim(caller, 1), WHOLE, now).is_some());
    }
    assert_eq!(quota.claim(claim(0, 1), WHOLE, now), None);
}

#[test]
fn late_callers_with_small_demand_get_rate_quota() {
    let (mut quota, mut now) = (Quota::default(), 0);
    let mut demands: Vec<_> = (0..10).map(|caller| (caller, 100_000)).collect();
    claim_repeatedly(&mut quota, &mut now, 50, &demands);
    demands.extend((10..15).map(|caller| (caller, 2_000)));
    claim_repeatedly(&mut quota, &mut now, 10, &demands);
    let late: Vec<_> = (10..15).map(|caller| quota.part_of(caller).unwrap()).collect();
    assert!(late.iter().all(|parts| *parts > 0), "{late:?}");
}

#[test]
fn caller_with_single_quota_claim_is_kept_for_longest_period() {
    let mut quota = Quota::default();
    quota.claim(claim(1, 1_000), WHOLE, 0).unwrap();
    assert!(quota.expire(10_000));
    quota.claim(claim(1, 1_000), WHOLE, 10_000).unwrap();
    assert!(quota.expire(40_000) && !quota.expire(40_001), "three of its periods");
}

#[test]
fn returned_quota_is_free_once_its_caller_claims_less() {
    let mut quota = Quota::default();
    let held = |caller, demand, held| Claim { held: Some(held), ..claim(caller, demand) };
    let all = quota.claim(claim(1, 100_000), WHOLE, 0).unwrap();
    let first = quota.claim(claim(2, 100_000), WHOLE, 0).unwrap();
    assert!(quota.claim(held(1, 100_000, all), WHOLE, 2_000).unwrap() < all / 10 * 6);
    // The response may have been lost.
    assert_eq!(quota.claim(held(2, 100_000, first), WHOLE, 2_000), Some(ALL_PARTS - all));
    let less = quota.claim(held(1, 100_000, all), WHOLE, 4_000).unwrap();
    assert_eq!(quota.claim(held(2, 100_000, ALL_PARTS - all), WHOLE, 4_000), Some(ALL_PARTS - all));
    quota.claim(held(1, 100_000, less), WHOLE, 6_000).unwrap();
    assert!(quota.claim(held(2, 100_000, ALL_PARTS - all), WHOLE, 6_000).unwrap() > ALL_PARTS / 10 * 4);
}

proptest! {
    #[test]
    fn granted_quota_parts_never_exceed_rate_limit(
        claims in proptest::collection::vec(
            (0..8_u64, 0..u64::MAX, proptest::option::of(0..u32::MAX), 0..3_000_u64), 1..200,
        ),
    ) {
        let (mut quota, mut now) = (Quota::default(), 0);
        for (caller, demand, held, after) in claims {
            now += after;
            let claim = Claim { caller, identity: caller, demand, held };
            if now < 6_000 {
                quota.record(claim, now);
                continue;
            }
            let parts = quota.claim(claim, WHOLE, now).unwrap();
            prop_assert!(parts <= ALL_PARTS && quota.granted() <= u64::from(ALL_PARTS), "{}", quota.granted());
        }
    }

    #[test]
    fn held_quota_never_exceeds_rate_limit_despite_lost_responses(
        claims in proptest::collection::vec((0..8_u64, 0..10_000_000_u64, any::<bool>(), 0..500_u64), 1..300),
    ) {
        let (mut quota, mut now, mut holds) = (Quota::default(), 0, std::collections::BTreeMap::new());
        let mut lost = std::collections::BTreeMap::<u64, u32>::new();
        for (caller, demand, arrives, after) in claims {
            now += after;
            // Losses in a row stay below the time allowed for returning a part.
            let lost = lost.entry(caller).or_default();
            *lost = if arrives || *lost == 2 { 0 } else { *lost + 1 };
            let arrives = *lost == 0;
            // Expired callers no longer hold parts.
            let _ = quota.expire(now);
            holds.retain(|caller, _| quota.contains(*caller));
            let held = holds.get(&caller).copied();
            let parts = quota.claim(Claim { caller, identity: caller, demand, held }, WHOLE, now).unwrap();
            if arrives {
                holds.insert(caller, parts);
            }
            let all = holds.values().copied().map(u64::from).sum::<u64>();
            prop_assert!(all <= u64::from(ALL_PARTS), "{all} {holds:?}");
        }
    }

    #[test]
    fn higher_constant_demand_gets_no_smaller_quota(
        demands in proptest::collection::vec(0..10_000_000_u64, 1..20),
    ) {
        let (mut quota, mut now) = (Quota::default(), 0);
        let demands: Vec<_> = (0..).zip(demands).collect();
        claim_repeatedly(&mut quota, &mut now, 60, &demands);
        let parts: Vec<_> = demands.iter().map(|(caller, _)| quota.part_of(*caller).unwrap()).collect();
        prop_assert!(quota.granted() >= u64::from(ALL_PARTS) * 85 / 100, "little stays unused: {}", quota.granted());
        for (one, (_, less)) in parts.iter().zip(&demands) {
            for (other, (_, more)) in parts.iter().zip(&demands) {
                // Changes too small to be granted are tolerated.
                prop_assert!(
                    less > more || f64::from(*one) <= f64::from(*other) * 1.12 + 1e6,
                    "{parts:?} {demands:?}"
                );
            }
        }
    }
}
