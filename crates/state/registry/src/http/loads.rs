use std::collections::BTreeSet;

use axum::{
    Json,
    extract::{Path, Query, State},
};
use fairmesh_model::{Invalid, Role, ShardMove};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{json::Failure, shards::service};
use crate::{Forecast, PlanOptions, Registry, RegistryError, ServerLoad};

type Name = Path<(String, String)>;

pub(super) async fn loads(State(registry): State<Registry>, name: Name) -> Result<Json<Value>, Failure> {
    let servers = registry.loads(&service(name)?)?;
    Ok(Json(json!({ "servers": servers.iter().map(server).collect::<Vec<_>>() })))
}

fn server(load: &ServerLoad) -> Value {
    let shards = load.shards.iter();
    let shards = shards.map(|(shard, role, work)| json!({"shard": shard.0, "role": role, "work": work}));
    json!({
        "instance": load.instance,
        "region": load.region,
        "zone": load.zone,
        "power": load.power,
        "serves": load.serves,
        "ageMs": load.age.map(|age| age.as_millis()),
        "callsPerMinute": load.calls,
        "work": load.work(),
        "shards": shards.collect::<Vec<_>>(),
        "rest": load.rest,
    })
}

/// The query parameters of a plan.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PlanQuery {
    threshold: u32,
    max_moves: u32,
    /// Roles, separated by commas.
    replicate: String,
}

impl PlanQuery {
    fn options(&self) -> Result<PlanOptions, Invalid> {
        let roles = self.replicate.split(',').filter(|role| !role.is_empty());
        let roles: Result<BTreeSet<_>, _> = roles.map(Role::new).collect();
        PlanOptions::new(self.threshold, self.max_moves, roles.map_err(|e| e.within("replicate"))?)
    }
}

pub(super) async fn plan(
    State(registry): State<Registry>,
    name: Name,
    Query(query): Query<PlanQuery>,
) -> Result<Json<Value>, Failure> {
    let (service, options) = (service(name)?, query.options()?);
    // Planning takes seconds for a map with millions of shards.
    let plan = spawn_blocking(move || registry.propose(&service, &options)).await;
    let stopped = |_| RegistryError::refused("service", "planning was stopped".into(), "retry");
    let plan = plan.map_err(stopped)??;
    let moves = plan.moves.iter().map(|shard_move| {
        let ShardMove { shard, role, from, to } = shard_move;
        json!({"shard": shard.0, "role": role, "from": from, "to": to})
    });
    let servers = plan.servers.iter().map(|server| {
        let Forecast { instance, region, before, after, fair } = server;
        json!({"instance": instance, "region": region, "before": before, "after": after, "fair": fair})
    });
    Ok(Json(json!({
        "moves": moves.collect::<Vec<_>>(),
        "servers": servers.collect::<Vec<_>>(),
        "notes": plan.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })))
}
