//! `fairmesh delete`.

mod shard_map;

use std::{process::ExitCode, sync::LazyLock};

use clap::{Args, ValueEnum, builder::PossibleValue};
use fairmesh_console::{
    arguments::{OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output,
    view_reader::{ReadView, Scope, View},
};
use fairmesh_model::{EndpointState, InstanceId, RecordKind, ServiceName};
use fairmesh_wire::v1::{ApplyRequest, DeregisterRequest, InstanceRef, outcome};
use serde_json::json;

use super::{
    apply::warnings::wider_access,
    breaking_change::{self, Change},
    history_key::{self, HistoryKey, Version},
    kind_names::Kind,
    record_name::RecordName,
};

/// Hint for deleting a declaration that has running servers.
const HINT: &str = "stop its servers first (see 'fairmesh get endpoints'), or use --force";

/// What can be deleted: configuration with a history, shard maps, and endpoints.
#[derive(Clone, Copy, Debug)]
enum Deletable {
    Record(Kind),
    ShardMap,
    Endpoint,
}

static DELETABLE: LazyLock<Vec<Deletable>> = LazyLock::new(|| {
    let kinds = Kind::value_variants().iter().copied().map(Deletable::Record);
    kinds.chain([Deletable::ShardMap, Deletable::Endpoint]).collect()
});

impl ValueEnum for Deletable {
    fn value_variants<'a>() -> &'a [Self] {
        &DELETABLE
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Record(kind) => kind.to_possible_value(),
            Self::ShardMap => {
                let help = "The shard map of the service; the audit log has its changes";
                Some(PossibleValue::new("shardmap").aliases(["shardmaps", "shards"]).help(help))
            }
            Self::Endpoint => {
                let help = "An endpoint whose server is gone, before it is forgotten by itself";
                Some(PossibleValue::new("endpoint").alias("endpoints").help(help))
            }
        }
    }
}

/// Arguments of `fairmesh delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The kind of record.
    #[arg(value_enum)]
    kind: Deletable,
    /// The service, as tenant/service, the tenant of policy defaults, or the role binding; topology and hosts have no name,
    /// and authorization has none where it applies to services without rules.
    name: Option<RecordName>,
    /// The instance, of an endpoint.
    instance: Option<InstanceId>,
    /// Why, for the history.
    #[arg(short, long, value_name = "TEXT")]
    message: Option<String>,
    /// Only report what would be deleted.
    #[arg(long)]
    dry_run: bool,
    /// Delete a declaration or a shard map even though the service has endpoints, and an endpoint that is not lost.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// Deletes the current value, unless it changes concurrently; history keeps it.
pub async fn run(args: DeleteArgs) -> Result<ExitCode, Failure> {
    let of = match (args.kind, &args.name, &args.instance) {
        (Deletable::Endpoint, Some(RecordName::Service(service)), Some(instance)) => {
            return delete_endpoint(&args, service, instance).await;
        }
        (Deletable::Endpoint, ..) => {
            return Err(Failure::refused(
                "the endpoint is not named",
                "write its service and its instance (see 'fairmesh get endpoints'): fairmesh delete endpoint shop/cart cart-0",
            ));
        }
        (_, _, Some(instance)) => {
            return Err(Failure::refused(
                format!("'{instance}' is one argument too many"),
                "only endpoints have an instance: fairmesh delete endpoint shop/cart cart-0",
            ));
        }
        (Deletable::ShardMap, Some(RecordName::Service(service)), None) => {
            return shard_map::delete(&args, service).await;
        }
        (Deletable::ShardMap, _, None) => {
            return Err(Failure::refused(
                "the service of the shard map is missing",
                "write it as tenant/service after the kind: fairmesh delete shardmap shop/cart",
            ));
        }
        (Deletable::Record(kind), name, None) => HistoryKey { kind, name: name.clone() },
    };
    of.validate()?;
    delete_record(&args, &of).await
}

async fn delete_record(args: &DeleteArgs, of: &HistoryKey) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let subject = of.title();
    let Some(current) = history_key::versions(&connection, of).await?.into_iter().next() else {
        return Err(not_found(&subject));
    };
    if current.values.iter().all(Option::is_none) {
        return Err(not_found(&subject));
    }
    if let (Some(name), true, false) = (of.service(), of.kind.includes(RecordKind::Service), args.force) {
        let change = Change { name, to: None, mapped: false };
        breaking_change::refuse(&connection, &change, HINT).await?;
    }
    for key in of.records() {
        wider_access::warn_of_record(&connection, &key, None).await?;
    }
    // A topology has two records, either of which may be the older one.
    let unchanged = current.stored_revision;
    let gone = Version { values: vec![None; current.values.len()], ..current.clone() };
    let request = ApplyRequest {
        ops: of.ops(&gone, unchanged),
        dry_run: args.dry_run,
        message: args.message.clone().unwrap_or_default(),
    };
    let answer = connection.admin().apply(request).await?.into_inner();
    let deleted = answer.outcomes.iter().any(|one| one.kind() == outcome::Kind::Deleted);
    let (kind, service) = (of.kind.name(), of.name());
    let item = json!({
        "kind": kind, "service": service, "deleted": deleted && !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("{subject} would be deleted (revision {})\n", current.revision),
        false if of.kind.records().all(|kind| kind.kept_name().is_none()) => {
            let keys: Vec<_> = of.records().iter().map(ToString::to_string).collect();
            format!("{subject} is deleted; 'fairmesh audit --key {}' shows what it was\n", keys.join(" "))
        }
        false => format!("{subject} is deleted; 'fairmesh rollback {}' restores it\n", of.arguments()),
    };
    output::print_one(args.output_args.format(), &item, &text)?;
    if let Some(name) = of.service().filter(|_| of.kind.includes(RecordKind::Service)) {
        shard_map::note_remaining(&connection, name).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Removes an endpoint. If the endpoint is not lost, its server would register it again.
async fn delete_endpoint(
    args: &DeleteArgs,
    service: &ServiceName,
    instance: &InstanceId,
) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let view = View::read(&connection, &Scope::Service(service.clone()), &[RecordKind::Endpoint]).await?;
    let endpoints = view.services.get(service).into_iter().flat_map(|of| &of.endpoints);
    let Some(endpoint) = endpoints.map(|at| &at.value).find(|one| one.instance == *instance) else {
        return Err(Failure::failed_with(
            format!("{service} has no endpoint {instance}"),
            format!("see 'fairmesh get endpoints {service}'"),
        ));
    };
    if endpoint.state != EndpointState::Lost && !args.force {
        return Err(Failure::failed_with(
            format!(
                "{instance} of {service} is {}: its server would register it again",
                endpoint.state.as_str()
            ),
            "stop its server, or take it out of service with 'fairmesh drain'; --force removes it all the same",
        ));
    }
    if !args.dry_run {
        let of = InstanceRef { service: service.to_string(), instance: instance.to_string(), incarnation: 0 };
        // The registry decides, since the server may be back by now. A registry of the previous release does not check.
        let request = DeregisterRequest { instances: vec![of], only_lost: !args.force };
        connection.registry().deregister(request).await?;
    }
    let item = json!({
        "kind": "endpoint", "service": service.to_string(), "instance": instance.to_string(),
        "deleted": !args.dry_run, "dryRun": args.dry_run,
    });
    let text = match args.dry_run {
        true => format!("endpoint {instance} of {service} would be deleted\n"),
        false => format!("endpoint {instance} of {service} is deleted\n"),
    };
    output::print_one(args.output_args.format(), &item, &text)?;
    Ok(ExitCode::SUCCESS)
}

fn not_found(subject: &str) -> Failure {
    Failure::failed(format!("{subject} does not exist: it was deleted already"))
}
