use std::time::Duration;

use fairmesh_model::{Cursor, Prefix, ServiceName, ShardMove, ShardPart};
use fairmesh_wire::{
    handshake::Connection,
    v1::{ListMovesRequest, ReadRequest, WatchersRequest},
};
use tokio::time::{Instant, sleep};

use crate::{connect::SOFTWARE, failure::Failure};

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Duration after which the phase of a move is printed.
const REPORT_AFTER: Duration = Duration::from_secs(2);

/// Polls until the move is no longer listed: the control plane completes a move and then deletes its record. The phases
/// of a slow move are printed.
pub(super) async fn wait_until_moved(
    connection: &Connection,
    service: &ServiceName,
    move_request: &ShardMove,
) -> Result<(), Failure> {
    let (start, mut told) = (Instant::now(), String::new());
    while let Some(phase) = phase(connection, service, move_request).await? {
        if let Some(reason) = phase.strip_prefix("undone: ") {
            return Err(Failure::failed_with(
                format!("{service}: the move of {move_request} was undone: {reason}"),
                "its former holder keeps it; fix the reason, and request the move again",
            ));
        }
        if start.elapsed() >= REPORT_AFTER {
            let waits = waits_for(connection, service, move_request, &phase).await?;
            if waits != told {
                eprintln!("shard {} of {service} is {phase}: {waits}", move_request.shard);
                told = waits;
            }
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Phase of the move; `None` when it is done.
async fn phase(
    connection: &Connection,
    service: &ServiceName,
    move_request: &ShardMove,
) -> Result<Option<String>, Failure> {
    let request = ListMovesRequest { service: service.to_string() };
    for status in connection.registry().list_moves(request).await?.into_inner().moves {
        let Some(message) = status.r#move else { continue };
        if ShardMove::try_from(message)? == *move_request {
            return Ok(Some(status.phase));
        }
    }
    Ok(None)
}

async fn waits_for(
    connection: &Connection,
    service: &ServiceName,
    move_request: &ShardMove,
    phase: &str,
) -> Result<String, Failure> {
    if let Some(to) = move_request.to.as_ref().filter(|_| phase == "starting") {
        return Ok(format!("waiting until '{to}' serves and has loaded it"));
    }
    let behind = behind(connection, service).await?;
    Ok(match behind.is_empty() {
        true => "waiting for the control plane".to_owned(),
        false => format!("waiting for callers that have not applied the map: {}", behind.join(", ")),
    })
}

/// Callers that have not applied the current map.
async fn behind(connection: &Connection, service: &ServiceName) -> Result<Vec<String>, Failure> {
    let ranges = Prefix::shards(service, Some(&ShardPart::Ranges)).to_string();
    let mut rib = connection.rib();
    // Not through a watch, which would count as one of them. For a map too large to read the callers are not printed.
    let read = rib.read(ReadRequest { prefixes: vec![ranges.clone()], ..ReadRequest::default() }).await;
    let Ok(map) = read else { return Ok(Vec::new()) };
    let written = map.into_inner().entries.iter().map(|entry| entry.revision).max().unwrap_or_default();
    let watchers = rib.watchers(WatchersRequest { prefix: ranges }).await?.into_inner().watchers;
    let mut behind = Vec::new();
    for watcher in watchers.into_iter().filter(|watcher| watcher.software != SOFTWARE) {
        let applied = watcher.applied.map(Cursor::try_from).transpose()?;
        if applied.is_none_or(|applied| applied.number(0) < written) {
            behind.push(format!("{} ({})", watcher.software, watcher.identity));
        }
    }
    behind.sort();
    Ok(behind)
}
