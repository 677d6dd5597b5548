//! `fairmesh explain`: the decision of a caller, made here by the library's code on the same records.

mod authorization;
mod drains;

use std::{process::ExitCode, sync::Arc};

use clap::Args;
use fairmesh_calls::{
    FaultKind,
    observe::{self, CallExplanation, Question},
};
use fairmesh_console::{
    arguments::{AgentTarget, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output, rib_reader,
    view::{Scope, ServiceView, View, every_kind, table_age},
};
use fairmesh_model::{
    Endpoint, Location, Region, Revocations, Role, Service, ServiceKind, ServiceName, ShardKey, SpiffeId,
    Zone, arith,
};
use fairmesh_router::{
    CompileInput, DirectResponse, PeerIdentity, PickParams, RequestView, ServiceTable, ShardTable, TableInput,
};
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use super::{caller_region, identity::describe_revocations_of, records::get, request_args};

/// The most unhealthy endpoints that are listed.
const MAX_LISTED: usize = 10;

/// Arguments of `fairmesh explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The service that is called, as tenant/service, or as the host service.tenant.
    #[arg(value_parser = request_args::service)]
    service: ServiceName,
    /// The key of the call, decimal or 0x…
    #[arg(long, allow_negative_numbers = true)]
    key: Option<ShardKey>,
    /// The required role of the replica.
    #[arg(long)]
    role: Option<Role>,
    /// The method of the request; ignored for gRPC, where it is POST.
    #[arg(long, default_value = "GET", value_parser = |text: &str| Ok::<_, String>(text.to_uppercase()))]
    method: String,
    /// The path of the request; for gRPC /package.Service/Method.
    #[arg(long, default_value = "/", value_parser = request_args::path)]
    path: String,
    /// A header of the request; may be repeated.
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = request_args::header)]
    headers: Vec<(String, String)>,
    /// The host of the request [default: none].
    #[arg(long, default_value = "")]
    host: String,
    /// The region of the caller [default: that of this machine's agent].
    #[arg(long, env = "FAIRMESH_REGION")]
    region: Option<Region>,
    /// The zone of the caller [default: that of this machine's agent, in its own region].
    #[arg(long)]
    zone: Option<Zone>,
    /// The id of the caller, which determines its subset of endpoints.
    #[arg(long, default_value = "explain")]
    client_id: String,
    /// The caller, as tenant/service or a SPIFFE id: whether the policy allows it the call, and which rule decides.
    #[arg(long = "as", value_name = "ID", value_parser = authorization::caller)]
    caller: Option<authorization::CallerArgument>,
    /// The random seed of the call, for splits and picks.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    agent: AgentTarget,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

/// The simulated caller.
struct Caller {
    location: Location,
    /// Client id.
    name: String,
    /// Hash of the client id.
    id: u64,
}

/// The caller of the arguments.
async fn caller(connection: &Connection, args: &ExplainArgs) -> Result<Caller, Failure> {
    let region = caller_region::resolve(connection, args.region.as_ref(), &args.agent).await?;
    let zone = match &args.zone {
        Some(zone) => {
            let at = (&region, zone);
            caller_region::note_unknown_zone(connection, &args.service, at, &args.agent).await?;
            Some(zone.clone())
        }
        None => caller_region::zone_of_agent(&args.agent, &region).await,
    };
    let location = Location { zone, ..Location::in_region(region) };
    Ok(Caller { location, name: args.client_id.clone(), id: arith::hash_text(&args.client_id) })
}

/// Explains.
pub async fn run(args: ExplainArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let caller = caller(&connection, &args).await?;
    let Compiled { upstream, revision, mut kind, mut avoided, mut drains } =
        compile(&connection, &args.service, &caller).await?;
    let grpc = upstream.protocol() == fairmesh_model::Protocol::Grpc;
    let request = RequestView {
        host: &args.host,
        path: &args.path,
        method: if grpc { "POST" } else { &args.method },
        headers: &args.headers,
        grpc,
    };
    let ask =
        PickParams { key: args.key, role: args.role.as_ref(), call_seed: args.seed, ..PickParams::default() };
    let question = Question { request, ask, now: 0, seed: args.seed };
    let mut report = CallExplanation::default();
    observe::explain(&mut report, &upstream, revision, &question);
    if let Some(name) = report.next_service() {
        let target = compile(&connection, name, &caller).await?;
        observe::explain(&mut report, &target.upstream, target.revision, &question);
        (kind, avoided, drains) = (target.kind, target.avoided, target.drains);
    }
    if kind == ServiceKind::Replicated && (args.key.is_some() || args.role.is_some()) {
        output::note("any endpoint of a replicated service serves any call; key and role are ignored");
    }
    let (mut whole, mut text) = (as_json(&report), report.to_string());
    let mut is_refused = false;
    if let Some(id) = expected_identity(&connection, &report).await? {
        is_refused = add_identity(&connection, &id, &mut whole, &mut text).await?;
    }
    if let (Some(caller), Some(last)) = (&args.caller, report.decisions.last()) {
        let target = (&last.explanation.target, question.request.method, args.path.as_str());
        let decided = authorization::decide(&connection, caller, target).await?;
        is_refused |= !decided.is_made;
        text += &format!("{:<8} {}\n", "may", decided.words);
        whole["authorization"] = decided.json;
    }
    add_avoided(&avoided, &mut whole, &mut text);
    add_ejections(&report, &mut text);
    drains::add(&drains, &mut whole, &mut text);
    output::print_one(args.output_args.format(), &whole, &text)?;
    let answered = report.decisions.iter().any(|decision| decision.explanation.direct_response.is_some());
    Ok(if !is_refused && (report.endpoint.is_some() || answered) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Adds the identity that the endpoint proves, and what of it is revoked; whether all is, so that callers refuse it.
async fn add_identity(
    connection: &Connection,
    id: &SpiffeId,
    whole: &mut Value,
    text: &mut String,
) -> Result<bool, Failure> {
    whole["goesTo"]["identity"] = json!(id.to_string());
    *text += &format!("{:<8} {id}, by mutual TLS\n", "proves");
    let own = rib_reader::trust_bundle(connection).await?.map(|bundle| bundle.domain);
    // Those of this domain do not mean another one's.
    let revocations = match own.as_ref() == Some(&id.domain) {
        true => rib_reader::revocations(connection).await,
        false => Revocations::default(),
    };
    let revoked = describe_revocations_of(&revocations, &id.path);
    whole["goesTo"]["revoked"] = json!(revoked);
    if let Some(revoked) = revoked {
        *text += &format!(
            "{:<8} {revoked}: callers refuse them; 'fairmesh identity restore {}' undoes it\n",
            "revoked", id.path
        );
    }
    Ok(revocations.revokes_identity(&id.path))
}

/// Adds the endpoints that health checks found unhealthy.
fn add_avoided(avoided: &[(String, String)], whole: &mut serde_json::Value, text: &mut String) {
    whole["unhealthy"] =
        avoided.iter().map(|(instance, why)| json!({ "instance": instance, "why": why })).collect();
    for (instance, why) in avoided.iter().take(MAX_LISTED) {
        *text += &format!("{:<8} {instance}, {why}\n", "avoided");
    }
}

/// Adds where ejections are shown: each caller has its own, which no record shows.
fn add_ejections(report: &CallExplanation, text: &mut String) {
    if let Some(last) = report.decisions.last().filter(|_| report.endpoint.is_some()) {
        let service = &last.explanation.target;
        let shown = format!("'fairmesh proxy endpoints {service}' shows those of a proxy");
        *text += &format!("{:<8} not seen here: {shown}\n", "ejected");
    }
}

/// The identity that the endpoint proves.
async fn expected_identity(
    connection: &Connection,
    report: &CallExplanation,
) -> Result<Option<SpiffeId>, Failure> {
    match report.endpoint.as_ref().and_then(|endpoint| endpoint.identity.as_ref()) {
        Some(PeerIdentity::Service(service)) => rib_reader::identity_of_service(connection, service).await,
        Some(PeerIdentity::Id(id)) => Ok(Some(id.clone())),
        None => Ok(None),
    }
}

/// A service as a caller in the region has it.
struct Compiled {
    upstream: ServiceTable,
    /// The revision of its newest record.
    revision: u64,
    kind: ServiceKind,
    /// Endpoints that health checks found unhealthy, with the checker and the time.
    avoided: Vec<(String, String)>,
    /// Drains of the regions of the caller and of endpoints.
    drains: Vec<drains::DrainOfCalls>,
}

fn declared<'a>(name: &ServiceName, one: &'a ServiceView) -> Result<&'a Service, Failure> {
    let undeclared = || {
        Failure::failed_with(
            format!("{name} is not declared, so that callers cannot find it"),
            "apply a document of 'kind: Service' for it",
        )
    };
    one.service.as_ref().map(|service| &service.value).ok_or_else(undeclared)
}

/// The caller's snapshot.
async fn compile(connection: &Connection, name: &ServiceName, caller: &Caller) -> Result<Compiled, Failure> {
    let mut view = View::read(connection, &Scope::Service(name.clone()), &every_kind()).await?;
    view.add_drains(connection).await?;
    let one = view.service(name)?;
    let service = declared(name, one)?;
    let endpoints: Vec<Endpoint> = one.endpoints.iter().map(|endpoint| endpoint.value.clone()).collect();
    let shards = one.shards.as_ref().map(|map| Arc::new(ShardTable::compile(map)));
    let facts = CompileInput {
        name,
        service,
        policy: &one.effective_policy(),
        endpoints: &endpoints,
        shards: shards.as_ref(),
        location: &caller.location,
        regions: &view.regions.value,
        round_trips: &view.round_trips,
        table: one
            .tables
            .get(&caller.location.region)
            .map(|table| TableInput { table: &table.value, age: table_age(&table.value) }),
        hosts: &view.hosts.value,
        health: &one.health,
        now: 0,
        client_id: &caller.name,
        client: caller.id,
        requires_mtls: view.has_trust_domain,
        authorizes_callers: false,
    };
    let revisions = one.endpoints.iter().map(|endpoint| endpoint.revision);
    let policy = one.policy.as_ref().map(|policy| policy.revision);
    let table = one.tables.get(&caller.location.region).map(|table| table.revision);
    let declared = one.service.as_ref().map(|service| service.revision);
    let revision = revisions.chain(policy).chain(table).chain(declared).max().unwrap_or_default();
    let states = get::endpoint_states(one, &view).into_iter().zip(&endpoints);
    let avoided = states.filter(|(state, _)| state.state == "unhealthy");
    let avoided = avoided.map(|(state, endpoint)| (endpoint.instance.to_string(), state.reason()));
    Ok(Compiled {
        upstream: ServiceTable::compile(&facts, &Arc::default(), None),
        revision,
        kind: service.kind,
        avoided: avoided.collect(),
        drains: drains::of(&view, one, &caller.location.region),
    })
}

fn as_json(report: &CallExplanation) -> Value {
    let steps = report.decisions.iter().flat_map(|decision| &decision.explanation.steps);
    let steps: Vec<_> = steps.map(|step| json!({ "step": step.title, "detail": step.detail })).collect();
    let last = report.decisions.last().map(|decision| &decision.explanation);
    let instead = last.and_then(|last| last.direct_response.as_ref()).map(|instead| match instead {
        DirectResponse::Redirect { status, location } => json!({ "status": status, "location": location }),
        DirectResponse::Abort { status } => json!({ "status": status }),
    });
    let end = match (last.and_then(|last| last.picked.as_ref()), &report.endpoint) {
        (Some(Ok(picked)), Some(target)) => json!({
            "service": last.map(|last| last.target.to_string()),
            "instance": target.instance.to_string(),
            "address": target.address.to_string(),
            "region": target.location.region.to_string(),
            "shard": picked.shard.map(|shard| shard.0),
            "policy": report.decisions.last().map(|decision| decision.policy.as_str()),
            "lastResort": picked.last_resort,
        }),
        (Some(Err(why)), _) => json!({ "error": why.to_string(), "reason": FaultKind::from(&**why).label() }),
        _ => Value::Null,
    };
    json!({ "steps": steps, "goesTo": end, "answered": instead })
}
