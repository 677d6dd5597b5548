//! Changes of declarations that would break working calls: refused by every command, unless forced.

use fairmesh_console::{
    cell_text::type_and_protocol,
    failure::Failure,
    view_reader::{ReadView, Scope, ServiceView, View},
};
use fairmesh_model::{EndpointState, RecordKind, Service, ServiceKind, ServiceName, counted};
use fairmesh_wire::handshake::Connection;

/// A change of a declaration.
pub(super) struct Change<'a> {
    pub(super) name: &'a ServiceName,
    /// The new declaration; `None` deletes it.
    pub(super) to: Option<&'a Service>,
    /// Whether a shard map is written together with the change.
    pub(super) mapped: bool,
}

/// Refuses a breaking change, printing `hint`.
pub(super) async fn refuse(connection: &Connection, change: &Change<'_>, hint: &str) -> Result<(), Failure> {
    let scope = Scope::Service(change.name.clone());
    let view =
        View::read(connection, &scope, &[RecordKind::Service, RecordKind::Endpoint, RecordKind::ShardMap])
            .await?;
    let damage = view.services.get(change.name).and_then(|now| consequences(now, change));
    damage.map_or(Ok(()), |damage| Err(Failure::failed_with(damage, hint)))
}

/// What a change would break; `None` if nothing, as for a service without endpoints. Lost endpoints do not count: no
/// program runs there. Of an unreadable declaration, only the deletion is known to break calls.
pub(super) fn consequences(now: &ServiceView, change: &Change<'_>) -> Option<String> {
    let has = match now.endpoints.iter().filter(|at| at.value.state != EndpointState::Lost).count() {
        0 => return None,
        count => counted(count, "endpoint"),
    };
    let name = change.name;
    let Some(to) = change.to else {
        return Some(format!(
            "this would delete the declaration of {name}, which has {has}: calls to it would fail"
        ));
    };
    let stored = &now.service.as_ref()?.value;
    let (kind, protocol) = type_and_protocol(to);
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
    // HTTP/2 and gRPC use the same connections; HTTP/1.1 does not.
    if to.protocol.is_multiplexed() != stored.protocol.is_multiplexed() {
        let (_, spoken) = type_and_protocol(stored);
        return Some(format!(
            "this would have callers speak {protocol} to {name}, which has {has} that were declared to speak \
             {spoken}: calls to it would fail"
        ));
    }
    None
}
