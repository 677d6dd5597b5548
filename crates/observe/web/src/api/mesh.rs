//! Pages about the whole mesh, or the part of it that concerns one tenant: calls, regions, waste, security and
//! processes.

use std::time::Duration;

use axum::{
    extract::{Path, Query, Request, State},
    http::{Extensions, StatusCode},
    response::Response,
};
use fairmesh_model::{Prefix, RecordKey};
use fairmesh_views::{Scope, age_of};
use fairmesh_wire::v1;
use serde_json::{Value, json};

use super::{
    Asked, EARLIER, RECORDS_EVERY, SLOW_EVERY, Served, answer, failure, invalid, millis,
    service::{mesh_changes, now_ms},
    stream,
};
use crate::{
    call_graph::{self, Cut},
    command_queries::{coarse, problem, wait},
    event_delta::Shown,
    event_streams::Part,
    page_source::{AuditLog, Refusal},
    panels::{
        audit, controllers, denied_calls, drains, followers, identity, planner, region_calls, security_gaps,
        topology, what_changed::Changes, zone_probes,
    },
    service_inventory,
};

/// Streams the calls of the mesh, and its services and regions.
pub(super) async fn live(
    State(served): State<Served>,
    Query(asked): Query<Asked>,
    asker: Extensions,
) -> Response {
    let scope = match asked.scope() {
        Ok(scope) => scope,
        Err(error) => return invalid(error),
    };
    let (of, tenant) = (scope.clone(), asked.tenant.clone());
    let mesh = served.part("mesh", (RECORDS_EVERY, asked.tenant.clone()), move |served| {
        served.inventories.list(&tenant, served.source.records(&of, service_inventory::KINDS))
    });
    let window = asked.window();
    let cut = Cut { region: asked.region.clone(), by_region: asked.split == "region" };
    // Pages with the same parameters share the same snapshots.
    let key = format!("{} {window:?} {cut:?}", asked.tenant);
    let calls = served.part("calls", (1, key), move |served| {
        let now = served.source.calls(&scope, window);
        // If rows of the current window are missing, it is unknown which pairs have stopped reporting.
        let is_known = window < EARLIER && now.not_shown == 0;
        let earlier = if is_known { served.source.calls(&scope, EARLIER) } else { Default::default() };
        call_graph::graph(&now, &earlier, (&cut, millis(window)))
    });
    stream(&served, asker, vec![mesh, calls])
}

/// Streams regions with their drains and probes, and the planned traffic. Drains and probes concern all tenants.
pub(super) async fn regions(
    State(served): State<Served>,
    Query(asked): Query<Asked>,
    asker: Extensions,
) -> Response {
    let scope = match asked.scope() {
        Ok(scope) => scope,
        Err(error) => return invalid(error),
    };
    let of = scope.clone();
    let topology = served.part("topology", (RECORDS_EVERY, asked.tenant.clone()), move |served| {
        topology::topology(&served.view(&of, topology::KINDS))
    });
    let calls = region_calls_of(&served, (scope.clone(), &asked.tenant), asked.window());
    let of = scope.clone();
    let planner = served.part("planner", (RECORDS_EVERY, asked.tenant.clone()), move |served| {
        let request = v1::TrafficStatusRequest::default();
        wait(async {
            Ok(planner::summary(&served.commands.planner().status(request).await?.into_inner(), &of))
        })
    });
    let of = scope.clone();
    let changes = served.part("changes", (RECORDS_EVERY, asked.tenant.clone()), move |served| {
        let request = v1::TrafficStatusRequest::default();
        wait(async {
            let status = served.commands.planner().status(request).await?.into_inner();
            let sees_mesh = matches!(of, Scope::All);
            let mut changes = if sees_mesh { mesh_changes(served) } else { Changes::default() };
            for one in status.services.iter().filter(|one| planner::is_of(&one.service, &of)) {
                changes.add_shifts(Some(&one.service), &one.shifts, now_ms());
            }
            Ok(changes.shown())
        })
    });
    let mut parts = vec![topology, calls, planner, changes];
    if matches!(scope, Scope::All) {
        parts.extend([drains_of(&served), probes_of(&served)]);
    }
    stream(&served, asker, parts)
}

/// Calls between regions over a window, to the services of a scope; `name` is the name of the scope.
pub(super) fn region_calls_of(served: &Served, (scope, name): (Scope, &str), window: Duration) -> Part {
    served.part("regionCalls", (SLOW_EVERY, format!("{name} {window:?}")), move |served| {
        region_calls::region_calls(&served.source.region_steps(&scope, window), millis(window))
    })
}

fn drains_of(served: &Served) -> Part {
    served.part("drains", (RECORDS_EVERY, String::new()), |served| {
        let request = v1::DrainsRequest::default();
        wait(async { Ok(drains::drains(&served.commands.planner().drains(request).await?.into_inner())) })
    })
}

fn probes_of(served: &Served) -> Part {
    served.part("probes", (RECORDS_EVERY, String::new()), |served| {
        let request = v1::ReadProbesRequest::default();
        wait(async {
            Ok(zone_probes::probes(&served.commands.admin().read_probes(request).await?.into_inner()))
        })
    })
}

/// Responds with the effects that a drain of a region would have.
pub(super) async fn forecast(State(served): State<Served>, Path(region): Path<String>) -> Response {
    let Ok(_permit) = served.questions.clone().try_acquire_owned() else {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "others ask at the moment", "retry");
    };
    let forecast = served.commands.planner().forecast_drain(v1::ForecastDrainRequest { region }).await;
    let refusal = |status: tonic::Status| Refusal {
        problem: status.message().to_owned(),
        hint: "see 'fairmesh drain --region NAME --dry-run'".to_owned(),
    };
    answer(Some(forecast.map(|response| drains::forecast(response.get_ref())).map_err(refusal)))
}

/// Streams wasted cores.
pub(super) async fn imbalance(
    State(served): State<Served>,
    Query(asked): Query<Asked>,
    asker: Extensions,
) -> Response {
    let tenant = match asked.scope() {
        Ok(Scope::Tenant(tenant)) => Some(tenant),
        Ok(_) => None,
        Err(error) => return invalid(error),
    };
    let Asked { by, minutes, .. } = asked;
    let key = format!("{} {by} {minutes}", asked.tenant);
    let part = served.part("imbalance", (SLOW_EVERY, key), move |served| {
        match served.source.imbalance(tenant.as_ref(), &by, minutes) {
            Ok(view) => Shown::head(&with_age(view)),
            Err(Refusal { problem: why, hint }) => problem(&format!("{why}: {hint}")),
        }
    });
    stream(&served, asker, vec![part])
}

/// Replaces the beginning of the newest minute by its age.
fn with_age(mut view: Value) -> Value {
    let newest = view.as_object_mut().and_then(|fields| fields.remove("newestMs")?.as_u64());
    view["ageMs"] = json!(newest.map(|at| coarse(millis(age_of(at)))));
    view
}

/// Streams which services are protected and which are not. The authority, agents and revocations concern all tenants.
pub(super) async fn security(
    State(served): State<Served>,
    Query(asked): Query<Asked>,
    request: Request,
) -> Response {
    let scope = match asked.scope() {
        Ok(scope) => scope,
        Err(error) => return invalid(error),
    };
    let of = scope.clone();
    let protection = served.part("protection", (SLOW_EVERY, asked.tenant.clone()), move |served| {
        wait(security_gaps::protection(&served.view(&of, security_gaps::KINDS), &served.commands))
    });
    let (of, window) = (scope.clone(), asked.window());
    let denied = served.part("denied", (1, format!("{} {window:?}", asked.tenant)), move |served| {
        let history_ms = served.source.calls(&of, window).history_ms;
        denied_calls::denied(&served.source.denied(&of, window), (millis(window), history_ms))
    });
    let mut parts = vec![protection, denied];
    if matches!(scope, Scope::All) {
        let asker = request.extensions().clone();
        let identities = served.part("identities", (SLOW_EVERY, String::new()), move |served| {
            let stored = served.source.read(&[Prefix::identity()]);
            // All processes that verify their peers follow the record of revocations.
            let prefix = Prefix::from(&RecordKey::Revocations);
            wait(async {
                Ok(identity::identities(&stored, &served.commands.watchers(&prefix, &asker).await?))
            })
        });
        parts.extend([authority_of(&served), identities]);
    }
    stream(&served, request.extensions().clone(), parts)
}

fn authority_of(served: &Served) -> Part {
    served.part("authority", (SLOW_EVERY, String::new()), |served| {
        let request = v1::DescribeAuthorityRequest::default();
        wait(async {
            let response = served.commands.authority().describe_authority(request).await?.into_inner();
            Ok(identity::authority(&response, &*served.source))
        })
    })
}

/// Responds with the newest entries of a write log. The log is read in the task of the request, whose caller is
/// logged as the reader.
pub(super) async fn audit(State(served): State<Served>, Path(log): Path<String>) -> Response {
    let log = match log.as_str() {
        "security" => AuditLog::Security,
        "activity" => AuditLog::Activity,
        _ => return failure(StatusCode::NOT_FOUND, "there is no such log", "name security or activity"),
    };
    let lines = served.source.newest_audited(log, audit::MAX_SHOWN).await;
    let refusal = |error: std::io::Error| Refusal {
        problem: format!("the log of writes cannot be read: {error}"),
        hint: "see the log of the control plane".to_owned(),
    };
    answer(Some(lines.map(|lines| json!({ "entries": audit::entries(&lines) })).map_err(refusal)))
}

/// Streams the processes that follow this control plane, and its controllers.
pub(super) async fn fleet(State(served): State<Served>, request: Request) -> Response {
    let controllers = served.part("controllers", (RECORDS_EVERY, String::new()), |served| {
        let request = v1::ListControllersRequest::default();
        wait(async {
            Ok(controllers::controllers(
                &served.commands.admin().list_controllers(request).await?.into_inner(),
            ))
        })
    });
    let asker = request.extensions().clone();
    let followers = served.part("followers", (RECORDS_EVERY, String::new()), move |served| {
        let everything = Prefix::everything();
        wait(async { Ok(followers::followers(&served.commands.watchers(&everything, &asker).await?)) })
    });
    stream(&served, request.extensions().clone(), vec![controllers, followers])
}
