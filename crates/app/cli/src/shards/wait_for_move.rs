use std::time::Duration;

use fairmesh_console::{failure::Failure, output};
use fairmesh_model::{Prefix, ServiceName, ShardMove, ShardPart};
use fairmesh_wire::{handshake::Connection, v1::ListMovesRequest};
use tokio::time::{Instant, sleep};

use crate::lagging_callers;

/// Poll interval.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Duration after which the phase of a move is printed.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// Polls until the move is no longer listed: the control plane completes a move and then deletes its record. Prints the
/// phases of a slow move.
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
                output::note(format!("shard {} of {service} is {phase}: {waits}", move_request.shard));
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
    let ranges = Prefix::shards(service, Some(&ShardPart::Ranges));
    let behind = lagging_callers::behind(connection, &ranges).await?;
    Ok(match behind.is_empty() {
        true => "waiting for the control plane".to_owned(),
        false => format!("waiting for callers that have not applied the map: {}", behind.join(", ")),
    })
}
