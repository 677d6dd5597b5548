use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::{BalancerConfig, CandidateSet, InlineCandidates, Outcome};
use fairmesh_model::{Balancing, InstanceId};

/// Returns statistics for the indices `0..n`.
fn stats(n: usize) -> EndpointStats {
    let stats = EndpointStats::default();
    let ids: Vec<_> = (0..n).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let _ = stats.assign_indices(ids.iter().map(|id| (id, 0)));
    stats
}

fn config_of(policy: BalancingPolicy) -> BalancerConfig {
    BalancerConfig::new(&Balancing { policy, ..Balancing::default() })
}

/// Returns a least-request configuration, under which picks depend only on counts set by a test.
fn config() -> &'static BalancerConfig {
    static CONFIG: LazyLock<BalancerConfig> = LazyLock::new(|| config_of(BalancingPolicy::LeastRequest));
    &CONFIG
}

fn members(weights: &[u32]) -> Vec<(u32, u32)> {
    (0..).zip(weights.iter().copied()).collect()
}

fn pick_index(candidates: &Candidates<'_>, context: &PickContext<'_>, seed: u64) -> u32 {
    pick(candidates, context, &mut Generator::new(seed), &mut ()).unwrap().index
}

fn idle(stats: &EndpointStats) -> PickContext<'_> {
    PickContext::new(stats, config().pick_config(), &[], 0)
}

/// Counts how often each endpoint is picked if every call finishes before the next one begins.
fn idle_shares(weights: &[u32], calls: u64) -> Vec<u64> {
    let stats = stats(weights.len());
    let members = CandidateSet::new(&members(weights));
    let mut counts = vec![0; weights.len()];
    for seed in 0..calls {
        counts[pick_index(&members.as_candidates(), &idle(&stats), seed) as usize] += 1;
    }
    counts
}

#[test]
fn idle_endpoints_are_picked_in_proportion_to_weight() {
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
fn outstanding_calls_per_endpoint_stay_close_to_share_by_weight() {
    // Calls never finish, which is the worst case of "most traffic to one endpoint after scaling".
    for weights in [vec![1000; 20], vec![1000; 200], [1000, 2000].repeat(10), vec![1000, 1000, 2000]] {
        let stats = stats(weights.len());
        let members = CandidateSet::new(&members(&weights));
        let calls = 500 * weights.len() as u64;
        for seed in 0..calls {
            stats.begin(pick_index(&members.as_candidates(), &idle(&stats), seed));
        }
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        for (index, &weight) in (0..).zip(&weights) {
            let fair = calls * u64::from(weight) / total;
            let got = u64::from(stats.outstanding(index));
            assert!(got.abs_diff(fair) <= 8, "{got} where {fair} are fair");
        }
    }
}

#[test]
fn calls_of_ejected_endpoints_are_spread_over_all_others() {
    let stats = stats(20);
    for index in 0..10 {
        stats.finish(index, Outcome::Unreachable, 0);
    }
    let members = CandidateSet::new(&members(&[1000; 20]));
    let mut counts = [0_u32; 20];
    for seed in 0..100_000 {
        counts[pick_index(&members.as_candidates(), &idle(&stats), seed) as usize] += 1;
    }
    assert!(counts[..10].iter().all(|&count| count == 0));
    assert!(counts[10..].iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
}

#[test]
fn ejected_endpoints_are_used_after_expiry_or_if_no_other_is_left() {
    let stats = stats(2);
    let members = CandidateSet::new(&members(&[1000, 1000]));
    stats.finish(0, Outcome::Unreachable, 0);
    let at = |now, attempted, seed| {
        pick_index(
            &members.as_candidates(),
            &PickContext::new(&stats, config().pick_config(), attempted, now),
            seed,
        )
    };
    assert!((0..50).all(|seed| at(1, &[], seed) == 1));
    assert!((0..50).any(|seed| at(100_000_000, &[], seed) == 0));
    assert!(
        (0..50).all(|seed| at(1, &[1], seed) == 0),
        "an ejected endpoint is better than an attempted one"
    );
    assert!(
        (0..50).all(|seed| at(1, &[0, 1], seed) == 1),
        "of two attempted ones, the one that is not ejected"
    );
}

prop_compose! {
    fn endpoints()(entries in prop::collection::vec((1_u32..4000, 0_u32..9, prop::bool::weighted(0.3)), 1..40))
        -> (Vec<u32>, EndpointStats, Vec<u32>)
    {
        let stats = stats(entries.len());
        for (index, &(_, outstanding, ejected)) in (0..).zip(&entries) {
            if ejected {
                stats.finish(index, Outcome::Unreachable, 0);
            }
            (0..outstanding).for_each(|_| stats.begin(index));
        }
        let outstanding = entries.iter().map(|entry| entry.1).collect();
        (entries.into_iter().map(|entry| entry.0).collect(), stats, outstanding)
    }
}

proptest! {
    #[test]
    fn endpoint_of_earlier_attempt_is_picked_last(
        (weights, stats, _) in endpoints(), attempted in prop::collection::vec(0_u32..40, 0..10), seed: u64,
    ) {
        let members = CandidateSet::new(&members(&weights));
        let context = PickContext::new(&stats, config().pick_config(), &attempted, 5);
        let picked = pick_index(&members.as_candidates(), &context, seed);
        let all_attempted = (0..weights.len() as u32).all(|index| attempted.contains(&index));
        prop_assert!(all_attempted || !attempted.contains(&picked));
    }

    #[test]
    fn ejected_endpoint_is_picked_only_if_all_are_ejected((weights, stats, _) in endpoints(), seed: u64) {
        let members = CandidateSet::new(&members(&weights));
        let context = PickContext::new(&stats, config().pick_config(), &[], 5);
        let picked = pick_index(&members.as_candidates(), &context, seed);
        let ejected = |index| stats.ejected_until(index) > 5;
        prop_assert!((0..weights.len() as u32).all(ejected) || !ejected(picked));
    }

    #[test]
    fn least_loaded_endpoint_of_small_candidate_set_is_always_picked((weights, stats, outstanding) in endpoints(), seed: u64) {
        let n = weights.len().min(FULL_SCAN_MAX);
        let members = CandidateSet::new(&members(&weights[..n]));
        let now = u64::MAX;
        let context = PickContext::new(&stats, config().pick_config(), &[], now);
        let picked = pick_index(&members.as_candidates(), &context, seed) as usize;
        for i in 0..n {
            let ours = u64::from(outstanding[picked]) * u64::from(weights[i]);
            prop_assert!(ours <= u64::from(outstanding[i]) * u64::from(weights[picked]));
        }
    }

    #[test]
    fn equal_weights_give_same_picks_as_cumulative_weights(n in 1_usize..40, weight in 1_u32..100_000, seed: u64) {
        let stats = stats(n);
        let compiled = CandidateSet::new(&members(&vec![weight; n]));
        let mut few = InlineCandidates::new();
        (0..n as u32).for_each(|index| few.push(index, weight));
        prop_assume!(few.len() == n);
        prop_assert_eq!(
            pick_index(&compiled.as_candidates(), &idle(&stats), seed),
            pick_index(&few.as_candidates(), &idle(&stats), seed)
        );
    }
}
