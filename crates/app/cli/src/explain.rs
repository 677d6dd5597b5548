//! `fairmesh explain`: a caller's decision, made locally by the library's code on the same records.

mod authorization;
mod drains;
mod policy_origins;

use std::process::ExitCode;

use clap::Args;
use fairmesh_calls::observe::CallExplanation;
use fairmesh_console::{
    arguments::{AgentTarget, OutputArgs, TargetArgs},
    connect,
    failure::Failure,
    output, rib_reader,
    view_reader::{ReadView, Scope, View, every_kind},
};
use fairmesh_explain::{Explained, Undeclared, UndeclaredBackend};
use fairmesh_model::{
    Location, Protocol, Region, Revocations, Role, ServiceKind, ServiceName, ShardKey, SpiffeId, Zone,
};
use fairmesh_router::PeerIdentity;
use fairmesh_views::HypotheticalCall;
use fairmesh_wire::handshake::Connection;
use serde_json::{Value, json};

use super::{caller_region, identity::describe_revocations_of, request_args};

/// Maximum number of unhealthy endpoints to list.
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
    /// A claim of the caller's token, as groups=members; may be repeated.
    #[arg(long = "claim", value_name = "NAME=VALUE", value_parser = authorization::claim, requires = "caller")]
    claims: Vec<(String, String)>,
    /// The address from which the caller connects.
    #[arg(long, value_name = "IP", requires = "caller")]
    source: Option<std::net::IpAddr>,
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

/// Builds the call described by the arguments.
async fn call(connection: &Connection, args: &ExplainArgs) -> Result<HypotheticalCall, Failure> {
    let region = caller_region::resolve(connection, args.region.as_ref(), &args.agent).await?;
    let zone = match &args.zone {
        Some(zone) => {
            let at = (&region, zone);
            caller_region::note_unknown_zone(connection, &args.service, at, &args.agent).await?;
            Some(zone.clone())
        }
        None => caller_region::zone_of_agent(&args.agent, &region).await,
    };
    Ok(HypotheticalCall {
        service: args.service.clone(),
        key: args.key,
        role: args.role.clone(),
        method: args.method.clone(),
        path: args.path.clone(),
        headers: args.headers.clone(),
        host: args.host.clone(),
        location: Location { zone, ..Location::in_region(region) },
        client_id: args.client_id.clone(),
        seed: args.seed,
        empty_backends: Vec::new(),
    })
}

/// A decision, with the records it is based on.
struct Decided {
    explained: Explained,
    /// The records of the service that the call finally goes to.
    view: View,
    /// Fields of the called service's policy that have defaults, with the origin of each value.
    fields: Vec<policy_origins::OriginatedField>,
}

/// Decides with the records of the service, and of the service to which its route sends the call.
async fn decide(connection: &Connection, call: &mut HypotheticalCall) -> Result<Decided, Failure> {
    let mut view = read(connection, &call.service).await?;
    for backend in fairmesh_explain::redistributed_backends(call, &view).map_err(undeclared)? {
        match read_declared_or_not(connection, &backend).await {
            Ok(records) if fairmesh_explain::has_endpoints(call, (&backend, &records)) => {}
            Ok(_) => call.empty_backends.push(backend),
            // As on the web page: a service that may not be read counts as if it had endpoints.
            Err(failure) => {
                output::note(format!("whether {backend} has endpoints is not known: {}", failure.message()));
            }
        }
    }
    let (policy, origins) = view.service(&call.service)?.merged_policy();
    let fields = policy_origins::fields(&call.service, &policy, &origins);
    let mut explained = fairmesh_explain::begin(call, &view).map_err(undeclared)?;
    if let Some(next) = explained.report.next_service().cloned() {
        view = read_declared_or_not(connection, &next).await?;
        explained = fairmesh_explain::go_on(call, explained, (&next, &view));
    }
    Ok(Decided { explained, view, fields })
}

/// The records of a service, and the drains of regions.
async fn read(connection: &Connection, name: &ServiceName) -> Result<View, Failure> {
    let view = read_declared_or_not(connection, name).await?;
    view.service(name)?;
    Ok(view)
}

/// Like `read`, but treats a service that is not declared as having no records.
async fn read_declared_or_not(connection: &Connection, name: &ServiceName) -> Result<View, Failure> {
    let mut view = View::read_complete(connection, &Scope::Service(name.clone()), &every_kind()).await?;
    view.add_drains(connection).await?;
    Ok(view)
}

fn undeclared(error: Undeclared) -> Failure {
    Failure::failed_with(error.to_string(), "apply a document of 'kind: Service' for it")
}

/// Prints the explanation.
pub async fn run(args: ExplainArgs) -> Result<ExitCode, Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut call = call(&connection, &args).await?;
    let Decided { explained, view, fields } = decide(&connection, &mut call).await?;
    let Explained { report, last, undeclared_backend } = &explained;
    if let Some(undeclared) = undeclared_backend {
        return print_undeclared(&args, &explained, undeclared);
    }
    if last.kind == ServiceKind::Replicated && (args.key.is_some() || args.role.is_some()) {
        output::note("any endpoint of a replicated service serves any call; key and role are ignored");
    }
    let (mut whole, mut text) = (fairmesh_explain::document(&explained), report.to_string());
    let mut is_refused = false;
    if let Some(id) = expected_identity(&connection, report).await? {
        is_refused = add_identity(&connection, &id, &mut whole, &mut text).await?;
    }
    if let (Some(caller), Some(decision)) = (&args.caller, report.decisions.last()) {
        let method = if last.table.protocol() == Protocol::Grpc { "POST" } else { &args.method };
        let target = (&decision.explanation.target, method, args.path.as_str());
        let brought = authorization::Brought::new(args.source, &args.headers, &args.claims);
        let decided = authorization::decide(&connection, caller, target, &brought).await?;
        is_refused |= !decided.is_made;
        text += &format!("{:<8} {}\n", "may", decided.words);
        whole["authorization"] = decided.json;
    }
    add_avoided(&last.avoided, &mut text);
    add_ejections(report, &mut text);
    let last_view = view.service(last.table.name())?;
    drains::add(&drains::of(&view, last_view, &call.location.region), &mut whole, &mut text);
    policy_origins::add(&fields, &args.service.tenant, &mut whole, &mut text);
    output::print_one(args.output_args.format(), &whole, &text)?;
    let answered = report.decisions.iter().any(|decision| decision.explanation.direct_response.is_some());
    Ok(if !is_refused && (report.endpoint.is_some() || answered) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints the steps as far as the route, which chooses a backend that is not declared. Returns the failure of the call.
fn print_undeclared(
    args: &ExplainArgs,
    explained: &Explained,
    undeclared: &UndeclaredBackend,
) -> Result<ExitCode, Failure> {
    let whole = fairmesh_explain::document(explained);
    output::print_one(args.output_args.format(), &whole, &explained.report.to_string())?;
    let hint = format!(
        "apply a document 'kind: Service' named {}, or correct the policy ('fairmesh get policies {} -o yaml')",
        undeclared.backend, undeclared.service
    );
    let error = format!("{undeclared}: the call fails with {}", UndeclaredBackend::REASON.label());
    Err(Failure::failed_with(error, hint))
}

/// Adds the identity that the endpoint proves, and its revocations. Returns whether callers refuse the endpoint
/// because everything is revoked.
async fn add_identity(
    connection: &Connection,
    id: &SpiffeId,
    whole: &mut Value,
    text: &mut String,
) -> Result<bool, Failure> {
    whole["goesTo"]["identity"] = json!(id.to_string());
    *text += &format!("{:<8} {id}, by mutual TLS\n", "proves");
    let own = rib_reader::trust_bundle(connection).await?.map(|bundle| bundle.domain);
    // Revocations of this trust domain do not apply to another one.
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
fn add_avoided(avoided: &[(String, String)], text: &mut String) {
    for (instance, why) in avoided.iter().take(MAX_LISTED) {
        *text += &format!("{:<8} {instance}, {why}\n", "avoided");
    }
}

/// Adds a hint on where to see ejections. They are local to each caller, so no record contains them.
fn add_ejections(report: &CallExplanation, text: &mut String) {
    if let Some(last) = report.decisions.last().filter(|_| report.endpoint.is_some()) {
        let service = &last.explanation.target;
        let shown = format!("'fairmesh proxy endpoints {service}' shows those of a proxy");
        *text += &format!("{:<8} not seen here: {shown}\n", "ejected");
    }
}

/// The identity that the endpoint must prove.
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
