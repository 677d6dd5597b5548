//! Changes of declarations that servers and callers still use: refused wherever a command makes them, unless it is told
//! that they are meant.

use fairmesh_model::{Service, ServiceKind, ServiceName, counted};
use fairmesh_wire::handshake::Connection;

use crate::{
    failure::Failure,
    view::{Scope, ServiceView, View},
};

use super::get;

/// What a declaration is to become.
pub(super) struct Change<'a> {
    pub(super) name: &'a ServiceName,
    /// `None` deletes it.
    pub(super) to: Option<&'a Service>,
    /// Whether a shard map is written along with it.
    pub(super) mapped: bool,
}

/// Refuses a change that calls would fail on; `way_out` says what to do instead.
pub(super) async fn refuse(
    connection: &Connection,
    change: &Change<'_>,
    way_out: &str,
) -> Result<(), Failure> {
    let scope = Scope::Service(change.name.clone());
    let view = View::read(connection, &scope, &["services", "endpoints", "shards"]).await?;
    let damage = view.services.get(change.name).and_then(|now| damage(now, change));
    damage.map_or(Ok(()), |damage| Err(Failure::failed_with(damage, way_out)))
}

/// What a change would do to calls that work now; nothing for a service without endpoints, which gets none.
pub(super) fn damage(now: &ServiceView, change: &Change<'_>) -> Option<String> {
    let stored = &now.service.as_ref()?.value;
    let has = match now.endpoints.len() {
        0 => return None,
        count => counted(count, "endpoint"),
    };
    let name = change.name;
    let Some(to) = change.to else {
        return Some(format!(
            "this would delete the declaration of {name}, which has {has}: calls to it would fail"
        ));
    };
    let (kind, protocol) = get::service_words(to);
    if to.kind != stored.kind && to.kind == ServiceKind::Sharded && !change.mapped && now.shards.is_none() {
        return Some(format!(
            "this would make {name} {kind}, which has {has} and no shard map: calls to it would fail"
        ));
    }
    if to.kind != stored.kind && stored.kind == ServiceKind::Sharded && now.shards.is_some() {
        return Some(format!(
            "this would make {name} {kind}, which has {has} and a shard map: calls would go to any of them, \
             whichever shards it holds"
        ));
    }
    // HTTP/2 and gRPC look alike on a connection; HTTP/1.1 does not.
    if to.protocol.is_multiplexed() != stored.protocol.is_multiplexed() {
        let (_, spoken) = get::service_words(stored);
        return Some(format!(
            "this would have callers speak {protocol} to {name}, which has {has} that were declared to speak \
             {spoken}: calls to it would fail"
        ));
    }
    None
}
