//! Shard maps. They have no history: an earlier map names replicas that hold other shards by now.

use std::process::ExitCode;

use fairmesh_console::{
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, ServiceView, View},
};
use fairmesh_model::{EndpointState, KeyRange, RecordKind, ServiceKind, ServiceName, ShardMap, counted};
use fairmesh_wire::{handshake::Connection, v1::PutShardsRequest};
use serde_json::json;

use super::DeleteArgs;

const READ: &[RecordKind] = &[RecordKind::Service, RecordKind::Endpoint, RecordKind::ShardMap];

pub(super) async fn delete(args: &DeleteArgs, name: &ServiceName) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let view = View::read(&connection, &Scope::Service(name.clone()), READ).await?;
    let service = view.services.get(name);
    let stored = service.and_then(|one| one.shards.as_ref());
    let is_unreadable = view.unreadable.keys().any(|key| key.kind() == RecordKind::ShardMap);
    if stored.is_none() && !is_unreadable {
        return Err(Failure::failed_with(
            format!("{name} has no shard map"),
            "see 'fairmesh get shards' for the services that have one",
        ));
    }
    if let Some(damage) = service.and_then(|one| consequence(name, one)).filter(|_| !args.force) {
        return Err(Failure::failed_with(damage, "stop its servers first, or use --force"));
    }
    let version = stored.map_or(0, |map| map.version);
    if !args.dry_run {
        // A map without shards deletes the stored one.
        let map = ShardMap { version, interval: KeyRange::ALL, shards: Vec::new() };
        let request = PutShardsRequest { service: name.to_string(), map: Some(map.into()) };
        connection.registry().put_shards(request).await?;
    }
    let item = json!({
        "kind": "shardmap", "service": name.to_string(), "deleted": !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("the shard map of {name} would be deleted (version {version})\n"),
        false => format!("the shard map of {name} is deleted\n"),
    };
    output::print_one(args.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

/// What the deletion would break. Lost endpoints do not count: no program runs there.
fn consequence(name: &ServiceName, now: &ServiceView) -> Option<String> {
    let is_sharded = now.service.as_ref().is_some_and(|service| service.value.kind == ServiceKind::Sharded);
    let count = now.endpoints.iter().filter(|at| at.value.state != EndpointState::Lost).count();
    (is_sharded && count > 0).then(|| {
        let has = counted(count, "endpoint");
        format!("this would delete the shard map of {name}, which is sharded and has {has}: calls to it would fail")
    })
}

/// Says which command deletes the shard map that a deleted declaration leaves.
pub(super) async fn note_remaining(connection: &Connection, name: &ServiceName) -> Result<(), Failure> {
    let view = View::read(connection, &Scope::Service(name.clone()), &[RecordKind::ShardMap]).await?;
    if view.services.get(name).is_some_and(|one| one.shards.is_some()) {
        output::note(format_args!(
            "the shard map of {name} stays, for a service that is declared again: 'fairmesh delete shardmap {name}' \
             deletes it"
        ));
    }
    Ok(())
}
