use std::{slice, sync::Arc};

use fairmesh_balancer::{
    BLOCK_ENDPOINTS, BalancerConfig, EndpointStats, LoadReport, Outcome, SharedBlock, SharedStats,
};
use fairmesh_model::{Balancing, BalancingPolicy, InstanceId, Score};
use fairmesh_router::{ROUTE_ARMS, ROUTE_STEPS};
use serde_json::Value;

use crate::decider::{Decider, vectors};

/// Size of `struct pick_output` of `bpf/vectors/vectors.h`, in bytes.
pub(crate) const OUTPUT_BYTES: usize = 8 + 8 * BLOCK_ENDPOINTS;
/// Size of `struct policy` of `bpf/lib/shared.h`, in bytes.
pub(crate) const POLICY_BYTES: usize = ROUTES_AT + 8 + 24 * ROUTE_ARMS + 96 * ROUTE_STEPS;
/// Offset of the routes in `struct policy`.
pub(crate) const ROUTES_AT: usize = 48 + 16 * BLOCK_ENDPOINTS;

/// One decision of the program.
struct Decision {
    position: u64,
    is_left: bool,
    scores: Vec<i64>,
}

#[derive(Debug)]
struct Memory(Arc<SharedStats>);

impl SharedBlock for Memory {
    fn stats(&self) -> &SharedStats {
        &self.0
    }

    fn position(&self) -> u32 {
        0
    }
}

/// A service, as described by a case of the vectors.
struct Case {
    config: BalancerConfig,
    weights: Vec<u32>,
    stats: EndpointStats,
    block: Arc<SharedStats>,
}

impl Decision {
    fn read(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        let scores = bytes[8..].chunks(8).map(|score| i64::from_ne_bytes(score.try_into().unwrap()));
        Self { position: word(0).into(), is_left: word(4) != 0, scores: scores.collect() }
    }
}

impl Case {
    fn new(case: &Value, balancing: &Balancing) -> Self {
        let config = BalancerConfig::new(balancing);
        let weights: Vec<u32> = numbers(&case["weights"]);
        let (stats, block) = (EndpointStats::default(), Arc::new(SharedStats::default()));
        stats.share(|_| true, || Some(Box::new(Memory(block.clone())))).unwrap();
        let ids: Vec<_> = (0..weights.len()).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
        let (indices, _pin) = stats.assign_indices(ids.iter().map(|id| (id, 0)));
        let members: Vec<_> = indices.into_iter().zip(weights.iter().copied()).collect();
        stats.set_members(&members, &config);
        for (index, count) in (0..).zip(numbers::<u32>(&case["outstanding"])) {
            (0..count).for_each(|_| stats.begin(index));
        }
        for index in numbers(&case["penalised"]) {
            stats.begin(index);
            stats.finish(index, Outcome::Unreachable, 0);
        }
        Self { config, weights, stats, block }
    }

    /// The input of the program: `struct pick_input` of `bpf/vectors/vectors.h`.
    fn input(&self, now: u64, seed: u64) -> Vec<u8> {
        let pick = self.config.pick_config();
        let policy = match pick.policy() {
            BalancingPolicy::Score => 0,
            BalancingPolicy::LeastRequest => 1,
            BalancingPolicy::RoundRobin => 2,
            _ => 3,
        };
        let first = self.weights[0];
        let equal_weight = if self.weights.iter().all(|weight| *weight == first) { first } else { 0 };
        let mut bytes = Vec::new();
        for word in [0, 0, 0, pick.ticks_per_nano()] {
            bytes.extend(u64::to_ne_bytes(word));
        }
        for word in [pick.memory(), policy, self.weights.len() as u32, equal_weight] {
            bytes.extend(word.to_ne_bytes());
        }
        let mut total = 0;
        for index in 0..BLOCK_ENDPOINTS {
            let weight = self.weights.get(index).copied();
            total += u64::from(weight.unwrap_or(0));
            bytes.extend((index as u32).to_ne_bytes());
            bytes.extend(weight.unwrap_or(0).to_ne_bytes());
            bytes.extend(weight.map_or(i64::MAX as u64, |_| total).to_ne_bytes());
        }
        // No routes.
        bytes.resize(POLICY_BYTES, 0);
        // SAFETY: the block consists of integers without padding, and nothing changes them meanwhile.
        bytes.extend(unsafe {
            slice::from_raw_parts(Arc::as_ptr(&self.block).cast::<u8>(), size_of::<SharedStats>())
        });
        bytes.extend(now.to_ne_bytes());
        bytes.extend(seed.to_ne_bytes());
        bytes
    }
}

fn numbers<T: TryFrom<u64, Error: std::fmt::Debug>>(list: &Value) -> Vec<T> {
    let list = list.as_array().into_iter().flatten();
    list.map(|number| T::try_from(number.as_u64().unwrap()).unwrap()).collect()
}

/// Cases of one list that can reach the kernel: only first attempts, with a bounded number of candidates.
fn cases(file: &str, list: &str) -> Vec<Value> {
    let all = vectors(file);
    let count = |case: &Value, field: &str| case[field].as_array().map_or(0, Vec::len);
    let cases = all[list].as_array().unwrap().iter();
    let cases: Vec<_> = cases
        .filter(|case| count(case, "tried") == 0 && count(case, "weights") <= BLOCK_ENDPOINTS)
        .cloned()
        .collect();
    assert!(!cases.is_empty(), "{file}");
    cases
}

fn decide(decider: &mut Decider, inputs: &[Vec<u8>]) -> Vec<Decision> {
    decider.decide("pick", inputs, OUTPUT_BYTES).iter().map(|output| Decision::read(output)).collect()
}

fn balancing(policy: BalancingPolicy) -> Balancing {
    Balancing { policy, ..Balancing::default() }
}

/// Compares decisions with the expected positions. The program may leave decisions for failed candidates to
/// the proxy.
fn compare(case: &Value, decisions: &[Decision], expected: &[u64]) {
    for (decision, expected) in decisions.iter().zip(expected) {
        assert!(
            decision.is_left || decision.position == *expected,
            "{} for {expected} in {case}",
            decision.position
        );
        assert!(!decision.is_left || !numbers::<u64>(&case["penalised"]).is_empty(), "{case}");
    }
}

#[test]
fn endpoint_picks_in_c_match_vectors() {
    Decider::native().into_iter().for_each(compare_picks);
}

#[test]
fn endpoint_picks_in_kernel_match_vectors() {
    Decider::in_kernel().into_iter().for_each(compare_picks);
}

fn compare_picks(mut decider: Decider) {
    let lists = [
        ("picks", BalancingPolicy::LeastRequest),
        ("random", BalancingPolicy::Random),
        ("score", BalancingPolicy::Score),
    ];
    for (list, policy) in lists {
        for case in cases("pick.json", list) {
            let service = Case::new(&case, &balancing(policy));
            let inputs: Vec<_> = (0..8).map(|seed| service.input(1, seed)).collect();
            compare(&case, &decide(&mut decider, &inputs), &numbers(&case["picked_by_seed_0_to_7"]));
        }
    }
}

#[test]
fn round_robin_turns_in_c_match_vectors() {
    Decider::native().into_iter().for_each(compare_turns);
}

#[test]
fn round_robin_turns_in_kernel_match_vectors() {
    Decider::in_kernel().into_iter().for_each(compare_turns);
}

fn compare_turns(mut decider: Decider) {
    for case in cases("turns.json", "turns") {
        let service = Case::new(&case, &balancing(BalancingPolicy::RoundRobin));
        let turn = |_| {
            let input = service.input(1, 1);
            service.stats.advance_round_robin();
            input
        };
        let inputs: Vec<_> = (0..20).map(turn).collect();
        compare(&case, &decide(&mut decider, &inputs), &numbers(&case["picked_in_turns_0_to_19"]));
    }
}

#[test]
fn load_reports_in_c_match_vectors() {
    Decider::native().into_iter().for_each(compare_reports);
}

#[test]
fn load_reports_in_kernel_match_vectors() {
    Decider::in_kernel().into_iter().for_each(compare_reports);
}

fn compare_reports(mut decider: Decider) {
    let rewarding = Balancing { score: Score { reward: 5, ..Score::default() }, ..Balancing::default() };
    let lists = [("reports", balancing(BalancingPolicy::Score)), ("rewarded_5_percent", rewarding)];
    for (list, balancing) in lists {
        for case in cases("reports.json", list) {
            let service = Case::new(&case, &balancing);
            let mut now = 0;
            for report in case["reports_at_index_requests_streams_cpu"].as_array().unwrap() {
                let number = |at: usize| report[at].as_u64();
                now = number(0).unwrap();
                let load = LoadReport {
                    requests: number(2).map(|requests| requests as u32),
                    streams: number(3).map(|streams| streams as u32),
                    cpu: number(4).map(|cpu| cpu as u16),
                    metric: None,
                };
                service.stats.record_report(number(1).unwrap() as u32, load, now);
            }
            let mut inputs: Vec<_> = (0..8).map(|seed| service.input(now, seed)).collect();
            inputs.push(service.input(now + 90_000_000_000, 0));
            let decisions = decide(&mut decider, &inputs);
            compare(&case, &decisions[..8], &numbers(&case["picked_by_seed_0_to_7"]));
            for (decision, list) in [(&decisions[0], "scores"), (&decisions[8], "scores_90s_later")] {
                let expected: Vec<_> =
                    case[list].as_array().unwrap().iter().map(|score| score.as_i64().unwrap()).collect();
                assert_eq!(decision.scores[..expected.len()], expected, "{list} of {case}");
            }
        }
    }
}
