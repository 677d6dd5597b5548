//! Compares arithmetic, rendezvous hashing and picks with `vectors/`. See the README there for how to change the
//! vectors.

#![allow(clippy::unwrap_used, reason = "a test that panics has found something")]

use std::time::Duration;

use fairmesh_balancer::{
    BalancerConfig, CandidateSet, EndpointStats, LoadReport, Outcome, PickContext,
    load_poll::{EstimateInput, estimate},
    pick, rendezvous,
};
use fairmesh_model::{
    Balancing, BalancingPolicy, InstanceId, Score,
    arith::{self, Generator, LOG_TABLE, mix64},
};
use serde_json::{Value, json};

#[path = "../../../../vectors/support.rs"]
mod support;

use support::{check, hex};

/// Edge cases of the arithmetic, and some ordinary numbers.
fn numbers() -> Vec<u64> {
    let edges = [
        0,
        1,
        2,
        3,
        255,
        256,
        257,
        1 << 31,
        1 << 32,
        (1 << 32) - 1,
        (1 << 53) + 1,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ];
    let mut random = Generator::new(1);
    edges.into_iter().chain((0..10).map(|i| random.next() >> (i * 6))).collect()
}

#[test]
fn balancer_arithmetic_matches_vectors() {
    let pairs = || numbers().into_iter().zip(numbers().into_iter().rev());
    let mix = numbers()
        .into_iter()
        .map(|x| json!({"x": hex(x), "mix64": hex(arith::mix64(x)), "log2": hex(arith::log2(x))}));
    let pair =
        pairs().map(|(a, b)| json!({"a": hex(a), "b": hex(b), "mix_pair": hex(arith::mix_pair(a, b))}));
    let texts = [
        "",
        "a",
        "shop/cart",
        "i0",
        "pod-7f9c:8080@eu",
        "a text that is longer than thirty-two bytes, for the other branch",
    ];
    let long = "x".repeat(300);
    let text = texts
        .into_iter()
        .chain([long.as_str()])
        .map(|text| json!({"text": text, "hash_text": hex(arith::hash_text(text))}));
    let key = [0, 618, u128::from(u64::MAX), 1 << 64, u128::MAX]
        .map(|key| json!({"key": key.to_string(), "hash_key": hex(arith::hash_key(key))}));
    let generator = numbers().into_iter().map(|seed| {
        let mut random = Generator::new(seed);
        let next: Vec<Value> = (0..3).map(|_| hex(random.next())).collect();
        json!({"seed": hex(seed), "next": next})
    });
    let below = pairs().map(|(seed, bound)| {
        let mut random = Generator::new(seed);
        let below: Vec<Value> = (0..3).map(|_| hex(random.below(bound))).collect();
        json!({"seed": hex(seed), "bound": hex(bound), "below": below})
    });
    let table = LOG_TABLE.chunks(8).map(|row| row.iter().map(|&entry| hex(entry)).collect());
    check(
        "arith.json",
        &[
            ("mix_and_log", mix.collect()),
            ("mix_pair", pair.collect()),
            ("hash_text", text.collect()),
            ("hash_key", key.to_vec()),
            ("generator", generator.collect()),
            ("below", below.collect()),
            ("log_table_by_8", table.collect()),
        ],
    );
}

#[test]
fn rendezvous_hashing_matches_vectors() {
    let scores = numbers().into_iter().enumerate().map(|(i, chooser)| {
        let node = mix64(chooser ^ 7);
        let weight = [1, 500, 1000, 1001, 2000, 100_000][i % 6];
        let rank = rendezvous::Rank::new(chooser, node, weight);
        json!({"chooser": hex(chooser), "node": hex(node), "weight": weight, "draw": hex(rank.draw.0), "score": hex(rank.score)})
    });
    let subsets =
        [(5, 0, &[1000][..]), (30, 5, &[1000]), (40, 8, &[500, 1000, 2000]), (3, 20, &[1, 100_000])];
    let subsets = subsets.into_iter().flat_map(|(n, k, weights)| {
        let nodes: Vec<(u64, u32)> =
            (1..=n).map(|i| (mix64(i), weights[i as usize % weights.len()])).collect();
        (1..4).map(move |client| {
            let written: Vec<Value> =
                nodes.iter().map(|&(hash, weight)| json!([hex(hash), weight])).collect();
            let chosen = rendezvous::subset(mix64(client), &nodes, k);
            json!({"chooser": hex(mix64(client)), "k": k, "nodes": written, "chosen": chosen})
        })
    });
    check("rendezvous.json", &[("scores", scores.collect()), ("subsets", subsets.collect())]);
}

/// The state of a caller before a pick.
struct CallerState {
    weights: Vec<u64>,
    outstanding: Vec<u64>,
    ejected: Vec<u32>,
    attempted: Vec<u32>,
}

impl CallerState {
    fn draw(case: usize, random: &mut Generator) -> Self {
        let n = 1 + random.below([4, 12, 30][case % 3]);
        let mut each = |bound| -> Vec<u64> { (0..n).map(|_| random.below(bound)).collect() };
        let weights = if case.is_multiple_of(2) {
            vec![1000; n as usize]
        } else {
            each(3000).iter().map(|w| w + 1).collect()
        };
        let outstanding = each(4);
        let some = |draws: Vec<u64>| -> Vec<u32> {
            (0..).zip(draws).filter(|draw| draw.1 == 0).map(|draw| draw.0).collect()
        };
        let ejected = some(each([u64::MAX, 4, 2][case / 3 % 3]));
        let attempted = some(each([u64::MAX, 8][case % 2]));
        Self { weights, outstanding, ejected, attempted }
    }

    fn write(&self) -> Value {
        json!({
            "weights": self.weights, "outstanding": self.outstanding, "penalised": self.ejected,
            "tried": self.attempted,
        })
    }

    /// Converts the state to endpoint statistics, with the calls in flight.
    fn stats(&self, config: &BalancerConfig) -> (EndpointStats, CandidateSet) {
        let stats = EndpointStats::default();
        let ids: Vec<_> =
            (0..self.weights.len()).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
        let (indices, _index_pin) = stats.assign_indices(ids.iter().map(|id| (id, 0)));
        let members: Vec<_> =
            indices.iter().copied().zip(self.weights.iter().map(|&weight| weight as u32)).collect();
        stats.set_members(&members, config);
        for (&index, &count) in indices.iter().zip(&self.outstanding) {
            (0..count).for_each(|_| stats.begin(index));
        }
        for &index in &self.ejected {
            stats.begin(index);
            stats.finish(index, Outcome::Unreachable, 0);
        }
        (stats, CandidateSet::new(&members))
    }
}

fn config(policy: BalancingPolicy) -> BalancerConfig {
    BalancerConfig::new(&Balancing { policy, ..Balancing::default() })
}

/// Returns the picks with seeds 0 to 7 at a time in nanoseconds.
fn picked(
    stats: &EndpointStats,
    members: &CandidateSet,
    config: &BalancerConfig,
    attempted: &[u32],
    now: u64,
) -> Vec<u32> {
    let context = PickContext::new(stats, config.pick_config(), attempted, now);
    let pick =
        |seed| pick(&members.as_candidates(), &context, &mut Generator::new(seed), &mut ()).unwrap().index;
    (0..8).map(pick).collect()
}

#[test]
fn endpoint_picks_match_vectors() {
    let plain = |policy: BalancingPolicy, seed, cases| -> Vec<Value> {
        let (mut random, config) = (Generator::new(seed), config(policy));
        let case = |case| {
            let state = CallerState::draw(case, &mut random);
            let (stats, members) = state.stats(&config);
            let mut written = state.write();
            written["picked_by_seed_0_to_7"] = json!(picked(&stats, &members, &config, &state.attempted, 1));
            written
        };
        (0..cases).map(case).collect()
    };
    check(
        "pick.json",
        &[
            ("picks", plain(BalancingPolicy::LeastRequest, 11, 60)),
            ("random", plain(BalancingPolicy::Random, 12, 12)),
            ("score", plain(BalancingPolicy::Score, 13, 60)),
        ],
    );
}

#[test]
fn round_robin_picks_match_vectors() {
    let (mut random, config) = (Generator::new(14), config(BalancingPolicy::RoundRobin));
    let cases = (0..24).map(|case| {
        let state = CallerState::draw(case, &mut random);
        let (stats, members) = state.stats(&config);
        let context = PickContext::new(&stats, config.pick_config(), &state.attempted, 1);
        let turns = (0..20).map(|_| {
            let picked =
                pick(&members.as_candidates(), &context, &mut Generator::new(1), &mut ()).unwrap().index;
            stats.advance_round_robin();
            picked
        });
        let mut written = state.write();
        written["picked_in_turns_0_to_19"] = turns.collect();
        written
    });
    check("turns.json", &[("turns", cases.collect())]);
}

/// Returns a number below 2^`bits`; small numbers are more frequent.
fn up_to(random: &mut Generator, bits: u64) -> u64 {
    let bits = random.below(bits);
    random.below(1 << bits)
}

/// Load reports over time, with the resulting scores and picks, with and without a reward.
#[test]
fn load_report_parsing_matches_vectors() {
    let score = Score { reward: 5, ..Score::default() };
    let rewarding = BalancerConfig::new(&Balancing { score, ..Balancing::default() });
    let (plain, rewarded) =
        (report_cases(15, &config(BalancingPolicy::Score), 20), report_cases(17, &rewarding, 6));
    check("reports.json", &[("reports", plain), ("rewarded_5_percent", rewarded)]);
}

fn report_cases(seed: u64, config: &BalancerConfig, cases: usize) -> Vec<Value> {
    let mut random = Generator::new(seed);
    let case = |case| {
        let state = CallerState {
            ejected: Vec::new(),
            attempted: Vec::new(),
            ..CallerState::draw(case, &mut random)
        };
        let (stats, members) = state.stats(config);
        let n = state.weights.len() as u64;
        let mut now = random.below(1 << 40);
        let reports = (0..10 * n).map(|_| {
            now += up_to(&mut random, 15) << 20;
            let index = random.below(n) as u32;
            let requests = (random.below(4) > 0).then(|| up_to(&mut random, 7) as u32);
            let streams = (random.below(8) == 0).then(|| random.below(9) as u32);
            let cpu = (random.below(4) > 0).then(|| random.below(1200) as u16);
            stats.record_report(index, LoadReport { requests, streams, cpu, metric: None }, now);
            json!([now, index, requests, streams, cpu])
        });
        let reports: Value = reports.collect();
        let scores = |now| -> Vec<i64> {
            let context = PickContext::new(&stats, config.pick_config(), &[], now);
            (0..n).map(|i| context.score_endpoint(i as u32, state.weights[i as usize] as u32).score).collect()
        };
        let later = now + 90_000_000_000;
        json!({
            "weights": state.weights, "outstanding": state.outstanding,
            "reports_at_index_requests_streams_cpu": reports,
            "scores": scores(now), "scores_90s_later": scores(later),
            "picked_by_seed_0_to_7": picked(&stats, &members, config, &[], now),
        })
    };
    (0..cases).map(case).collect()
}

/// Decisions when to poll a server for its load.
#[test]
fn load_estimates_match_vectors() {
    let mut random = Generator::new(18);
    let cases = (0..40).map(|_| {
        let poll_after = (random.below(2) == 0).then(|| 1 + random.below(100));
        let poll_ratio = 1 + random.below(100) as u32;
        let score =
            Score { poll_after: poll_after.map(Duration::from_millis), poll_ratio, ..Score::default() };
        let age = (random.below(8) > 0).then(|| random.below(100_000_000));
        let round_trip = (random.below(8) > 0).then(|| up_to(&mut random, 26));
        let work = up_to(&mut random, 27);
        let estimate = estimate(&score, EstimateInput { age, round_trip, service_time: work });
        json!({
            "poll_after_ms": poll_after, "poll_ratio": poll_ratio,
            "age": age, "round_trip": round_trip, "work": work,
            "estimate": format!("{estimate:?}").to_lowercase(),
        })
    });
    check("estimates.json", &[("estimates", cases.collect())]);
}

#[test]
fn recorded_latencies_match_vectors() {
    let (mut random, config) = (Generator::new(16), config(BalancingPolicy::PeakEwma));
    let cases = (0..20).map(|case| {
        let state = CallerState {
            ejected: Vec::new(),
            attempted: Vec::new(),
            ..CallerState::draw(case, &mut random)
        };
        let (stats, members) = state.stats(&config);
        let n = state.weights.len() as u64;
        let mut now = random.below(1 << 40);
        let responses = (0..5 * n).map(|_| {
            now += up_to(&mut random, 13) << 20;
            let (index, latency) = (random.below(n) as u32, up_to(&mut random, 36));
            stats.record_latency(index, latency, now);
            json!([now, index, latency])
        });
        let responses: Value = responses.collect();
        json!({
            "weights": state.weights, "outstanding": state.outstanding, "answers_at_index_latency": responses,
            "picked_by_seed_0_to_7": picked(&stats, &members, &config, &[], now),
        })
    });
    check("latencies.json", &[("latencies", cases.collect())]);
}
