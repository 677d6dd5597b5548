//! The C that the kernel picks by, compiled for this machine, decides the vectors as the balancer does.
#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]
#![allow(unsafe_code, reason = "statistics are passed to a program as bytes")]

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    slice,
    sync::Arc,
    thread,
};

use fairmesh_balancer::{
    BLOCK_ENDPOINTS, BalancerConfig, EndpointStats, LoadReport, Outcome, SharedBlock, SharedStats,
};
use fairmesh_model::{Balancing, BalancingPolicy, InstanceId, Score};
use fairmesh_test_support::skipped;
use serde_json::Value;

/// What `bpf/vectors.c` writes for each input.
const OUTPUT_BYTES: usize = 8 + 8 * BLOCK_ENDPOINTS;

/// The program, until it is dropped.
struct Decider {
    folder: tempfile::TempDir,
}

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

/// A service as a case of the vectors describes it.
struct Case {
    config: BalancerConfig,
    weights: Vec<u32>,
    stats: EndpointStats,
    block: Arc<SharedStats>,
}

impl Decider {
    fn new() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bpf");
        let compiled = ["clang", "clang-14"].into_iter().find_map(|clang| {
            let flags = ["-O2", "-Wall", "-Werror", "-Wno-unused"];
            let mut command = Command::new(clang);
            command.args(flags).arg(root.join("vectors.c")).arg("-o").arg(folder.path().join("decide"));
            command.status().ok()
        });
        let Some(compiled) = compiled else {
            skipped("the C of the kernel is compiled by clang", "clang is missing");
            return None;
        };
        assert!(compiled.success());
        Some(Self { folder })
    }

    fn decide(&self, inputs: &[Vec<u8>]) -> Vec<Decision> {
        let program: PathBuf = self.folder.path().join("decide");
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut stdin, bytes) = (child.stdin.take().unwrap(), inputs.concat());
        let writing = thread::spawn(move || stdin.write_all(&bytes).unwrap());
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        assert!(output.status.success() && output.stdout.len() == inputs.len() * OUTPUT_BYTES);
        output.stdout.chunks(OUTPUT_BYTES).map(Decision::read).collect()
    }
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
        let (indices, _pin) = stats.assign_indices(&ids);
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

    /// The input of the program: `struct input` of `bpf/vectors.c`.
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

/// The cases of one list that the kernel may get: it sends first attempts alone, to a bounded number of candidates.
fn cases(file: &str, list: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors").join(file);
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let count = |case: &Value, field: &str| case[field].as_array().map_or(0, Vec::len);
    let cases = all[list].as_array().unwrap().iter();
    let cases: Vec<_> = cases
        .filter(|case| count(case, "tried") == 0 && count(case, "weights") <= BLOCK_ENDPOINTS)
        .cloned()
        .collect();
    assert!(!cases.is_empty(), "{file}");
    cases
}

fn balancing(policy: BalancingPolicy) -> Balancing {
    Balancing { policy, ..Balancing::default() }
}

/// Compares decisions with the expected positions; those of candidates that failed may be left to the proxy.
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
fn picks() {
    let Some(decider) = Decider::new() else { return };
    let lists = [
        ("picks", BalancingPolicy::LeastRequest),
        ("random", BalancingPolicy::Random),
        ("score", BalancingPolicy::Score),
    ];
    for (list, policy) in lists {
        for case in cases("pick.json", list) {
            let service = Case::new(&case, &balancing(policy));
            let inputs: Vec<_> = (0..8).map(|seed| service.input(1, seed)).collect();
            compare(&case, &decider.decide(&inputs), &numbers(&case["picked_by_seed_0_to_7"]));
        }
    }
}

#[test]
fn turns() {
    let Some(decider) = Decider::new() else { return };
    for case in cases("turns.json", "turns") {
        let service = Case::new(&case, &balancing(BalancingPolicy::RoundRobin));
        let turn = |_| {
            let input = service.input(1, 1);
            service.stats.advance_round_robin();
            input
        };
        let inputs: Vec<_> = (0..20).map(turn).collect();
        compare(&case, &decider.decide(&inputs), &numbers(&case["picked_in_turns_0_to_19"]));
    }
}

#[test]
fn reports() {
    let Some(decider) = Decider::new() else { return };
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
            let decisions = decider.decide(&inputs);
            compare(&case, &decisions[..8], &numbers(&case["picked_by_seed_0_to_7"]));
            for (decision, list) in [(&decisions[0], "scores"), (&decisions[8], "scores_90s_later")] {
                let expected: Vec<_> =
                    case[list].as_array().unwrap().iter().map(|score| score.as_i64().unwrap()).collect();
                assert_eq!(decision.scores[..expected.len()], expected, "{list} of {case}");
            }
        }
    }
}
