//! Pages about one service: its records, calls, policies and tables, and decisions about its calls.

use std::time::Duration;

use axum::{
    extract::{Path, Query, Request, State},
    http::{Extensions, StatusCode},
    response::Response,
};
use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceKind, ServiceName};
use fairmesh_views::{Scope, View, age_of};
use fairmesh_wire::v1;
use serde_json::Value;
use tokio::task::spawn_blocking;
use tonic::Status;

use super::{
    Asked, EARLIER, RECORDS_EVERY, SLOW_EVERY, Served, answer, failure, invalid, mesh::region_calls_of,
    millis, named, stream,
};
use crate::{
    command_queries::{Commands, wait},
    event_delta::Shown,
    event_streams::Part,
    explain_form::Form,
    panels::{
        attribution, lagging_callers, planner, shards,
        what_changed::{self, Changes},
    },
    policy_history, service,
};

type Named = Path<(String, String)>;

/// Streams the records of a service, its calls, its shards, and the callers that lag behind.
pub(super) async fn live(
    State(served): State<Served>,
    Path(path): Named,
    Query(asked): Query<Asked>,
    request: Request,
) -> Response {
    let name = match named(path) {
        Ok(name) => name,
        Err(error) => return invalid(error),
    };
    let (of, scope, window) = (name.clone(), Scope::Service(name.clone()), asked.window());
    let records = served.part("service", (RECORDS_EVERY, name.to_string()), move |served| {
        service::records(&of, &served.view(&scope, service::KINDS), &served.source.loads(&of))
    });
    let of = name.clone();
    let calls = served.part("calls", (1, format!("{name} {window:?}")), move |served| {
        let scope = Scope::Service(of.clone());
        let (response, denied) = (served.source.calls(&scope, window), served.source.denied(&scope, window));
        let steps = served.source.steps(&of, EARLIER.max(window));
        Shown::head(&service::calls(&of, &response, denied, (&steps, millis(window))))
    });
    let (behind, shards) = (behind(&served, &name, request.extensions()), shards_of(&served, &name));
    let changes = changes_of(&served, &name, request.extensions());
    let attribution = attribution_of(&served, &name, EARLIER.max(window));
    let parts = vec![records, calls, behind, shards, changes, attribution];
    stream(&served, request.extensions().clone(), parts)
}

/// Whose calls use the CPU of a service.
fn attribution_of(served: &Served, name: &ServiceName, window: Duration) -> Part {
    let of = name.to_string();
    served.part("attribution", (SLOW_EVERY, format!("{name} {window:?}")), move |served| {
        let window_s = u32::try_from(window.as_secs()).unwrap_or(u32::MAX);
        let request = |by_origin| v1::ReadCostRequest { service: of.clone(), by_origin, window_s };
        wait(async {
            let mut admin = served.commands.admin();
            let callers = admin.read_cost(request(false)).await?.into_inner();
            let origins = admin.read_cost(request(true)).await?.into_inner();
            Ok(attribution::attribution(&callers, &origins, millis(window)))
        })
    })
}

/// What changed of a service, and for viewers of all tenants of the mesh.
fn changes_of(served: &Served, name: &ServiceName, asker: &Extensions) -> Part {
    let (of, sees_mesh) = (name.clone(), served.source.may_view_all(asker));
    served.part("changes", (RECORDS_EVERY, format!("{name} {sees_mesh}")), move |served| {
        let request = v1::TrafficStatusRequest { service: of.to_string() };
        wait(async {
            let status = served.commands.planner().status(request).await?.into_inner();
            let mut changes = if sees_mesh { mesh_changes(served) } else { Changes::default() };
            for (key, what) in what_changed::OF_SERVICE {
                changes.add_history(what, &served.source.changes(&key(of.clone())));
            }
            let view = served.view(&Scope::Service(of.clone()), what_changed::KINDS);
            view.services.get(&of).into_iter().for_each(|one| changes.add_records(one));
            let shifts = status.services.iter().flat_map(|one| &one.shifts);
            changes.add_shifts(None, shifts, now_ms());
            Ok(changes.shown())
        })
    })
}

/// What changed in the mesh that concerns all tenants.
pub(super) fn mesh_changes(served: &Served) -> Changes {
    let mut changes = Changes::default();
    for (key, what) in &what_changed::OF_MESH {
        changes.add_history(what, &served.source.changes(key));
    }
    changes.add_drains(&View::of_readable(served.source.read(&[Prefix::drains()])));
    changes
}

/// The present time, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    millis(age_of(0))
}

fn behind(served: &Served, name: &ServiceName, asker: &Extensions) -> Part {
    let (of, asker) = (name.clone(), asker.clone());
    served.part("behind", (RECORDS_EVERY, name.to_string()), move |served| {
        let stored = served.source.records(&Scope::Service(of.clone()), service::KINDS);
        let written = service::newest_revision(&stored);
        // Programs follow the policies of the services that they call.
        let prefix = RecordKind::Policy.prefix_of(&of);
        wait(async {
            let response = served.commands.watchers(&prefix, &asker).await?;
            Ok(lagging_callers::callers_behind(&response, written))
        })
    })
}

fn shards_of(served: &Served, name: &ServiceName) -> Part {
    let of = name.clone();
    served.part("shards", (SLOW_EVERY, name.to_string()), move |served| {
        let kinds = [RecordKind::Service];
        let view = served.view(&Scope::Service(of.clone()), &kinds);
        let declared = view.services.get(&of).and_then(|one| one.service.as_ref());
        match declared.is_some_and(|at| at.value.kind == ServiceKind::Sharded) {
            true => wait(read_shards(&served.commands, of.to_string())),
            false => Shown::head(&Value::Null),
        }
    })
}

async fn read_shards(commands: &Commands, service: String) -> Result<Shown, Status> {
    let mut registry = commands.registry();
    let map = registry.get_shards(v1::GetShardsRequest { service: service.clone() }).await?.into_inner().map;
    let loads = v1::ReadShardLoadsRequest { service: service.clone() };
    let loads = registry.read_shard_loads(loads).await?.into_inner();
    let moves = registry.list_moves(v1::ListMovesRequest { service }).await?.into_inner();
    Ok(shards::shards(&map.unwrap_or_default(), &loads, &moves))
}

/// Streams what the planner knows about a service, its decisions, and the calls between regions.
pub(super) async fn planner(
    State(served): State<Served>,
    Path(path): Named,
    Query(asked): Query<Asked>,
    asker: Extensions,
) -> Response {
    let name = match named(path) {
        Ok(name) => name,
        Err(error) => return invalid(error),
    };
    let (key, service) = (name.to_string(), name.to_string());
    let detail = served.part("plan", (RECORDS_EVERY, key), move |served| {
        let request = v1::TrafficStatusRequest { service: service.clone() };
        wait(async { Ok(planner::detail(&served.commands.planner().status(request).await?.into_inner())) })
    });
    let scope = (Scope::Service(name.clone()), &*name.to_string());
    let calls = region_calls_of(&served, scope, asked.window());
    stream(&served, asker, vec![detail, calls])
}

/// Responds with the current and earlier values of a policy.
pub(super) async fn history(State(served): State<Served>, Path(path): Named) -> Response {
    let name = match named(path) {
        Ok(name) => name,
        Err(error) => return invalid(error),
    };
    let read =
        move || policy_history::policies(&name, &served.source.changes(&RecordKey::Policy(name.clone())));
    answer(spawn_blocking(move || Ok(read())).await.ok())
}

/// Responds with the routing decision for a hypothetical call.
pub(super) async fn why(
    State(served): State<Served>,
    Path(path): Named,
    Query(form): Query<Form>,
    request: Request,
) -> Response {
    let call = match named(path).and_then(|name| form.call(name)) {
        Ok(call) => call,
        Err(error) => return invalid(error),
    };
    let asker = request.extensions().clone();
    let Ok(permit) = served.questions.clone().try_acquire_owned() else {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "others ask at the moment", "retry");
    };
    let explain = move || {
        let _permit = permit;
        served.source.explain(&call, &asker)
    };
    answer(spawn_blocking(explain).await.ok())
}
