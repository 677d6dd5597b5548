//! `fairmesh diff`.

use std::process::ExitCode;

use clap::Args;
use fairmesh_console::{
    arguments::{Files, Format, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View, every_kind},
};
use fairmesh_model::{
    Policy, ServiceName, ShardMap,
    spec::{Document, Resource},
};
use fairmesh_wire::handshake::Connection;
use serde_json::json;

use crate::{
    manifests::{self, ManifestDocument},
    yaml_diff::{self, NamedText},
};

use super::apply;

/// Exit code for differences.
const EXIT_DIFFERENT: u8 = 3;

/// Arguments of `fairmesh diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
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

/// Compares documents with stored records; nothing is written.
pub async fn run(args: DiffArgs) -> Result<ExitCode, Failure> {
    let wanted = manifests::load(&args.files)?;
    let connection = connect::connect(&args.target).await?;
    let resources: Vec<_> = wanted.iter().map(|one| &one.resource).collect();
    for damage in apply::warnings::print_warnings(&connection, &resources).await? {
        output::warn(format!("{damage}; 'apply' requires --force"));
    }
    let mut differences = Vec::new();
    for one in &wanted {
        let view = records_of(&connection, &one.resource).await?;
        differences.extend(difference(one, stored(&one.resource, &view).as_ref())?);
    }
    report(&differences, args.output_args.format())?;
    Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_DIFFERENT) })
}

/// Reads the records that contain the one a resource would replace.
async fn records_of(connection: &Connection, resource: &Resource) -> Result<View, Failure> {
    let service = match resource {
        Resource::ShardMap(name, _) => Some(name.clone()),
        resource => resource.records().iter().find_map(|(key, _)| key.service().cloned()),
    };
    if let Some(name) = service {
        return View::read(connection, &Scope::Service(name), &every_kind()).await;
    }
    match resource {
        Resource::RoleBinding(..) => View::roles(connection).await,
        Resource::GatewayBackend(..) => View::gateway_backends(connection).await,
        Resource::GatewayQuota(..) => View::gateway_quotas(connection).await,
        Resource::PolicyDefaults(scope, _) => {
            let tenant = scope.tenant().cloned();
            View::policy_defaults(connection, &tenant.map_or(Scope::All, Scope::Tenant)).await
        }
        _ => View::topology(connection).await,
    }
}

/// The stored record that a resource would replace.
fn stored(resource: &Resource, view: &View) -> Option<Resource> {
    let of = |name: &ServiceName| view.services.get(name);
    match resource {
        Resource::Service(name, _) => Some(Resource::Service(name.clone(), of(name)?.service.clone()?.value)),
        Resource::Policy(name, wanted) => {
            let stored = of(name)?.policy.clone()?.value;
            // A policy without rules does not change the rules in force.
            let authorization = stored.authorization.filter(|_| wanted.authorization.is_some());
            let stored = Policy { authorization, ..stored };
            (stored != Policy::default()).then(|| Resource::Policy(name.clone(), stored))
        }
        Resource::ServiceAuthorization(name, _) => {
            Some(Resource::ServiceAuthorization(name.clone(), of(name)?.rules()?.clone()))
        }
        Resource::Workload(name, _) => {
            Some(Resource::Workload(name.clone(), of(name)?.workload.clone()?.value))
        }
        Resource::ShardMap(name, wanted) => {
            Some(Resource::ShardMap(name.clone(), ordered_as(of(name)?.shards.as_ref()?, wanted)))
        }
        Resource::PolicyDefaults(scope, _) => {
            let stored = view.policy_defaults.iter().find(|(of, _)| *of == scope)?.1;
            Some(Resource::PolicyDefaults(scope.clone(), stored.clone()))
        }
        Resource::Topology(..) if view.regions.value.regions.is_empty() => None,
        Resource::Topology(..) => {
            Some(Resource::Topology(view.regions.value.clone(), view.round_trips.clone()))
        }
        Resource::Hosts(_) if view.hosts.value.is_empty() => None,
        Resource::Hosts(_) => Some(Resource::Hosts(view.hosts.value.clone())),
        Resource::Authorization(_) => view.authorization.map(Resource::Authorization),
        Resource::RoleBinding(name, _) => {
            Some(Resource::RoleBinding(name.clone(), view.roles.get(name)?.value.clone()))
        }
        Resource::GatewayBackend(name, _) => {
            Some(Resource::GatewayBackend(name.clone(), view.gateway_backends.get(name)?.value.clone()))
        }
        Resource::GatewayQuota(tenant, _) => {
            Some(Resource::GatewayQuota(tenant.clone(), view.gateway_quotas.get(tenant)?.value))
        }
        Resource::GatewayService(name, _) => {
            Some(Resource::GatewayService(name.clone(), of(name)?.gateway.clone()?.value))
        }
        Resource::Endpoints(..) => None,
    }
}

/// The stored map in the order of the written one if both are equal: the order of replicas has no meaning.
fn ordered_as(stored: &ShardMap, wanted: &ShardMap) -> ShardMap {
    if apply::same_map(stored, wanted) { wanted.clone() } else { stored.clone() }
}

fn difference(wanted: &ManifestDocument, stored: Option<&Resource>) -> Result<Option<Difference>, Failure> {
    let new = output::yaml(&Document::from(&wanted.resource))?;
    let old = stored.map(|resource| output::yaml(&Document::from(resource))).transpose()?.unwrap_or_default();
    if old == new {
        return Ok(None);
    }
    let (kind, name) = wanted.resource.kind_and_name();
    let before = if stored.is_some() { format!("stored {kind} {name}") } else { "/dev/null".into() };
    let old = NamedText { name: before.trim_end(), text: &old };
    let text = yaml_diff::unified(old, NamedText { name: &wanted.place, text: &new });
    Ok(Some(Difference { kind, name, text }))
}

fn report(differences: &[Difference], format: Format) -> Result<(), Failure> {
    let texts: String = differences.iter().map(|one| yaml_diff::coloured(&one.text)).collect();
    let items = differences
        .iter()
        .map(|Difference { kind, name, text }| json!({ "kind": kind, "name": name, "diff": text }));
    output::print_one(format, &items.collect::<Vec<_>>(), &texts)
}
