//! Calls divided among regions and zones by a table.

use super::*;

/// Shares for callers in `eu`. All calls of class `bulk` go to `asia`.
fn traffic() -> Value {
    json!({"service": "shop/cart", "traffic": {"shares": [
        {"from": "eu", "to": {"eu": "50%", "near": "20%", "us": "15%", "asia": "5%"}, "dropped": "10%"},
        {"from": "eu", "class": "bulk", "to": {"asia": "100%"}},
        {"from": "us", "to": {"us": "100%"}},
    ]}})
}

/// Fleets whose calls are divided by a table, with the keys of the calls.
fn divided_fleets() -> [(Fleet, &'static [Option<u128>]); 14] {
    let list = [
        ("a", "eu", "serving", 1000),
        ("b", "eu", "serving", 3000),
        ("c", "near", "serving", 1000),
        ("d", "us", "serving", 1000),
        ("e", "asia", "serving", 1000),
    ];
    let without = |instance: &str| -> Vec<_> {
        list.into_iter()
            .map(|one| if one.0 == instance { (one.0, one.1, "draining", one.3) } else { one })
            .collect()
    };
    let mut undrained = topology();
    undrained["regions"][2] = json!({"name": "us"});
    let divided = Fleet { topology: undrained.clone(), ..Fleet::replicated(traffic(), endpoints(&list)) };
    let keyed = |kind, shard_map| Fleet { kind, shard_map, ..divided.clone() };
    let mut local = traffic();
    local["locality"] = json!({"localOnly": true});
    let mut near = traffic();
    near["locality"] = json!({"rings": ["35ms"]});
    let none: &'static [Option<u128>] = &[None];
    [
        (divided.clone(), none),
        // `us` is draining.
        (Fleet { topology: topology(), ..divided.clone() }, none),
        // No endpoint serves in `near`, so rings decide the calls drawn there.
        (Fleet { endpoints: endpoints(&without("c")), ..divided.clone() }, none),
        (Fleet { policy: local, ..divided.clone() }, none),
        (Fleet { policy: near, ..divided.clone() }, none),
        (Fleet { confirmed: Some(59), ..divided.clone() }, none),
        (Fleet { confirmed: Some(60), ..divided.clone() }, none),
        (Fleet { confirmed: Some(900), ..divided.clone() }, none),
        (
            keyed("consistent-hash", Value::Null),
            &[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), None],
        ),
        (keyed("sharded", map_of_regions()), &[Some(3), Some(618), Some(900), None]),
        // No endpoint serves in `near`, and the table is a planner's. The calls drawn there are spread over the other
        // regions by power.
        (Fleet { confirmed: Some(0), endpoints: endpoints(&without("c")), ..divided.clone() }, none),
        (
            Fleet {
                confirmed: Some(0),
                endpoints: endpoints(&without("c")),
                ..keyed("consistent-hash", Value::Null)
            },
            &[Some(1), Some(2), Some(3), Some(4), Some(5), Some(6)],
        ),
        (by_zone("eu-a", &undrained), none),
        // No endpoint serves in the drawn zone, so any zone of the region may be used.
        (by_zone("eu-c", &undrained), none),
    ]
}

/// A shard map in which each shard has copies in two regions.
fn map_of_regions() -> Value {
    let replica = |instance: &str, region: &str| json!({"instance": instance, "region": region, "role": "primary", "state": "serving"});
    json!({"service": "shop/cart", "version": 3, "interval": {"start": 0, "end": 900}, "shards": [
        {"id": 4, "start": 0, "replicas": [replica("a", "eu"), replica("d", "us")]},
        {"id": 5, "start": 500, "replicas": [replica("d", "us"), replica("e", "asia")]},
    ]})
}

/// Three zones in `eu`, and one more region. The last zone is draining, and a planner divides the calls of a zone.
fn by_zone(zone: &'static str, topology: &Value) -> Fleet {
    let policy = json!({"service": "shop/cart", "traffic": {"planner": "rings"}, "locality": {"rings": ["zone", "any"]}});
    let list = [
        ("a", "eu", "serving", 1000),
        ("b", "eu", "serving", 3000),
        ("c", "eu", "draining", 1000),
        ("d", "us", "serving", 1000),
    ];
    let mut endpoints = endpoints(&list);
    for (endpoint, zone) in
        endpoints["endpoints"].as_array_mut().unwrap().iter_mut().zip(["eu-a", "eu-b", "eu-c", "us-a"])
    {
        endpoint["zone"] = json!(zone);
    }
    let planned = match zone {
        "eu-a" => {
            Planned { regions: &[("eu", "80%"), ("us", "20%")], zones: &[("eu-a", "40%"), ("eu-b", "60%")] }
        }
        _ => Planned { regions: &[("eu", "100%")], zones: &[("eu-c", "100%")] },
    };
    Fleet {
        topology: topology.clone(),
        zone: Some(zone),
        planned: Some(planned),
        ..Fleet::replicated(policy, endpoints)
    }
}

#[test]
fn region_tables_match_vectors() {
    let bulk = Label::new("bulk").unwrap();
    let cases = divided_fleets().map(|(fleet, keys)| {
        let table = fleet.compile();
        let calls = keys.iter().flat_map(|key| [None, Some(&bulk)].map(|class| (*key, class)));
        let calls = calls.map(|(key, class)| {
            let pick = |seed| {
                let key = key.map(ShardKey);
                let params = PickParams { key, class, call_seed: seed, ..PickParams::default() };
                picked(&table, &params, seed)
            };
            let picks: Vec<_> = (0..64).map(pick).collect();
            json!({"key": key.map(|key| key.to_string()), "class": class, "picked_by_seed_0_to_63": picks})
        });
        let mut written = fleet.write();
        written["confirmedSecondsAgo"] = json!(fleet.confirmed);
        if let Some(planned) = &fleet.planned {
            written["planned"] = planned.write();
        }
        json!({"fleet": written, "calls": calls.collect::<Vec<_>>()})
    });
    check("tables.json", &[("cases", cases.into_iter().collect())]);
}
