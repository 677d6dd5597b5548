//! `fairmesh shards loads`: load of the shards of each server.

use std::process::ExitCode;

use fairmesh_console::{connect, failure::Failure, output::Listing};
use fairmesh_wire::v1::{ReadShardLoadsRequest, ServerLoad};
use serde_json::json;

use super::ServiceArgs;

/// Maximum number of shards named in a table row.
const MAX_NAMED: usize = 3;

/// Runs the command.
pub(super) async fn run(of: ServiceArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&of.target).await?;
    let request = ReadShardLoadsRequest { service: of.service.to_string() };
    let servers = connection.registry().read_shard_loads(request).await?.into_inner().servers;
    let mut listing =
        Listing::new(&["INSTANCE", "REGION", "POWER", "REPORTED", "CALLS/MIN", "LOAD", "HOTTEST SHARDS"]);
    for server in servers {
        listing.add(row(&server), item(&server));
    }
    listing.print(of.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

fn row(server: &ServerLoad) -> Vec<String> {
    let known = |text: String| if server.age_ms.is_some() { text } else { "-".into() };
    let mut hottest: Vec<_> = server.shards.iter().collect();
    hottest.sort_by_key(|shard| (std::cmp::Reverse(shard.work), shard.shard));
    let hottest =
        hottest.iter().take(MAX_NAMED).map(|shard| format!("{}: {}", shard.shard, in_flight(shard.work)));
    vec![
        server.instance.clone(),
        server.region.clone(),
        server.power.to_string(),
        server.age_ms.map_or("never, or long ago".into(), |age| format!("{} s ago", age / 1000)),
        known(server.calls.to_string()),
        known(in_flight(server.work)),
        hottest.collect::<Vec<_>>().join(", "),
    ]
}

/// Formats a load as the average number of calls in flight.
fn in_flight(work: u64) -> String {
    format!("{:.3}", work as f64 / 1e6)
}

fn item(server: &ServerLoad) -> serde_json::Value {
    let shards = server.shards.iter();
    let shards = shards.map(|shard| json!({ "shard": shard.shard, "role": shard.role, "work": shard.work }));
    json!({
        "instance": server.instance,
        "region": server.region,
        "zone": server.zone,
        "power": server.power,
        "serves": server.serves,
        "ageMs": server.age_ms,
        "callsPerMinute": server.calls,
        "work": server.work,
        "shards": shards.collect::<Vec<_>>(),
        "rest": server.rest,
    })
}
