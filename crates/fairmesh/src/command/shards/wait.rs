use std::time::Duration;

use fairmesh_model::{Cursor, Prefix, ServiceName, ShardMove, ShardPart};
use fairmesh_wire::{
    handshake::Connection,
    v1::{ListMovesRequest, ReadRequest, WatchersRequest},
};
use tokio::time::{Instant, sleep};

use crate::{connect::SOFTWARE, failure::Failure};

/// How often to ask how far the move is.
const ASK_EVERY: Duration = Duration::from_millis(100);
/// After how long a person wants to know what takes the time.
const PATIENCE: Duration = Duration::from_secs(2);

/// Polls until the move is no longer listed: it is a wish that the control plane carries out and then forgets. One that
/// takes long is spoken of, each time that it waits for something else.
pub(super) async fn until_moved(
    connection: &Connection,
    service: &ServiceName,
    wish: &ShardMove,
) -> Result<(), Failure> {
    let (start, mut told) = (Instant::now(), String::new());
    while let Some(phase) = phase(connection, service, wish).await? {
        if let Some(reason) = phase.strip_prefix("undone: ") {
            return Err(Failure::failed_with(
                format!("{service}: the move of {wish} was undone: {reason}"),
                "who held it holds it as before; ask for it again when that is mended",
            ));
        }
        if start.elapsed() >= PATIENCE {
            let waits = waits_for(connection, service, wish, &phase).await?;
            if waits != told {
                eprintln!("shard {} of {service} is {phase}: {waits}", wish.shard);
                told = waits;
            }
        }
        sleep(ASK_EVERY).await;
    }
    Ok(())
}

/// How far the move is; `None` where it is done.
async fn phase(
    connection: &Connection,
    service: &ServiceName,
    wish: &ShardMove,
) -> Result<Option<String>, Failure> {
    let request = ListMovesRequest { service: service.to_string() };
    for status in connection.registry().list_moves(request).await?.into_inner().moves {
        let Some(message) = status.r#move else { continue };
        if ShardMove::try_from(message)? == *wish {
            return Ok(Some(status.phase));
        }
    }
    Ok(None)
}

async fn waits_for(
    connection: &Connection,
    service: &ServiceName,
    wish: &ShardMove,
    phase: &str,
) -> Result<String, Failure> {
    if let Some(to) = wish.to.as_ref().filter(|_| phase == "starting") {
        return Ok(format!("waiting until '{to}' serves and has loaded it"));
    }
    let behind = behind(connection, service).await?;
    Ok(match behind.is_empty() {
        true => "waiting for the control plane".to_owned(),
        false => format!("waiting for callers that have yet to follow: {}", behind.join(", ")),
    })
}

/// Callers that do not decide by the present map.
async fn behind(connection: &Connection, service: &ServiceName) -> Result<Vec<String>, Failure> {
    let ranges = Prefix::shards(service, Some(&ShardPart::Ranges)).to_string();
    let mut rib = connection.rib();
    // Not through a watch, which would itself be one that has yet to follow. A map too large to be read so is moved
    // without this.
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
