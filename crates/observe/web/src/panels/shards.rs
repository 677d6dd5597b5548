use std::{cmp::Reverse, collections::BTreeMap};

use fairmesh_wire::v1;
use serde_json::{Value, json};

use super::given;
use crate::{command_queries::coarse, event_delta::Shown};

/// Maximum number of shards that are listed. Those with the most work come first.
const MAX_LISTED: usize = 200;
/// Maximum number of moves that are listed.
const MAX_MOVES: usize = 100;
/// Work of one call in flight at all times.
const IN_FLIGHT: f64 = 1e6;

/// Shows a shard map with the load of its servers and the moves in flight, like `fairmesh shards get`, `loads` and
/// `moves`.
pub(crate) fn shards(
    map: &v1::ShardMap,
    loads: &v1::ReadShardLoadsResponse,
    moves: &v1::ListMovesResponse,
) -> Shown {
    let mut work = BTreeMap::<u32, u64>::new();
    for shard in loads.servers.iter().flat_map(|server| &server.shards) {
        *work.entry(shard.shard).or_default() += shard.work;
    }
    let mut copies = BTreeMap::<&str, usize>::new();
    for replica in map.shards.iter().flat_map(|shard| &shard.replicas) {
        *copies.entry(&replica.instance).or_default() += 1;
    }
    let mut listed: Vec<_> = map.shards.iter().collect();
    listed.sort_by_key(|shard| (Reverse(work.get(&shard.id)), shard.id));
    let shard = |shard: &&v1::Shard| {
        let copies = shard.replicas.iter().map(copy).collect::<Vec<_>>();
        json!({
            "shard": shard.id,
            "start": hexadecimal(&shard.start),
            "inFlight": work.get(&shard.id).map(|work| in_flight(*work)),
            "copies": copies,
        })
    };
    let servers = loads.servers.iter().map(|one| server(one, copies.get(one.instance.as_str())));
    Shown::head(&json!({
        "version": map.version,
        "all": map.shards.len(),
        "listed": listed.iter().take(MAX_LISTED).map(shard).collect::<Vec<_>>(),
        "servers": servers.collect::<Vec<_>>(),
        "moves": moves.moves.iter().take(MAX_MOVES).map(shard_move).collect::<Vec<_>>(),
        "moreMoves": moves.moves.len().saturating_sub(MAX_MOVES),
    }))
}

fn copy(replica: &v1::Replica) -> Value {
    json!({ "instance": replica.instance, "region": replica.region, "role": replica.role })
}

fn server(server: &v1::ServerLoad, copies: Option<&usize>) -> Value {
    let known = server.age_ms.is_some();
    json!({
        "instance": server.instance,
        "region": server.region,
        "serves": server.serves,
        "copies": copies.copied().unwrap_or_default(),
        "ageMs": server.age_ms.map(|age| coarse(age.into())),
        "callsPerSecond": known.then(|| server.calls as f64 / 60.0),
        "inFlight": known.then(|| in_flight(server.work)),
    })
}

fn shard_move(status: &v1::MoveStatus) -> Value {
    let asked = status.r#move.clone().unwrap_or_default();
    json!({
        "shard": asked.shard,
        "role": asked.role,
        "from": given(&asked.from),
        "to": given(&asked.to),
        "phase": status.phase,
    })
}

fn in_flight(work: u64) -> f64 {
    (work as f64 / IN_FLIGHT * 1e3).round() / 1e3
}

/// Formats a key as hexadecimal, like `0x1f4`.
fn hexadecimal(key: &[u8]) -> String {
    let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    match digits.trim_start_matches('0') {
        "" => "0x0".to_owned(),
        digits => format!("0x{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_keys_are_shown_without_leading_zeros() {
        assert_eq!(hexadecimal(&[0; 16]), "0x0");
        assert_eq!(hexadecimal(&500_u128.to_be_bytes()), "0x1f4");
    }
}
