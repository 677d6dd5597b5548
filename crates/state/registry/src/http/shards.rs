use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
};
use fairmesh_model::{
    InstanceId, Invalid, Role, ServiceName, ShardId, ShardKey, ShardMove,
    spec::{KeyText, ShardMapSpec},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::json::{Failure, Spec};
use crate::{InstanceRef, Registry};

type Name = Path<(String, String)>;

pub(super) fn service(Path((tenant, service)): Name) -> Result<ServiceName, Invalid> {
    ServiceName::new(format!("{tenant}/{service}")).map_err(|e| e.within("service"))
}

#[derive(Serialize)]
pub(super) struct Version {
    version: u64,
}

pub(super) async fn get(State(registry): State<Registry>, name: Name) -> Result<Json<ShardMapSpec>, Failure> {
    let service = service(name)?;
    let map = registry.shards(&service)?;
    let spec = ShardMapSpec::of(&service, &map);
    Ok(Json(ShardMapSpec { version: Some(map.version), ..spec }))
}

pub(super) async fn put(
    State(registry): State<Registry>,
    name: Name,
    Spec(spec): Spec<ShardMapSpec>,
) -> Result<Json<Version>, Failure> {
    let addressed = service(name)?;
    let (named, map) = spec.validate()?;
    if named != addressed {
        let problem = format!("'{named}' is not the service of the path");
        return Err(Invalid::new("service", problem, format!("write {addressed}, or another path")).into());
    }
    Ok(Json(Version { version: registry.put_shards(&addressed, &map).await? }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Split {
    shard: u32,
    at: Option<KeyText>,
}

pub(super) async fn split(
    State(registry): State<Registry>,
    name: Name,
    Spec(body): Spec<Split>,
) -> Result<Json<Version>, Failure> {
    let at = body.at.map(|at| at.0.parse::<ShardKey>()).transpose().map_err(|e| e.within("at"))?;
    let version = registry.split_shard(&service(name)?, ShardId(body.shard), at).await?;
    Ok(Json(Version { version }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Merge {
    shard: u32,
}

pub(super) async fn merge(
    State(registry): State<Registry>,
    name: Name,
    Spec(body): Spec<Merge>,
) -> Result<Json<Version>, Failure> {
    let version = registry.merge_shards(&service(name)?, ShardId(body.shard)).await?;
    Ok(Json(Version { version }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Move {
    shard: u32,
    role: String,
    from: Option<String>,
    to: Option<String>,
}

pub(super) async fn begin_move(
    State(registry): State<Registry>,
    name: Name,
    Spec(body): Spec<Move>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let named = |instance: Option<String>| instance.map(InstanceId::new).transpose();
    let shard_move = ShardMove {
        shard: ShardId(body.shard),
        role: Role::new(&body.role).map_err(|e| e.within("role"))?,
        from: named(body.from).map_err(|e| e.within("from"))?,
        to: named(body.to).map_err(|e| e.within("to"))?,
    };
    registry.move_shard(&service(name)?, &shard_move).await?;
    Ok((StatusCode::ACCEPTED, Json(json!({}))))
}

pub(super) async fn moves(State(registry): State<Registry>, name: Name) -> Result<Json<Value>, Failure> {
    let moves = registry.list_moves(&service(name)?)?;
    let moves = moves.iter().map(|status| {
        let ShardMove { shard, role, from, to } = &status.shard_move;
        let phase = status.phase.to_string();
        json!({"shard": shard.0, "role": role, "from": from, "to": to, "phase": phase})
    });
    Ok(Json(json!({ "moves": moves.collect::<Vec<_>>() })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ready {
    instance: String,
    ready: Vec<u32>,
}

pub(super) async fn ready(
    State(registry): State<Registry>,
    name: Name,
    Spec(body): Spec<Ready>,
) -> Result<Json<Value>, Failure> {
    let instance = InstanceId::new(&body.instance).map_err(|e| e.within("instance"))?;
    let claim = InstanceRef { service: service(name)?, instance }.into();
    registry.report_shards(&claim, body.ready.into_iter().map(ShardId))?;
    Ok(Json(json!({})))
}
