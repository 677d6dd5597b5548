//! Compares arithmetic, rendezvous hashing and picks with `vectors/`; see the README there for how to change them.

#![allow(clippy::unwrap_used, reason = "a test that panics has found something")]

use fairmesh_balancer::{Contest, Members, Outcome, Slots, pick, rendezvous};
use fairmesh_model::{
    InstanceId,
    arith::{self, Generator, LOG_TABLE, mix64},
};
use serde_json::{Value, json};

#[path = "../../../vectors/support.rs"]
mod support;

use support::{check, hex};

/// Numbers at which arithmetic goes wrong if it does, and some ordinary ones.
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
fn arithmetic() {
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
fn rendezvous_hashing() {
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

#[test]
fn picks() {
    let mut random = Generator::new(11);
    let cases = (0..60).map(|case| {
        let n = 1 + random.below([4, 12, 30][case % 3]);
        let mut each = |bound| -> Vec<u64> { (0..n).map(|_| random.below(bound)).collect() };
        let weights: Vec<u64> =
            if case % 2 == 0 { vec![1000; n as usize] } else { each(3000).iter().map(|w| w + 1).collect() };
        let outstanding = each(4);
        let some = |draws: Vec<u64>| -> Vec<u32> {
            (0..).zip(draws).filter(|draw| draw.1 == 0).map(|draw| draw.0).collect()
        };
        let penalised = some(each([u64::MAX, 4, 2][case / 3 % 3]));
        let tried = some(each([u64::MAX, 8][case % 2]));
        let picked: Vec<Value> =
            (0..8).map(|seed| json!(picked(&weights, &outstanding, (&penalised, &tried), seed))).collect();
        json!({
            "weights": weights, "outstanding": outstanding, "penalised": penalised, "tried": tried,
            "picked_by_seed_0_to_7": picked,
        })
    });
    check("pick.json", &[("picks", cases.collect())]);
}

fn picked(weights: &[u64], outstanding: &[u64], (penalised, tried): (&[u32], &[u32]), seed: u64) -> u32 {
    let slots = Slots::default();
    let ids: Vec<_> = (0..weights.len()).map(|i| InstanceId::new(format!("i{i}")).unwrap()).collect();
    let (indices, _lease) = slots.assign(&ids);
    for (&index, &count) in indices.iter().zip(outstanding) {
        (0..count).for_each(|_| slots.begin(index));
    }
    for &index in penalised {
        slots.begin(index);
        slots.finish(index, Outcome::Unreachable, 0);
    }
    let members: Vec<_> = indices.into_iter().zip(weights.iter().map(|&weight| weight as u32)).collect();
    let contest = Contest { slots: &slots, avoid: tried, now: 1 };
    pick(&Members::new(&members).group(), &contest, &mut Generator::new(seed), &mut ()).unwrap().index
}
