//! `fairmesh diff`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_model::{
    ServiceName, ShardMap,
    spec::{Document, Plan},
};
use serde_json::json;

use crate::{
    cli::{Files, Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    manifests::{self, ManifestDocument},
    output,
    view::{EVERY_KIND, Scope, View},
    yaml_diff,
};

use super::apply;

/// Exit code for differences.
const EXIT_DIFFERENT: u8 = 3;

/// Arguments of `fairmesh diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    #[command(flatten)]
    files: Files,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// A document that would change a record.
struct Difference {
    kind: &'static str,
    name: String,
    text: String,
}

/// Compares; nothing is written.
pub(crate) async fn run(args: DiffArgs) -> Result<ExitCode, Failure> {
    let wanted = manifests::load(&args.files)?;
    let connection = connect::connect(&args.target).await?;
    let plans: Vec<_> = wanted.iter().map(|one| &one.plan).collect();
    for damage in apply::warnings::print_warnings(&connection, &plans).await? {
        eprintln!("warning: {damage}; 'apply' requires --force");
    }
    let mut differences = Vec::new();
    for one in &wanted {
        let scope = match &one.plan {
            Plan::Service(name, _)
            | Plan::Policy(name, _)
            | Plan::ShardMap(name, _)
            | Plan::Endpoints(name, _) => Some(name.clone()),
            Plan::Topology(..) | Plan::Hosts(_) => None,
        };
        let view = match scope {
            Some(name) => View::read(&connection, &Scope::Service(name), EVERY_KIND).await?,
            None => View::topology(&connection).await?,
        };
        differences.extend(difference(one, stored(&one.plan, &view).as_ref())?);
    }
    report(&differences, args.output_args.format())?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DIFFERENT) })
}

/// The stored record that a plan would replace.
fn stored(plan: &Plan, view: &View) -> Option<Plan> {
    let of = |name: &ServiceName| view.services.get(name);
    match plan {
        Plan::Service(name, _) => Some(Plan::Service(name.clone(), of(name)?.service.clone()?.value)),
        Plan::Policy(name, _) => Some(Plan::Policy(name.clone(), of(name)?.policy.clone()?.value)),
        Plan::ShardMap(name, wanted) => {
            Some(Plan::ShardMap(name.clone(), ordered_as(of(name)?.shards.as_ref()?, wanted)))
        }
        Plan::Topology(..) if view.regions.value.regions.is_empty() => None,
        Plan::Topology(..) => Some(Plan::Topology(view.regions.value.clone(), view.round_trips.clone())),
        Plan::Hosts(_) if view.hosts.value.is_empty() => None,
        Plan::Hosts(_) => Some(Plan::Hosts(view.hosts.value.clone())),
        Plan::Endpoints(..) => None,
    }
}

/// The stored map in the order of the written one where both are equal: the order of replicas has no meaning.
fn ordered_as(stored: &ShardMap, wanted: &ShardMap) -> ShardMap {
    if apply::same_map(stored, wanted) { wanted.clone() } else { stored.clone() }
}

fn difference(wanted: &ManifestDocument, stored: Option<&Plan>) -> Result<Option<Difference>, Failure> {
    let new = output::yaml(&Document::from(&wanted.plan))?;
    let old = stored.map(|plan| output::yaml(&Document::from(plan))).transpose()?.unwrap_or_default();
    if old == new {
        return Ok(None);
    }
    let (kind, name) = manifests::kind_and_name(&wanted.plan);
    let before = if stored.is_some() { format!("stored {kind} {name}") } else { "/dev/null".into() };
    let text = yaml_diff::unified(&old, &new, (before.trim_end(), &wanted.place));
    Ok(Some(Difference { kind, name, text }))
}

fn report(differences: &[Difference], format: Format) -> Result<(), Failure> {
    let texts: String = differences.iter().map(|one| yaml_diff::coloured(&one.text)).collect();
    let items = differences
        .iter()
        .map(|Difference { kind, name, text }| json!({ "kind": kind, "name": name, "diff": text }));
    output::print_one(format, &items.collect::<Vec<_>>(), &texts)
}
