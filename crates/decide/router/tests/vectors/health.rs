//! Verdicts and expired leases, in combination with the caller's own calls.

use super::*;

const HEALTHY: &str = "serving";

/// Four endpoints in `eu` and four in `us`, the next ring.
fn regions(lost: &[&str]) -> Value {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let list: Vec<_> = names
        .iter()
        .map(|name| {
            let region = if *name < "e" { "eu" } else { "us" };
            let state = if lost.contains(name) { "lost" } else { HEALTHY };
            (*name, region, state, 1000)
        })
        .collect();
    let mut endpoints = endpoints(&list);
    for endpoint in endpoints["endpoints"].as_array_mut().unwrap() {
        if endpoint["state"] == "lost" {
            endpoint["labels"] = json!({"fairmesh.lost": "5 expired"});
        }
    }
    endpoints
}

fn policy() -> Value {
    json!({"service": "shop/cart", "locality": {"rings": ["region", "any"]}})
}

fn divided(shares: Value) -> Value {
    json!({"service": "shop/cart", "traffic": {"shares": [{"from": "eu", "to": shares}]}})
}

fn fleets() -> Vec<(&'static str, Fleet)> {
    let plain = || Fleet::replicated(policy(), regions(&[]));
    let all: &[(&str, u32)] = &[("a", 9), ("b", 9), ("c", 9), ("d", 9)];
    let most: &[(&str, u32)] = &[("a", 9), ("b", 3), ("c", 9)];
    let everywhere: &[(&str, u32)] =
        &[("a", 9), ("b", 9), ("c", 9), ("d", 9), ("e", 9), ("f", 9), ("g", 9), ("h", 9)];
    let short: &[(&str, u32)] = &[("a", 9), ("b", 9), ("c", 9), ("e", 9), ("f", 9), ("g", 9)];
    let hashed = || Fleet { kind: "consistent-hash", ..plain() };
    let table = |shares| Fleet { policy: divided(shares), ..plain() };
    let expired = |lost: &[&str]| Fleet { endpoints: regions(lost), ..plain() };
    let alone = |lost: &[&str]| Fleet {
        policy: json!({"service": "shop/cart", "locality": {"localOnly": true}}),
        ..expired(lost)
    };
    vec![
        ("half of the region is unhealthy", Fleet { failed_probes: &[("a", 9), ("b", 3)], ..plain() }),
        ("all of the region is unhealthy", Fleet { failed_probes: all, ..plain() }),
        ("most of the region is unhealthy", Fleet { failed_probes: most, ..plain() }),
        ("most of both regions is unhealthy", Fleet { failed_probes: short, ..plain() }),
        ("all regions are unhealthy", Fleet { failed_probes: everywhere, ..plain() }),
        (
            "the checker is wrong",
            Fleet { failed_probes: all, called: &[("a", true), ("b", true)], ..plain() },
        ),
        (
            "the checker is right",
            Fleet { failed_probes: all, called: &[("a", true), ("b", false)], ..plain() },
        ),
        ("most of the region is unhealthy, by key", Fleet { failed_probes: most, ..hashed() }),
        ("a table by hand", Fleet { failed_probes: most, ..table(json!({"eu": "100%"})) }),
        (
            "a table with another region",
            Fleet { failed_probes: most, ..table(json!({"eu": "60%", "us": "40%"})) },
        ),
        ("the leases of the region expired", expired(&["a", "b", "c", "d"])),
        ("most leases of the region expired", expired(&["a", "b", "c"])),
        ("most leases of the only region expired", alone(&["a", "b", "c"])),
        ("few leases of the only region expired", alone(&["a"])),
        (
            "agents died, and servers are well",
            Fleet { called: &[("a", true), ("b", true)], ..expired(&["a", "b", "c"]) },
        ),
    ]
}

#[test]
fn health_decisions_match_vectors() {
    let cases = fleets().into_iter().map(|(name, fleet)| {
        let table = fleet.compile();
        let key = (fleet.kind != "replicated").then_some(());
        let pick = |seed: u64| {
            let key = key.map(|()| ShardKey(seed.into()));
            let params = PickParams { key, call_seed: seed, ..PickParams::default() };
            picked(&table, &params, seed)
        };
        let picks: Vec<_> = (0..32).map(pick).collect();
        let contested = table.contested_regions().iter();
        let contested =
            contested.map(|(region, standing)| (region.to_string(), json!(format!("{standing:?}"))));
        let mut written = fleet.write();
        written["failedProbes"] = fleet.failed_probes.iter().copied().collect();
        written["called"] = fleet.called.iter().copied().collect();
        json!({
            "case": name, "fleet": written, "contested": contested.collect::<serde_json::Map<_, _>>(),
            "kernel": table.numbers().is_ok(), "picked_by_seed_0_to_31": picks,
        })
    });
    check("health.json", &[("cases", cases.collect())]);
}
