//! The callers that a drain or a shard move waits for.

use fairmesh_console::{connect::SOFTWARE, failure::Failure};
use fairmesh_model::{Cursor, Prefix};
use fairmesh_wire::{
    handshake::Connection,
    v1::{ReadRequest, WatchersRequest},
};

/// Callers that have not applied the last change below a prefix, as `name (identity)`.
pub(crate) async fn behind(connection: &Connection, prefix: &Prefix) -> Result<Vec<String>, Failure> {
    let prefix = prefix.to_string();
    let mut rib = connection.rib();
    // Not through a watch, which would itself count as a watcher. If the records are too large to read, the callers are
    // not printed.
    let read = rib.read(ReadRequest { prefixes: vec![prefix.clone()], ..ReadRequest::default() }).await;
    let Ok(records) = read else { return Ok(Vec::new()) };
    let written = records.into_inner().entries.iter().map(|entry| entry.revision).max().unwrap_or_default();
    let watchers = rib.watchers(WatchersRequest { prefix }).await?.into_inner().watchers;
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
