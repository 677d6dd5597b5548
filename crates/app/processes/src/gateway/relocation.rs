//! `fairmesh gateway move`: an operator chooses the backends of a service.

use std::collections::{BTreeMap, BTreeSet};

use clap::Args;
use fairmesh_console::{
    failure::Failure,
    output,
    view_reader::{At, ReadView as _, View},
};
use fairmesh_model::{GatewayBackend, Label, Placement, PlacementPin, Zone};
use fairmesh_placement::{Backend, PlacedService, check_choice};
use serde_json::json;

use super::placements::{ChangeArgs, Placements, now_ms};

/// Arguments of `fairmesh gateway move`.
#[derive(Debug, Args)]
pub(super) struct MoveArgs {
    /// The backends that serve it from now on: two or more in its home zone, and one or more in another zone. The controller keeps them.
    #[arg(long, value_name = "BACKEND", value_delimiter = ',', required_unless_present_any = ["unpin", "sandbox"])]
    to: Vec<Label>,
    /// Move it to sandbox backends, which serve nothing else, since its calls harm others. The controller chooses them.
    #[arg(long, conflicts_with = "to")]
    sandbox: bool,
    /// Let the controller choose its backends again. It moves nothing that is as the service asks.
    #[arg(long, conflicts_with_all = ["to", "sandbox"])]
    unpin: bool,
    /// End the open connections at backends that serve it no more, within 10 s. Without it, they stay until their clients end them.
    #[arg(long, conflicts_with = "unpin")]
    now: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

/// Writes the placement, or says what is wrong with it.
pub(super) async fn run(args: MoveArgs) -> Result<(), Failure> {
    let placements = args.change.read().await?;
    let placement = match args.unpin {
        true => unpinned(&args, &placements)?,
        false => {
            let backends = View::gateway_backends(&placements.connection).await?.gateway_backends;
            match args.sandbox {
                true => sandboxed(&args, &placements, &backends)?,
                false => moved(&args, &placements, &backends)?,
            }
        }
    };
    args.change.write(&placements, placement.clone()).await?;
    let item = json!({
        "service": args.change.service.to_string(),
        "before": placements.present.as_ref().map(|before| before.value.to_string()),
        "placement": placement.to_string(),
        "pinned": placement.pinned.is_some(),
        "sandbox": args.sandbox,
        "endsConnections": args.now,
        "dryRun": args.change.dry_run,
    });
    output::print_one(args.change.output.format(), &item, &text(&args, &placement))
}

fn text(args: &MoveArgs, placement: &Placement) -> String {
    let (service, is) = (&args.change.service, args.change.verb());
    if args.unpin {
        return format!(
            "{service} {is} released: the controller may move it again. It is on {placement} now\n"
        );
    }
    let connections = match args.now {
        true => "open connections at other backends end within 10 s",
        false => "open connections stay at their backends until their clients end them",
    };
    if args.sandbox {
        return format!(
            "{service} {is} marked for the sandbox, to which the controller moves it (see `fairmesh gateway explain {service}`); {connections}. \
             `fairmesh gateway move {service} --unpin` lets the controller place it among others again\n"
        );
    }
    format!(
        "{service} {is} placed on {placement} for new connections; {connections}. `fairmesh gateway move {service} --unpin` lets the controller \
         move it again\n"
    )
}

fn unpinned(args: &MoveArgs, placements: &Placements) -> Result<Placement, Failure> {
    let placed = placements.placed(&args.change.service)?;
    match placed.pinned {
        Some(_) => Ok(Placement { pinned: None, ..placed }),
        None => {
            let hint = "`fairmesh gateway explain` shows which services an operator placed";
            Err(Failure::refused(format!("the controller places {} already", args.change.service), hint))
        }
    }
}

/// The placement with which the controller moves the service to sandboxes.
fn sandboxed(
    args: &MoveArgs,
    placements: &Placements,
    backends: &BTreeMap<Label, At<GatewayBackend>>,
) -> Result<Placement, Failure> {
    let placed = placements.placed(&args.change.service)?;
    if !backends.values().any(|backend| backend.value.is_sandbox && !backend.value.is_closed) {
        let hint = "apply a 'kind: GatewayBackend' with 'sandbox: true', and start its replicas";
        return Err(Failure::refused("no backend is an open sandbox", hint));
    }
    Ok(Placement { pinned: Some(pin(args)), added: 0, ..placed })
}

/// Why the controller keeps the backends.
fn pin(args: &MoveArgs) -> PlacementPin {
    PlacementPin {
        reason: args.change.reason(),
        at_ms: now_ms(),
        ends_connections: args.now,
        is_sandbox: args.sandbox,
    }
}

/// The placement on the chosen backends.
fn moved(
    args: &MoveArgs,
    placements: &Placements,
    backends: &BTreeMap<Label, At<GatewayBackend>>,
) -> Result<Placement, Failure> {
    let chosen: BTreeSet<Label> = args.to.iter().cloned().collect();
    let fleet: Vec<Backend> =
        backends.iter().map(|(name, one)| Backend::declared(name, &one.value)).collect();
    let services: Vec<PlacedService> = placed_services(&placements.view).collect();
    let service = PlacedService {
        name: args.change.service.clone(),
        home: placements.home.clone(),
        count: chosen.len(),
        added: 0,
        present: placements.present.iter().flat_map(|one| one.value.backends().cloned()).collect(),
        is_pinned: true,
        given_back: 0,
        is_sandboxed: false,
    };
    check_choice(&fleet, &services, (&service, &chosen)).map_err(|unfit| {
        Failure::refused(unfit, "`fairmesh gateway status` shows backends, their zones and their services")
    })?;
    let mut zones = BTreeMap::<Zone, BTreeSet<Label>>::new();
    for name in chosen {
        let Some(backend) = backends.get(&name) else { continue };
        zones.entry(backend.value.zone.clone()).or_default().insert(name);
    }
    Ok(Placement {
        home_zone: service.home,
        zones,
        added: 0,
        pinned: Some(pin(args)),
        connection_limit: placements.present.as_ref().and_then(|one| one.value.connection_limit.clone()),
    })
}

/// Services with a placement, as plans see them.
fn placed_services(view: &View) -> impl Iterator<Item = PlacedService> {
    view.services.iter().filter_map(|(name, one)| {
        let placed = &one.placement.as_ref()?.value;
        Some(PlacedService {
            name: name.clone(),
            home: placed.home_zone.clone(),
            count: placed.backends().count(),
            added: 0,
            present: placed.backends().cloned().collect(),
            is_pinned: placed.pinned.is_some(),
            given_back: 0,
            is_sandboxed: placed.pinned.as_ref().is_some_and(|pin| pin.is_sandbox),
        })
    })
}
