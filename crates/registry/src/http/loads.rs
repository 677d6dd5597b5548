use std::collections::BTreeSet;

use axum::{
    Json,
    extract::{Path, Query, State},
};
use fairmesh_model::{Invalid, Role, ShardMove};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::{answer::Failure, shards::service};
use crate::{Forecast, Registry, RegistryError, ServerLoad, Terms};

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

/// What may stand behind the question mark.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Asked {
    threshold: u32,
    max_moves: u32,
    /// With commas between.
    replicate: String,
}

impl Asked {
    fn terms(&self) -> Result<Terms, Invalid> {
        let roles = self.replicate.split(',').filter(|role| !role.is_empty());
        let roles: Result<BTreeSet<_>, _> = roles.map(Role::new).collect();
        Terms::new(self.threshold, self.max_moves, roles.map_err(|e| e.within("replicate"))?)
    }
}

pub(super) async fn plan(
    State(registry): State<Registry>,
    name: Name,
    Query(asked): Query<Asked>,
) -> Result<Json<Value>, Failure> {
    let (service, terms) = (service(name)?, asked.terms()?);
    // A map of millions of shards takes seconds.
    let plan = spawn_blocking(move || registry.propose(&service, &terms)).await;
    let stopped = |_| RegistryError::refused("service", "planning was stopped".into(), "ask again");
    let plan = plan.map_err(stopped)??;
    let moves = plan.moves.iter().map(|wish| {
        let ShardMove { shard, role, from, to } = wish;
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
