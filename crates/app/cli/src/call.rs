//! `fairmesh call`: one request through the library.

use std::{
    fmt, fs,
    io::{self, Read as _},
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use fairmesh_calls::{
    MeshBuilder,
    discovery::ServiceState,
    forwarding::{CallInfo, route_backend_name, send_noted, service_state, with_identity_wait},
    observe::AttemptRecord,
};
use fairmesh_client::{Body, Fault, FaultKind, Mesh, ServiceHandle, Trace};
use fairmesh_console::{
    arguments::{AgentTarget, OutputArgs},
    connect,
    failure::Failure,
    output,
};
use fairmesh_identity::FIRST_CERTIFICATE_WAIT;
use fairmesh_model::{Invalid, Location, Protocol, Region, Role, ServiceName, ShardKey, SpiffePath, spec};
use fairmesh_wire::transport::Address;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, response::Parts};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::request_args;

/// Arguments of `fairmesh call`.
#[derive(Debug, Args)]
pub struct CallArgs {
    /// The service, as tenant/service, or as the host service.tenant.
    #[arg(value_parser = request_args::service)]
    service: ServiceName,
    /// The path of the request, with its query.
    #[arg(default_value = "/", value_parser = request_args::path)]
    path: String,
    /// The key of the call, decimal or 0x…
    #[arg(long, allow_negative_numbers = true)]
    key: Option<ShardKey>,
    /// The required role of the replica.
    #[arg(long)]
    role: Option<Role>,
    /// The method [default: GET, or POST with a body].
    #[arg(short = 'X', long, value_parser = method)]
    method: Option<Method>,
    /// The identity to call with, as tenant/service; the agent gives it to programs of its own user and of root [default: an
    /// operator].
    #[arg(long = "as", value_name = "ID", conflicts_with = "lookaside")]
    identity: Option<SpiffePath>,
    /// The body; @FILE reads a file, and @- standard input.
    #[arg(short = 'd', long = "data", value_name = "BODY")]
    body: Option<String>,
    /// A header of the request; may be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = request_args::header)]
    headers: Vec<(String, String)>,
    /// Timeout of the call; without it, the timeouts of the service's policy apply.
    #[arg(long, value_parser = timeout, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Print the responding endpoint, attempts, duration and headers to standard error.
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    agent: AgentTarget,
    /// A control plane to follow instead of the agent: host:port or unix:/path; several are attempted in order.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    control: Vec<Address>,
    /// A lookaside to use instead of the agent.
    #[arg(long, value_name = "ADDRESS", conflicts_with = "control")]
    lookaside: Option<Address>,
    /// The region of the caller, with --control; otherwise that of the agent.
    #[arg(long, env = "FAIRMESH_REGION", default_value = "local")]
    region: Region,
    #[command(flatten)]
    output_args: OutputArgs,
}

fn timeout(text: &str) -> Result<Duration, String> {
    match spec::read_duration(text).map_err(|problem| problem.to_string())? {
        Duration::ZERO => {
            Err("0s is out of range; write 1ms or more, or leave it out for the policy's timeouts".to_owned())
        }
        timeout => Ok(timeout),
    }
}

fn method(text: &str) -> Result<Method, String> {
    text.to_uppercase().parse().map_err(|_| format!("'{text}' is not a method; write one such as PUT"))
}

/// Calls; the response body goes to standard output unchanged. A status of 400 or above counts as failed.
pub async fn run(args: CallArgs) -> Result<ExitCode, Failure> {
    let mesh = connect_mesh(&args).await.map_err(refused)?;
    let ended = call(&mesh, &args).await;
    if ended.is_ok() && args.lookaside.is_none() {
        warn_of_copy(&mesh);
    }
    mesh.close().await;
    ended
}

/// Warns if the records come from the copy on the agent's disk.
fn warn_of_copy(mesh: &Mesh) {
    let freshness = mesh.freshness();
    if !freshness.connected {
        output::warn(format!("this call was routed by the agent's copy of the records: {freshness}"));
    }
}

async fn call(mesh: &Mesh, args: &CallArgs) -> Result<ExitCode, Failure> {
    let service = handle(mesh, args).map_err(refused)?;
    let (mut request, trace) = (request(args)?, Trace::new());
    request.extensions_mut().insert(trace.clone());
    if let Err(one) = service.prepare().await {
        return Err(unprepared(args, one).await);
    }
    if let ServiceState::Ready(ready) = &*service_state(&service)
        && ready.upstream.protocol() == Protocol::Grpc
    {
        return Err(Failure::refused(
            format!("{} speaks gRPC, and this command plain HTTP only", args.service),
            "call it with a gRPC client; 'fairmesh explain' shows where its calls go",
        ));
    }
    let started = Instant::now();
    let call_info = CallInfo::default();
    let answer = send_noted(&service, request, &call_info).await;
    let injected = Injected::of(&service, &call_info);
    let is_verbose = args.verbose && args.output_args.is_table();
    if is_verbose {
        print_trace(&trace);
        if let Some(injected) = &injected {
            output::say(format_args!("* the mesh injected a fault: {injected}"));
        }
    }
    let answer = answer.map_err(|one| fault(args, one))?;
    if is_verbose {
        print_head(&answer);
    }
    let (head, body) = answer.into_parts();
    let body = body.collect().await.map_err(|one| fault(args, one))?.to_bytes();
    if args.output_args.is_table() {
        output::write_bytes(&body)?;
    } else {
        let ended =
            CallEnd { head: &head, body: &body, took: started.elapsed(), injected: injected.as_ref() };
        output::print_one(args.output_args.format(), &ended.document(&trace), "")?;
    }
    if is_verbose {
        output::say(format_args!("* {} bytes of body, {:.1?} in all", body.len(), started.elapsed()));
    }
    if !head.status.is_client_error() && !head.status.is_server_error() {
        return Ok(ExitCode::SUCCESS);
    }
    if args.output_args.is_table() {
        print_failed(args, head.status, injected);
    }
    Ok(ExitCode::FAILURE)
}

/// Prints which side gave a status of 400 or above.
fn print_failed(args: &CallArgs, status: StatusCode, injected: Option<Injected>) {
    match injected.filter(Injected::is_abort) {
        Some(Injected { route, .. }) => output::say(format_args!(
            "the mesh injected {status} (route {route} of {}); no server was called",
            args.service
        )),
        None => output::say(format_args!("{} answered {status}", args.service)),
    }
}

/// A response and how it came about.
struct CallEnd<'a> {
    head: &'a Parts,
    body: &'a [u8],
    took: Duration,
    injected: Option<&'a Injected>,
}

impl CallEnd<'_> {
    /// The response as JSON. `body` is null where it is no text.
    fn document(&self, trace: &Trace) -> Value {
        let header = |(name, value): (&HeaderName, &HeaderValue)| json!({ "name": name.as_str(), "value": String::from_utf8_lossy(value.as_bytes()) });
        json!({
            "status": self.head.status.as_u16(),
            "headers": self.head.headers.iter().map(header).collect::<Vec<_>>(),
            "body": std::str::from_utf8(self.body).ok(),
            "bodyBytes": self.body.len(),
            "ms": millis(self.took),
            "attempts": trace.take().iter().map(attempt).collect::<Vec<_>>(),
            "injectedFault": self.injected.map(ToString::to_string),
        })
    }
}

fn attempt(tried: &AttemptRecord) -> Value {
    let endpoint = &tried.endpoint;
    json!({
        "instance": endpoint.instance.to_string(),
        "address": endpoint.address.to_string(),
        "region": endpoint.location.region.to_string(),
        "status": tried.outcome.as_ref().ok().map(|status| status.as_u16()),
        "problem": tried.outcome.as_ref().err(),
        "ms": millis(tried.took),
    })
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Faults that the call's route injected.
struct Injected {
    faults: &'static str,
    route: String,
}

impl Injected {
    fn of(service: &ServiceHandle, call_info: &CallInfo) -> Option<Self> {
        let route = || route_backend_name(service, call_info.route_backend()).route;
        call_info.injected().map(|faults| Self { faults, route: route() })
    }

    /// Whether a fault answered in place of a server.
    fn is_abort(&self) -> bool {
        self.faults.contains("abort")
    }
}

impl fmt::Display for Injected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (route {})", self.faults, self.route)
    }
}

async fn connect_mesh(args: &CallArgs) -> Result<Mesh, Invalid> {
    // An agent on a busy machine may take seconds; one that refuses or is not there ends the wait.
    let wait = args.timeout.unwrap_or(FIRST_CERTIFICATE_WAIT);
    let mut mesh = with_identity_wait(Mesh::builder().client_id("fairmesh call"), wait);
    if let Some(identity) = &args.identity {
        mesh = mesh.identity(identity.clone());
    }
    let mesh = match (&args.control[..], &args.lookaside) {
        ([_, ..], _) => {
            let mesh = args.control.iter().cloned().fold(mesh, MeshBuilder::control);
            mesh.location(Location::in_region(args.region.clone()))
        }
        // The agent provides the identity. Without one, a mesh with a trust domain answers nothing.
        ([], Some(lookaside)) => match agent_beside_lookaside(args) {
            Some(agent) => mesh.lookaside(lookaside.clone()).agent(agent),
            None => mesh.lookaside(lookaside.clone()),
        },
        ([], None) => mesh.agent(args.agent.address()),
    };
    mesh.connect().await
}

/// The agent that provides the identity of a call through a lookaside, if there is an agent; lookasides exist for
/// machines without one.
fn agent_beside_lookaside(args: &CallArgs) -> Option<Address> {
    let address = args.agent.address();
    match &address {
        Address::Unix(path) if args.agent.agent.is_none() && !path.exists() => None,
        _ => Some(address),
    }
}

fn handle(mesh: &Mesh, args: &CallArgs) -> Result<ServiceHandle, Invalid> {
    let mut service = mesh.service(args.service.to_string())?;
    if let Some(key) = args.key {
        service = service.key(key);
    }
    if let Some(role) = &args.role {
        service = service.role(role)?;
    }
    Ok(match args.timeout {
        Some(timeout) => service.timeout(timeout),
        None => service,
    })
}

fn request(args: &CallArgs) -> Result<Request<Body>, Failure> {
    let usual = if args.body.is_some() { Method::POST } else { Method::GET };
    let mut request = Request::new(body(args.body.as_deref())?);
    *request.method_mut() = args.method.clone().unwrap_or(usual);
    *request.uri_mut() = args.path.parse().map_err(|_| {
        Failure::refused(
            format!("'{}' is not a path", args.path),
            "escape characters that paths may not contain, such as %20",
        )
    })?;
    for (name, value) in &args.headers {
        let parsed = name.parse::<HeaderName>().ok().zip(value.parse::<HeaderValue>().ok());
        let Some((name, value)) = parsed else {
            let hint = "names have letters, digits and dashes, values visible text";
            return Err(Failure::refused(format!("'{name}: {value}' is not a header"), hint));
        };
        request.headers_mut().append(name, value);
    }
    Ok(request)
}

fn body(text: Option<&str>) -> Result<Body, Failure> {
    let read = match text {
        None => return Ok(Body::empty()),
        Some("@-") => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
        Some(text) => match text.strip_prefix('@') {
            Some(path) => fs::read(path),
            None => return Ok(Body::from(text.to_owned())),
        },
    };
    read.map(Body::from).map_err(|error| {
        let what = text.unwrap_or_default();
        Failure::refused(
            format!("cannot read the body from '{what}': {error}"),
            "check the path and its permissions",
        )
    })
}

/// Prints one line per attempt.
fn print_trace(trace: &Trace) {
    for (i, tried) in (1..).zip(trace.take()) {
        let endpoint = &tried.endpoint;
        let (instance, address, region) = (&endpoint.instance, &endpoint.address, &endpoint.location.region);
        let outcome = match &tried.outcome {
            Ok(status) => status.to_string(),
            Err(problem) => problem.clone(),
        };
        output::say(format_args!(
            "* try {i}: {instance} at {address} in {region}: {outcome} after {:.1?}",
            tried.took
        ));
    }
}

fn print_head(answer: &Response<Body>) {
    output::say(format_args!("< {:?} {}", answer.version(), answer.status()));
    for (name, value) in answer.headers() {
        output::say(format_args!("< {name}: {}", String::from_utf8_lossy(value.as_bytes())));
    }
}

/// The failure of a call without records. If there is no agent, says how to name one.
async fn unprepared(args: &CallArgs, cause: Fault) -> Failure {
    let address = args.agent.address();
    let by_agent = args.control.is_empty() && args.lookaside.is_none();
    if !by_agent || cause.kind() != FaultKind::Unavailable || connect::reaches_agent(&address).await {
        return fault(args, cause);
    }
    Failure::failed_with(
        format!("{} cannot be called: no agent responds at {address}", args.service),
        format!(
            "{}; or follow a control plane with --control ADDRESS (FAIRMESH_CONTROL does not apply to 'call')",
            connect::agent_hint(&address).await
        ),
    )
}

fn fault(args: &CallArgs, fault: Fault) -> Failure {
    use FaultKind::{Reset, Unavailable, Unreachable};
    let may_lack_identity = args.lookaside.is_some() && agent_beside_lookaside(args).is_none();
    match fault.kind() {
        Unavailable | Unreachable | Reset if may_lack_identity => Failure::failed_with(
            fault,
            "in a mesh with a trust domain, lookasides and servers answer callers with an identity only: call from a machine \
             whose agent has joined, and name the agent with --agent",
        ),
        _ => Failure::failed(fault),
    }
}

fn refused(invalid: Invalid) -> Failure {
    Failure::refused(format!("{}: {}", invalid.field, invalid.problem), invalid.hint)
}
