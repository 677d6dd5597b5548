//! Lists across services: moves, watchers.

use std::collections::BTreeMap;

use fairmesh_console::{connect::SOFTWARE, failure::Failure, output::Listing, view_reader::View};
use fairmesh_model::{Cursor, InstanceId, Prefix, ServiceName, ShardMove};
use fairmesh_wire::{
    handshake::Connection,
    v1::{ListMovesRequest, Watcher, WatchersRequest},
};
use serde_json::json;

/// Columns of the list of moves.
pub(crate) const MOVES_HEAD: &[&str] = &["SERVICE", "SHARD", "ROLE", "FROM", "TO", "PHASE"];

/// One row per move in progress.
pub(super) async fn moves(connection: &Connection, view: &View) -> Result<Listing, Failure> {
    let mut listing = Listing::new(MOVES_HEAD);
    for (name, one) in &view.services {
        if !one.moves.is_empty() {
            add_moves(connection, name, &mut listing).await?;
        }
    }
    Ok(listing)
}

/// Adds the moves of one service, with their progress from the registry.
pub(crate) async fn add_moves(
    connection: &Connection,
    name: &ServiceName,
    listing: &mut Listing,
) -> Result<(), Failure> {
    let request = ListMovesRequest { service: name.to_string() };
    for status in connection.registry().list_moves(request).await?.into_inner().moves {
        let phase = status.phase;
        let Some(message) = status.r#move else { continue };
        let ShardMove { shard, role, from, to } = ShardMove::try_from(message)?;
        let named = |instance: &Option<InstanceId>| instance.as_ref().map_or("-".into(), ToString::to_string);
        listing.add(
            vec![
                name.to_string(),
                shard.to_string(),
                role.to_string(),
                named(&from),
                named(&to),
                phase.clone(),
            ],
            json!({
                "service": name.to_string(),
                "shard": shard.0,
                "role": role.to_string(),
                "from": from,
                "to": to,
                "phase": phase,
            }),
        );
    }
    Ok(())
}

async fn watchers_of(connection: &Connection, name: &ServiceName) -> Result<Vec<Watcher>, Failure> {
    let request = WatchersRequest { prefix: Prefix::endpoints(name, None).to_string() };
    let mut watchers = connection.rib().watchers(request).await?.into_inner().watchers;
    // Commands such as this one read with a short watch of their own, but make no calls.
    watchers.retain(|watcher| watcher.software != SOFTWARE);
    Ok(watchers)
}

/// Watchers with the same name.
struct WatcherInfo {
    applied: u64,
    services: usize,
}

/// One row per watcher of these services' endpoints, with the oldest revision that the watcher has applied.
pub(super) async fn watchers(connection: &Connection, view: &View) -> Result<Listing, Failure> {
    let mut found: BTreeMap<(String, String), WatcherInfo> = BTreeMap::new();
    for name in view.services.keys() {
        for watcher in watchers_of(connection, name).await? {
            let applied =
                watcher.applied.map(Cursor::try_from).transpose()?.map_or(0, |applied| applied.number(0));
            let one = found
                .entry((watcher.software, watcher.identity))
                .or_insert(WatcherInfo { applied, services: 0 });
            one.applied = one.applied.min(applied);
            one.services += 1;
        }
    }
    let mut listing = Listing::new(&["WATCHER", "IDENTITY", "APPLIED", "SERVICES"]);
    for ((software, identity), WatcherInfo { applied, services }) in found {
        let item =
            json!({ "software": software, "identity": identity, "applied": applied, "services": services });
        listing.add(vec![software, identity, applied.to_string(), services.to_string()], item);
    }
    Ok(listing)
}
