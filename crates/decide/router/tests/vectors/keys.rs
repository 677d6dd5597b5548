//! Shards and calls by key.

use super::*;

#[test]
fn shard_lookups_match_vectors() {
    let mut random = Generator::new(5);
    let mut wide: Vec<u128> = (0..40).map(|i| u128::from(random.next()) << (i * 3 % 65)).collect();
    wide.extend([0, 1 << 64, (1 << 64) + 1, (1 << 64) + 2]);
    wide.sort_unstable();
    wide.dedup();
    let maps = [(vec![0, 100, 200, 300, 400, 500], Some(900)), (wide, None)];
    let cases = maps.into_iter().map(|(starts, end): (Vec<u128>, Option<u128>)| {
        let shards: Vec<_> =
            starts.iter().zip(0..).map(|(start, id)| json!({"id": id, "start": start.to_string()})).collect();
        let end = end.map_or("max".to_owned(), |end| end.to_string());
        let map = json!({"service": "shop/cart", "interval": {"start": 0, "end": end}, "shards": shards});
        let compiled = ShardTable::compile(&read::<ShardMapSpec>(&map).validate().unwrap().1);
        let around = starts.iter().flat_map(|&start| [start.saturating_sub(1), start, start + 1]);
        let look_ups = around.chain([618, 899, 900, u128::MAX]).map(|key| {
            let shard = compiled.locate(ShardKey(key)).map(|located| located.shard.0);
            json!([key.to_string(), shard])
        });
        json!({"map": map, "key_and_shard": look_ups.collect::<Vec<_>>()})
    });
    check("shards.json", &[("maps", cases.collect())]);
}

fn replica(instance: &str, role: &str, state: &str) -> Value {
    json!({"instance": instance, "region": "eu", "role": role, "state": state})
}

#[test]
fn keyed_call_picks_match_vectors() {
    let list: Vec<_> = [
        ("a", "eu"),
        ("b", "eu"),
        ("c", "near"),
        ("d", "us"),
        ("e", "asia"),
        ("f", "eu"),
        ("g", "eu"),
        ("h", "eu"),
    ]
    .into_iter()
    .zip([1000, 2000, 1000, 500, 1000, 1000, 3000, 1000])
    .map(|((instance, region), weight)| (instance, region, "serving", weight))
    .collect();
    let map = json!({"service": "shop/cart", "version": 3, "interval": {"start": 0, "end": 900}, "shards": [
        {"id": 4, "start": 0, "replicas": [replica("d", "primary", "serving"), replica("e", "secondary", "serving")]},
        {"id": 5, "start": 500, "replicas": [
            replica("a", "primary", "stopping"), replica("b", "primary", "starting"),
            replica("c", "secondary", "serving"), replica("f", "secondary", "serving"),
            replica("g", "secondary", "serving"), replica("a", "secondary", "serving"),
            replica("h", "secondary", "serving"), replica("b", "secondary", "serving")]},
    ]});
    let policy = json!({"service": "shop/cart"});
    let replicated = Fleet::replicated(policy, endpoints(&list));
    let sharded = Fleet { kind: "sharded", topology: topology(), shard_map: map, ..replicated };
    let hashed = Fleet { kind: "consistent-hash", shard_map: Value::Null, ..sharded.clone() };
    let of_role = json!({"service": "shop/cart", "role": "primary"});
    let by_policy = Fleet { policy: of_role, ..sharded.clone() };
    let calls = |fleet: &Fleet, keys: &[Option<u128>], roles: &[Option<&str>]| {
        let table = fleet.compile();
        let case = |(key, role): (Option<u128>, Option<&str>)| {
            let role = role.map(|role| Role::new(role).unwrap());
            let params = PickParams { key: key.map(ShardKey), role: role.as_ref(), ..PickParams::default() };
            let picks: Vec<_> = (0..8).map(|seed| picked(&table, &params, seed)).collect();
            json!({"key": key.map(|key| key.to_string()), "role": role, "picked_by_seed_0_to_7": picks})
        };
        let calls_by_role = keys.iter().flat_map(|&key| roles.iter().map(move |&role| (key, role)));
        json!({"fleet": fleet.write(), "calls": calls_by_role.map(case).collect::<Vec<_>>()})
    };
    let roles = [None, Some("primary"), Some("secondary"), Some("unheard")];
    let keys: Vec<_> = (0..30).map(|key| Some(key * 1_000_003)).chain([None, Some(u128::MAX)]).collect();
    let cases = vec![
        calls(&sharded, &[Some(618), Some(3), Some(900), None], &roles),
        calls(&hashed, &keys, &[None]),
        calls(&by_policy, &[Some(618), Some(3)], &roles),
    ];
    check("keys.json", &[("cases", cases)]);
}
