//! `fairmesh get`.

mod authorization;
mod gateway;
mod health_verdicts;
mod hosts;
mod list_output;
mod moves_and_watchers;
mod policies;
mod region_tables;
mod regions;
mod role_bindings;
mod services;
mod shards;
mod wait;
mod watch;
mod workloads;

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use clap::{Args, ValueEnum};
use fairmesh_console::{
    arguments::TargetArgs,
    connect,
    failure::Failure,
    output::{self, Listing},
    rib_reader,
    view_reader::{ReadView, Scope, ServiceView, View, every_kind},
};
use fairmesh_model::{RecordKind, RecordList, ServiceName, SpiffePath, Tenant, spec::read_duration};
use fairmesh_wire::handshake::Connection;

use list_output::ListOutputArgs;

pub(crate) use health_verdicts::of_service as health_rows;
pub(crate) use moves_and_watchers::{MOVES_HEAD, add_moves};
pub(crate) use policies::summary as policy_summary;
pub(crate) use regions::{DISTANCES, DistanceRow, distance, region_state};
pub(crate) use services::endpoints as endpoint_rows;
pub(crate) use shards::one_map;
pub(crate) use wait::serving_endpoint;

/// Arguments of `fairmesh get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// The kind to list.
    #[arg(value_enum)]
    kind: Kind,
    /// Only objects of this service, as tenant/service.
    service: Option<ServiceName>,
    /// Only objects of this tenant.
    #[arg(short, long, conflicts_with = "service")]
    tenant: Option<Tenant>,
    /// Wait until something is listed; services and endpoints must also be serving. At most 30s unless given as
    /// --wait=DURATION.
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "30s",
        value_parser = read_duration
    )]
    wait: Option<Duration>,
    /// Print the list, then its rows as they change, until it is interrupted.
    #[arg(short, long, conflicts_with = "wait")]
    watch: bool,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: ListOutputArgs,
}

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Declared services, and those that only have endpoints or a policy.
    #[value(alias = "service")]
    Services,
    /// Endpoints of services.
    #[value(alias = "endpoint")]
    Endpoints,
    /// Results of active health checks.
    Health,
    /// Written policies; a service without one has the default.
    #[value(aliases = ["policy"])]
    Policies,
    /// Defaults for the policies of tenants and of the mesh.
    #[value(aliases = ["policydefaults"])]
    PolicyDefaults,
    /// Shard maps; those of one service shard by shard.
    #[value(aliases = ["shard", "shardmaps"])]
    Shards,
    /// Regions, and the distances between them: declared and measured.
    #[value(aliases = ["region", "topology"])]
    Regions,
    /// Host types with their speeds, and how many endpoints run on each.
    #[value(aliases = ["host", "hosttypes"])]
    Hosts,
    /// Shard moves in progress.
    #[value(alias = "move")]
    Moves,
    /// Region tables: the shares by region of the calls to services.
    #[value(alias = "table")]
    Tables,
    /// Watchers of the endpoints of services, and the revision that each has applied.
    #[value(alias = "watcher")]
    Watchers,
    /// Programs that may have the identity of a service.
    #[value(alias = "workload")]
    Workloads,
    /// Who may call which service.
    Authorization,
    /// Who may do what with the records.
    #[value(aliases = ["role", "rolebindings", "rolebinding"])]
    Roles,
    /// Backends of the gateway, and how many services each serves.
    #[value(aliases = ["gateway-backend", "gatewaybackends", "gatewaybackend"])]
    GatewayBackends,
    /// What tenants may have at the gateway.
    #[value(aliases = ["gateway-quota", "gatewayquotas", "gatewayquota"])]
    GatewayQuotas,
    /// Services that use a gateway with backends, and the backends that serve each.
    #[value(aliases = ["gateway-service", "gatewayservices", "gatewayservice", "placements", "placement"])]
    GatewayServices,
}

impl Kind {
    /// Record kinds of a list that belong to services.
    fn records(self) -> Vec<RecordKind> {
        let kinds: &[RecordKind] = match self {
            Self::Services => return every_kind(),
            Self::Endpoints => &[RecordKind::Endpoint, RecordKind::Health, RecordKind::Policy],
            Self::Hosts => &[RecordKind::Endpoint],
            // Drains move calls of services whose policies ask for a planner. Defaults complete the policies of
            // declared services.
            Self::Regions => &[RecordKind::Service, RecordKind::Endpoint, RecordKind::Policy],
            Self::Watchers => &[RecordKind::Service],
            Self::Health => &[RecordKind::Endpoint, RecordKind::Health, RecordKind::Policy],
            Self::Policies | Self::Authorization => &[RecordKind::Policy],
            Self::Shards => &[RecordKind::ShardMap],
            Self::Moves => &[RecordKind::Move],
            Self::Tables => &[RecordKind::Policy, RecordKind::RegionTable],
            Self::Workloads => &[RecordKind::Workload],
            Self::Roles | Self::GatewayQuotas | Self::PolicyDefaults => &[],
            Self::GatewayBackends => &[RecordKind::Placement],
            Self::GatewayServices => &[RecordKind::GatewayService, RecordKind::Placement],
        };
        kinds.to_vec()
    }
}

/// The list that shows records of a kind; `None` if other commands show them.
pub(super) const fn list_of(kind: RecordKind) -> Option<Kind> {
    Some(match kind.rules().list {
        RecordList::Services => Kind::Services,
        RecordList::Endpoints => Kind::Endpoints,
        RecordList::Health => Kind::Health,
        RecordList::Policies => Kind::Policies,
        RecordList::PolicyDefaults => Kind::PolicyDefaults,
        RecordList::Shards => Kind::Shards,
        RecordList::Moves => Kind::Moves,
        RecordList::Tables => Kind::Tables,
        RecordList::Workloads => Kind::Workloads,
        RecordList::Authorization => Kind::Authorization,
        RecordList::Regions => Kind::Regions,
        RecordList::Hosts => Kind::Hosts,
        RecordList::Roles => Kind::Roles,
        RecordList::GatewayBackends => Kind::GatewayBackends,
        RecordList::GatewayQuotas => Kind::GatewayQuotas,
        RecordList::GatewayServices => Kind::GatewayServices,
        RecordList::Unlisted => return None,
    })
}

impl GetArgs {
    fn scope(&self) -> Scope {
        match (&self.service, &self.tenant) {
            (Some(service), _) => Scope::Service(service.clone()),
            (None, Some(tenant)) => Scope::Tenant(tenant.clone()),
            (None, None) => Scope::All,
        }
    }
}

/// Lists objects.
pub async fn run(args: GetArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    if let Some(limit) = args.wait {
        wait::wait(&connection, &args, limit).await?;
    }
    if args.watch {
        watch::watch(&connection, &args).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let listing = list(&connection, &args).await?;
    list_output::print(listing, args.kind, args.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

/// Kinds of records that are read for a list.
fn read_kinds(kind: Kind) -> Vec<RecordKind> {
    let kinds: BTreeSet<_> = kind.records().into_iter().chain([RecordKind::Service]).collect();
    kinds.into_iter().collect()
}

async fn list(connection: &Connection, args: &GetArgs) -> Result<Listing, Failure> {
    let mut view = match args.kind {
        Kind::Roles => View::roles(connection).await?,
        Kind::GatewayQuotas => View::gateway_quotas(connection).await?,
        Kind::PolicyDefaults => View::policy_defaults(connection, &args.scope()).await?,
        _ => View::read(connection, &args.scope(), &read_kinds(args.kind)).await?,
    };
    if args.kind == Kind::GatewayBackends {
        view.gateway_backends = View::gateway_backends(connection).await?.gateway_backends;
    }
    if args.kind == Kind::Regions {
        view.add_drains(connection).await?;
    }
    if let Some(name) = &args.service
        && view.service(name)?.service.is_none()
    {
        output::note(format!(
            "{name} is not declared, so that callers cannot find it; apply a 'kind: Service' for it"
        ));
    }
    if matches!(args.kind, Kind::Services | Kind::Endpoints) {
        note_revoked(connection, &view).await;
    }
    let mut listing = listing(connection, args, &view).await?;
    listing.why_empty = match &args.service {
        Some(name) => view.service(name).ok().and_then(|one| why_empty(args.kind, name, one)),
        None => why_all_empty(args.kind, &view),
    };
    Ok(listing)
}

/// Prints which of the services no process calls, because their identity is revoked.
async fn note_revoked(connection: &Connection, view: &View) {
    let revocations = rib_reader::revocations(connection).await;
    let is_revoked =
        |name: &&ServiceName| revocations.revokes_identity(&SpiffePath::Service((*name).clone()));
    for name in view.services.keys().filter(is_revoked) {
        output::note(format!(
            "the identity of {name} is revoked, so that no process calls it by mutual TLS; 'fairmesh identity restore {name}' undoes it"
        ));
    }
}

async fn listing(connection: &Connection, args: &GetArgs, view: &View) -> Result<Listing, Failure> {
    Ok(match args.kind {
        Kind::Services => services::services(view),
        Kind::Endpoints => services::all_endpoints(view),
        Kind::Health => health_verdicts::all(view),
        Kind::Policies => policies::policies(view),
        Kind::PolicyDefaults => policies::defaults(view),
        Kind::Shards => match &args.service {
            Some(name) => shards::one(view, name)?,
            None => shards::maps(view),
        },
        Kind::Regions => regions::regions(view),
        Kind::Hosts => hosts::hosts(view),
        Kind::Moves => moves_and_watchers::moves(connection, view).await?,
        Kind::Tables => region_tables::tables(view),
        Kind::Watchers => moves_and_watchers::watchers(connection, view).await?,
        Kind::Workloads => workloads::workloads(view),
        Kind::Roles => role_bindings::roles(view),
        Kind::GatewayBackends => gateway::backends(view),
        Kind::GatewayQuotas => gateway::quotas(view),
        Kind::GatewayServices => gateway::services(view),
        Kind::Authorization => authorization::authorization(view),
    })
}

/// Reason why the list of a service may be empty, if known.
fn why_empty(kind: Kind, name: &ServiceName, one: &ServiceView) -> Option<String> {
    match kind {
        Kind::Policies => Some(format!(
            "{name} has no policy of its own and runs on the defaults; 'fairmesh describe service {name}' lists them"
        )),
        Kind::Tables => region_tables::why_empty(name, one),
        Kind::Workloads => {
            Some(format!("only programs of the agents' users may be {name}, on every machine"))
        }
        Kind::Health if one.effective_policy().health_check.is_none() => {
            Some(format!("{name} is not checked; add a healthCheck to its policy"))
        }
        _ => None,
    }
}

/// Reason why the list of all services may be empty, if known.
fn why_all_empty(kind: Kind, view: &View) -> Option<String> {
    let checked = || view.services.values().any(|one| one.effective_policy().health_check.is_some());
    (kind == Kind::Health && !checked())
        .then(|| "no service is checked; add a healthCheck to the policy of one".to_owned())
}

/// The shard map of a service, one row per shard.
pub(crate) async fn shards_of(connection: &Connection, name: &ServiceName) -> Result<Listing, Failure> {
    let view = View::read(connection, &Scope::Service(name.clone()), &Kind::Shards.records()).await?;
    shards::one(&view, name)
}
