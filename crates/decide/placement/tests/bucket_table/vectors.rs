use std::{collections::BTreeSet, net::Ipv4Addr};

use fairmesh_model::arith::Generator;
use fairmesh_placement::{BUCKETS, CHAIN};
use serde_json::{Value, json};

use crate::{
    support::{check, hex},
    table::table,
    walk::{Holds, Mark, Seen, Verdict, bucket_of, decide},
};

#[test]
fn redirects_match_vectors() {
    check("redirects.json", &[("buckets", buckets()), ("tables", tables()), ("walks", walks())]);
}

fn buckets() -> Vec<Value> {
    let clients =
        [([192, 0, 2, 7], 40_000), ([192, 0, 2, 7], 40_001), ([10, 0, 0, 1], 1), ([255; 4], 65_535)];
    let case = |(address, port): ([u8; 4], u16)| {
        let address = Ipv4Addr::from(address);
        json!({ "address": address, "port": port, "bucket": bucket_of(address.into(), port) })
    };
    clients.into_iter().map(case).collect()
}

fn tables() -> Vec<Value> {
    let case = |count: u8| {
        let table = table(&(1..=count).collect::<BTreeSet<u8>>());
        let buckets = [0, 1, 2, 1_000, BUCKETS - 1];
        let chains = buckets.map(|bucket| json!({ "bucket": bucket, "chain": table.chains()[bucket] }));
        json!({ "replicas": table.replicas(), "version": table.version(), "chains": chains })
    };
    [1, 2, 4, 10].into_iter().map(case).collect()
}

/// Packets of all kinds at replicas anywhere in the chain, or outside of it.
fn walks() -> Vec<Value> {
    let mut generator = Generator::new(7);
    (0..400).map(|_| walk(&mut generator)).collect()
}

fn walk(generator: &mut Generator) -> Value {
    let mut below = |bound: u64| generator.below(bound);
    let length = below(CHAIN as u64 + 1) as usize;
    let mut chain = [255; CHAIN];
    let mut replicas: Vec<u8> = (0..12).chain([63]).collect();
    for place in chain.iter_mut().take(length) {
        *place = replicas.swap_remove(below(replicas.len() as u64) as usize);
    }
    let own = match below(6) {
        0 => None,
        1 => Some(below(12) as u8),
        _ if length == 0 => None,
        _ => Some(chain[below(length as u64) as usize]),
    };
    let unreachable = (0..64).filter(|_| below(3) == 0).fold(0, |bits, replica| bits | 1_u64 << replica);
    let version = below(32) as u8;
    let mark = (below(2) == 0).then(|| Mark {
        version: if below(4) == 0 { below(32) as u8 } else { version },
        hops: below(16) as u32,
    });
    let seen = Seen {
        chain,
        unreachable: if below(2) == 0 { 0 } else { unreachable },
        own,
        version,
        mark,
        begins: below(2) == 0,
        listens: below(4) > 0,
        holds: [Holds::Nothing, Holds::Nothing, Holds::Nothing, Holds::Ended, Holds::Open][below(5) as usize],
    };
    let verdict = match decide(&seen) {
        Verdict::Take => json!("take"),
        Verdict::Discard => json!("discard"),
        Verdict::PassOn { next, hops } => json!({ "next": next, "hops": hops }),
    };
    let holds = match seen.holds {
        Holds::Nothing => "nothing",
        Holds::Ended => "ended",
        Holds::Open => "open",
    };
    json!({
        "chain": chain,
        "unreachable": hex(seen.unreachable),
        "own": own,
        "version": version,
        "mark": mark.map(|mark| json!({ "version": mark.version, "hops": mark.hops })),
        "begins": seen.begins,
        "listens": seen.listens,
        "holds": holds,
        "verdict": verdict,
    })
}
