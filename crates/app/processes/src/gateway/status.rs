//! `fairmesh gateway status`.

use clap::Args;
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output::{self, Listing},
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{GatewayBackend, RecordKind};
use fairmesh_wire::{
    handshake::Connection,
    v1::{GatewayAlert, ListControllersRequest, controller_status::Refusal},
};
use serde_json::json;

use super::{backend_load_text, entry_text, in_force, load_actions};

/// The controller that places services.
const CONTROLLER: &str = "placement";
const HEAD: &[&str] =
    &["BACKEND", "ZONE", "SERVICES", "CAPACITY", "OPEN", "REPORTING", "CPU", "REQUESTS/S", "REPLICAS"];
/// Columns of the tables below the list of backends.
const ALERTS: &[&str] = &["OVERLOADED", "WHY"];
const PLACED: &[&str] = &["SERVICE", "HOME ZONE", "ASKED", "PLACED", "BACKENDS"];
const ACTS: &[&str] = &["SERVICE", "IN FORCE"];
const REFUSED: &[&str] = &["NOT PLACED AS ASKED", "SINCE"];

/// Arguments of `fairmesh gateway status`.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Prints the backends, the services on them, and what the controller refuses.
pub(super) async fn run(args: StatusArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let kinds = [RecordKind::GatewayService, RecordKind::Placement];
    let view = View::read(&connection, &Scope::All, &kinds).await?;
    let backends = View::gateway_backends(&connection).await?.gateway_backends;
    let (loads, reporting) = backend_load_text::read(&connection).await?;
    let mut listing = Listing::new(HEAD);
    let mut alerts = Vec::new();
    for (name, backend) in &backends {
        let (backend, services) = (&backend.value, view.services_on(name));
        let replicas: Vec<String> = backend.replicas.iter().map(ToString::to_string).collect();
        let open = open(backend);
        let row =
            [name.as_str(), backend.zone.as_str(), &services.to_string(), &backend.capacity.to_string()];
        let load = loads.get(name.as_str());
        let [up, cpu, requests] = load.map_or_else(
            || ["0", "-", "-"].map(str::to_owned),
            |load| {
                [load.replicas.to_string(), backend_load_text::cpu(load), backend_load_text::requests(load)]
            },
        );
        let up = format!("{up} of {}", replicas.len());
        // A launcher starts one that has none.
        let replicas_text = if replicas.is_empty() { "launching".to_owned() } else { replicas.join(", ") };
        let further = [open, &up, &cpu, &requests, &replicas_text];
        let row = row.into_iter().chain(further).map(str::to_owned).collect();
        let alert = load.and_then(|load| load.alert.as_ref());
        alerts.extend(alert.map(|alert| vec![name.to_string(), why(alert, &view)]));
        let item = json!({
            "backend": name.as_str(),
            "zone": backend.zone.as_str(),
            "services": services,
            "capacity": backend.capacity,
            "open": !backend.is_closed,
            "sandbox": backend.is_sandbox,
            "launching": backend.replicas.is_empty(),
            "replicas": replicas,
            "load": load.map(backend_load_text::item),
            "entry": entry_text::items(&reporting, name.as_str()),
            "inForce": in_force::items(&view, name, None),
        });
        listing.add(row, item);
    }
    listing.why_empty = backends.is_empty().then(|| {
        "the gateway has no backends, so that each replica serves all services; declare them with 'kind: GatewayBackend'".to_owned()
    });
    let refused = refused(&connection).await?;
    let rows = [alerts, entry_text::rows(&reporting), placed(&view), acts_of_all(&view), refused];
    listing.further = [ALERTS, entry_text::HEAD, PLACED, ACTS, REFUSED].into_iter().zip(rows).collect();
    listing.print(args.output.format())
}

/// Whether a backend gets services.
const fn open(backend: &GatewayBackend) -> &'static str {
    match backend {
        GatewayBackend { is_closed: true, .. } => "no",
        GatewayBackend { is_sandbox: true, .. } => "sandbox",
        _ => "yes",
    }
}

/// Why a backend has an alert, and what follows.
fn why(alert: &GatewayAlert, view: &View) -> String {
    let follows = load_actions::follows(alert, view).map(|follows| format!("; {follows}"));
    backend_load_text::sentence(alert) + &follows.unwrap_or_default()
}

/// What operators and the controller did to services.
fn acts_of_all(view: &View) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (name, one) in &view.services {
        rows.extend(load_actions::in_force(one).into_iter().map(|act| vec![name.to_string(), act]));
    }
    rows
}

/// The services that use the gateway, and their backends.
fn placed(view: &View) -> Vec<Vec<String>> {
    let used = view.services.iter().filter_map(|(name, one)| {
        let (used, placed) = (&one.gateway.as_ref()?.value, one.placement.as_ref().map(|at| &at.value));
        let count = placed.map_or(0, |placed| placed.backends().count());
        let backends = placed.map_or_else(|| "-".to_owned(), ToString::to_string);
        let [asked, count] = [used.backends as usize, count].map(|number| number.to_string());
        Some(vec![name.to_string(), used.home_zone.to_string(), asked, count, backends])
    });
    used.collect()
}

/// Services that the controller refused in its last round, with the reasons.
pub(super) async fn refused(connection: &Connection) -> Result<Vec<Vec<String>>, Failure> {
    let listed = connection.admin().list_controllers(ListControllersRequest {}).await?.into_inner();
    let last = listed.controllers.into_iter().find(|one| one.name == CONTROLLER).and_then(|one| one.last);
    let Some(last) = last else {
        output::note("the control plane has placed nothing yet");
        return Ok(Vec::new());
    };
    if !last.problem.is_empty() {
        output::warn(format!("nothing moves, since the last round failed: {}", last.problem));
    }
    if last.refused_total > last.refused.len() as u64 {
        output::note(format!("{} services are not placed as they ask", last.refused_total));
    }
    let row = |Refusal { subject, reason, .. }: Refusal| {
        vec![subject.strip_prefix("placement of ").unwrap_or(&subject).to_owned(), reason]
    };
    Ok(last.refused.into_iter().map(row).collect())
}
