use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::{Few, Members, Outcome, Rule};
use fairmesh_model::{Balancing, InstanceId};

/// Slots for indices `0..n`.
fn slots(n: usize) -> Slots {
    let slots = Slots::default();
    let ids: Vec<_> = (0..n).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = slots.assign(&ids);
    slots
}

fn rule_of(policy: BalancingPolicy) -> Rule {
    Rule::new(&Balancing { policy, ..Balancing::default() })
}

/// Least request, whose picks depend on nothing but what a test says.
fn rule() -> &'static Rule {
    static RULE: LazyLock<Rule> = LazyLock::new(|| rule_of(BalancingPolicy::LeastRequest));
    &RULE
}

fn members(weights: &[u32]) -> Vec<(u32, u32)> {
    (0..).zip(weights.iter().copied()).collect()
}

fn pick_index(group: &Group<'_>, contest: &Contest<'_>, seed: u64) -> u32 {
    pick(group, contest, &mut Generator::new(seed), &mut ()).unwrap().index
}

fn idle(slots: &Slots) -> Contest<'_> {
    Contest::new(slots, rule().terms(), &[], 0)
}

/// How often each endpoint is picked when every call has ended before the next begins.
fn idle_shares(weights: &[u32], calls: u64) -> Vec<u64> {
    let slots = slots(weights.len());
    let members = Members::new(&members(weights));
    let mut counts = vec![0; weights.len()];
    for seed in 0..calls {
        counts[pick_index(&members.group(), &idle(&slots), seed) as usize] += 1;
    }
    counts
}

#[test]
fn idle_endpoints_share_by_weight() {
    for weights in [&[1000, 2000][..], &[1000; 4], &[1000, 2000, 1000, 2000, 3000, 1000], &[1000; 20]] {
        let calls = 100_000;
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        for (count, &weight) in idle_shares(weights, calls).iter().zip(weights) {
            let fair = calls * u64::from(weight) / total;
            assert!(count.abs_diff(fair) < fair / 20, "{count} calls where {fair} are fair, {weights:?}");
        }
    }
}

#[test]
fn under_load_nobody_runs_far_ahead() {
    // Calls that never end: the sharpest form of "most traffic to one after a change of scale".
    for weights in [vec![1000; 20], vec![1000; 200], [1000, 2000].repeat(10), vec![1000, 1000, 2000]] {
        let slots = slots(weights.len());
        let members = Members::new(&members(&weights));
        let calls = 500 * weights.len() as u64;
        for seed in 0..calls {
            slots.begin(pick_index(&members.group(), &idle(&slots), seed));
        }
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        for (index, &weight) in (0..).zip(&weights) {
            let fair = calls * u64::from(weight) / total;
            let got = u64::from(slots.outstanding(index));
            assert!(got.abs_diff(fair) <= 8, "{got} where {fair} are fair");
        }
    }
}

#[test]
fn a_penalised_crowd_does_not_send_everybody_to_its_neighbour() {
    let slots = slots(20);
    for index in 0..10 {
        slots.finish(index, Outcome::Unreachable, 0);
    }
    let members = Members::new(&members(&[1000; 20]));
    let mut counts = [0_u32; 20];
    for seed in 0..100_000 {
        counts[pick_index(&members.group(), &idle(&slots), seed) as usize] += 1;
    }
    assert!(counts[..10].iter().all(|&count| count == 0));
    assert!(counts[10..].iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
}

#[test]
fn penalties_end_and_are_ignored_when_nobody_else_is_left() {
    let slots = slots(2);
    let members = Members::new(&members(&[1000, 1000]));
    slots.finish(0, Outcome::Unreachable, 0);
    let at = |now, avoid, seed| {
        pick_index(&members.group(), &Contest::new(&slots, rule().terms(), avoid, now), seed)
    };
    assert!((0..50).all(|seed| at(1, &[], seed) == 1));
    assert!((0..50).any(|seed| at(100_000_000, &[], seed) == 0));
    assert!((0..50).all(|seed| at(1, &[1], seed) == 0), "penalised is better than tried");
    assert!((0..50).all(|seed| at(1, &[0, 1], seed) == 1), "of two tried, the one without a penalty");
}

prop_compose! {
    fn crowd()(entries in prop::collection::vec((1_u32..4000, 0_u32..9, prop::bool::weighted(0.3)), 1..40))
        -> (Vec<u32>, Slots, Vec<u32>)
    {
        let slots = slots(entries.len());
        for (index, &(_, outstanding, penalised)) in (0..).zip(&entries) {
            if penalised {
                slots.finish(index, Outcome::Unreachable, 0);
            }
            (0..outstanding).for_each(|_| slots.begin(index));
        }
        let outstanding = entries.iter().map(|entry| entry.1).collect();
        (entries.into_iter().map(|entry| entry.0).collect(), slots, outstanding)
    }
}

proptest! {
    #[test]
    fn a_tried_endpoint_is_never_taken_while_another_is_left(
        (weights, slots, _) in crowd(), tried in prop::collection::vec(0_u32..40, 0..10), seed: u64,
    ) {
        let members = Members::new(&members(&weights));
        let picked = pick_index(&members.group(), &Contest::new(&slots, rule().terms(), &tried, 5), seed);
        let all_tried = (0..weights.len() as u32).all(|index| tried.contains(&index));
        prop_assert!(all_tried || !tried.contains(&picked));
    }

    #[test]
    fn a_penalised_endpoint_is_never_taken_while_another_is_left((weights, slots, _) in crowd(), seed: u64) {
        let members = Members::new(&members(&weights));
        let picked = pick_index(&members.group(), &Contest::new(&slots, rule().terms(), &[], 5), seed);
        let penalised = |index| slots.penalised_until(index) > 5;
        prop_assert!((0..weights.len() as u32).all(penalised) || !penalised(picked));
    }

    #[test]
    fn of_few_the_least_loaded_wins((weights, slots, outstanding) in crowd(), seed: u64) {
        let n = weights.len().min(SCAN_UP_TO);
        let members = Members::new(&members(&weights[..n]));
        let now = u64::MAX;
        let picked = pick_index(&members.group(), &Contest::new(&slots, rule().terms(), &[], now), seed) as usize;
        for i in 0..n {
            let ours = u64::from(outstanding[picked]) * u64::from(weights[i]);
            prop_assert!(ours <= u64::from(outstanding[i]) * u64::from(weights[picked]));
        }
    }

    #[test]
    fn equal_weights_pick_as_running_totals_do(n in 1_usize..40, weight in 1_u32..100_000, seed: u64) {
        let slots = slots(n);
        let compiled = Members::new(&members(&vec![weight; n]));
        let mut few = Few::new();
        (0..n as u32).for_each(|index| few.push(index, weight));
        prop_assume!(few.len() == n);
        prop_assert_eq!(
            pick_index(&compiled.group(), &idle(&slots), seed),
            pick_index(&few.group(), &idle(&slots), seed)
        );
    }
}
