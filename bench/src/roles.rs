//! Roles of benchmark processes: mesh, servers, load.

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};
use fairmesh_calls::Mesh;
use fairmesh_model::{Location, Region};
use fairmesh_store::EtcdAddress;
use fairmesh_wire::transport::Address;
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tower::Service;

use crate::{
    cross_region_calls,
    load_generator::{self, Call},
    process_usage,
};

mod application;
mod chain;
mod cleanup;
pub(crate) mod compute_servers;
mod cpu_affinity;
pub(crate) mod handwritten_tls;
mod hyper_proxy;
mod minimal_peers;
mod network_delay;
mod pods;
mod proxy_ends;
mod rare_calls;
mod replica_tree;
mod servers;
mod shard_map;
mod static_client;
mod tcp_relay;
mod tls_handshakes;

pub(crate) use cpu_affinity::{CALLERS, MEASURED};
pub(crate) use servers::free_port;

/// The generated types of the benchmarks' protocol.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::too_many_lines,
    clippy::disallowed_methods
)]
pub(crate) mod v1 {
    tonic::include_proto!("fairmesh.bench.v1");
}

/// Options of a role.
#[derive(Args, Debug)]
pub(crate) struct RoleArgs {
    #[command(subcommand)]
    role: Role,
    /// Directory of sockets and data.
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    /// Network namespace to enter, if any.
    #[arg(long, global = true)]
    place: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A control plane and an agent.
    Mesh,
    /// A control plane.
    ControlPlane {
        /// Address of the store in etcd [default: a file].
        #[arg(long)]
        etcd: Option<EtcdAddress>,
    },
    /// A replica.
    Replica {
        #[arg(long)]
        upstream: Address,
        #[arg(long)]
        name: String,
    },
    /// The source of a large shard map.
    ShardSource {
        #[arg(long)]
        shards: usize,
        #[arg(long)]
        servers: usize,
    },
    /// The agent of a large shard map.
    ShardAgent {
        #[arg(long)]
        upstream: Address,
    },
    /// A program that uses the shard map.
    ShardCaller {
        #[arg(long)]
        name: String,
    },
    /// Ten servers.
    Servers {
        #[arg(long)]
        protocol: Protocol,
        #[arg(long)]
        layer: Layer,
        /// Folder with the certificate of servers without the layer, if they use mutual TLS.
        #[arg(long)]
        certificate: Option<PathBuf>,
    },
    /// Two endpoints behind a proxy and its callers, controlled by standard input.
    LoadPair {
        #[arg(long)]
        protocol: Protocol,
        /// Cgroup to join.
        #[arg(long)]
        cgroup: Option<String>,
        /// Host named by HTTP/1.1 callers.
        #[arg(long, default_value = "http1.bench")]
        host: String,
        /// Processor to run on.
        #[arg(long, default_value_t = CALLERS)]
        processor: usize,
    },
    /// The servers and callers of many pods, controlled by standard input.
    Pods {
        /// Addresses of the servers.
        #[arg(long, value_delimiter = ',')]
        servers: Vec<SocketAddr>,
    },
    /// A service of a chain and its callers, controlled by standard input.
    Chain {
        /// Cgroup to join.
        #[arg(long)]
        cgroup: String,
    },
    /// Forwards bytes to endpoints without parsing them.
    Relay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Forwards requests to endpoints with hyper, and does nothing else.
    HyperProxy {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Executes another program on one processor.
    Launch {
        #[arg(long)]
        processor: usize,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// A client controlled by standard input.
    Client {
        #[arg(long)]
        kind: Kind,
        #[arg(long)]
        protocol: Protocol,
        #[arg(long)]
        payload: usize,
        #[arg(long, value_delimiter = ',')]
        servers: Vec<SocketAddr>,
        /// Folder with the certificate of a static client, if it uses mutual TLS.
        #[arg(long)]
        certificate: Option<PathBuf>,
    },
    /// Clients that connect for each request, controlled by standard input.
    Handshakes {
        /// Folder with a certificate of the mesh.
        #[arg(long)]
        identity: Option<PathBuf>,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Forwards bytes to a server with a delay.
    Delay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        to: SocketAddr,
        /// One-way delay in milliseconds.
        #[arg(long)]
        ms: u64,
    },
    /// A server that computes its responses under a CPU quota.
    Worker(compute_servers::WorkerArgs),
    /// Clients of workers, controlled by standard input.
    Callers(compute_servers::CallersArgs),
    /// Servers and clients of one region of an application, controlled by standard input.
    Application(application::ApplicationArgs),
    /// Servers in another region.
    RemoteServers {
        #[arg(long)]
        address: IpAddr,
    },
    /// Programs that call them, controlled by standard input.
    RareCalls(rare_calls::RareCallsArgs),
    /// Removes a folder, and ends the processes that work in it, once its input ends.
    Cleanup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Http1,
    Http2,
    Grpc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Layer {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Mesh,
    Static,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Runs one role until its input ends.
pub(crate) fn run_role(args: RoleArgs) -> Result<(), BoxError> {
    if let Some(place) = &args.place {
        cross_region_calls::network_link::enter(place)?;
    }
    match &args.role {
        // These run on any processor; workers are limited by quotas.
        Role::ControlPlane { .. } | Role::Replica { .. } | Role::Cleanup => {}
        Role::ShardSource { .. } | Role::ShardAgent { .. } | Role::ShardCaller { .. } => {}
        Role::Mesh | Role::Worker(_) | Role::Callers(_) | Role::Application(_) => {}
        // These two are launched on the processor of proxies.
        Role::Relay { .. } | Role::HyperProxy { .. } => {}
        Role::RemoteServers { .. } | Role::RareCalls(_) => {}
        // It only simulates the network.
        Role::Delay { .. } => {}
        Role::LoadPair { processor, .. } => cpu_affinity::keep_to(*processor)?,
        Role::Client { .. } | Role::Chain { .. } | Role::Handshakes { .. } | Role::Pods { .. } => {
            cpu_affinity::keep_to(CALLERS)?;
        }
        Role::Servers { .. } => cpu_affinity::keep_to(MEASURED)?,
        Role::Launch { processor, command } => {
            cpu_affinity::keep_to(*processor)?;
            let (program, arguments) = command.split_first().ok_or("there is nothing to launch")?;
            return Err(Command::new(program).args(arguments).exec().into());
        }
    }
    // One thread each: client and servers share two processors, and the cost per call must not depend on how threads
    // migrate.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(args))
}

async fn run(args: RoleArgs) -> Result<(), BoxError> {
    let agent = Address::Unix(args.dir.join("agent.sock"));
    match args.role {
        Role::Mesh => servers::mesh(&args.dir, agent).await,
        Role::ControlPlane { etcd } => replica_tree::root(&args.dir, etcd).await,
        Role::Replica { upstream, name } => replica_tree::replica(&args.dir, upstream, name).await,
        Role::ShardSource { .. } | Role::ShardAgent { .. } | Role::ShardCaller { .. } => {
            run_shards(args.role, &args.dir).await
        }
        Role::LoadPair { .. } | Role::Chain { .. } | Role::Pods { .. } => run_ends(args.role).await,
        Role::Relay { listen, to } => tcp_relay::run(listen, &to).await,
        Role::HyperProxy { listen, to } => hyper_proxy::run(listen, &to).await,
        // The process image has been replaced.
        Role::Launch { .. } => Ok(()),
        Role::Servers { protocol, layer, certificate } => serve(protocol, layer, certificate, agent).await,
        Role::Client { kind, protocol, payload, servers, certificate } => {
            client((kind, protocol), payload, (servers, certificate), agent).await
        }
        Role::Handshakes { identity, to } => tls_handshakes::run(identity.as_deref(), &to).await,
        Role::Delay { listen, to, ms } => network_delay::run(listen, to, Duration::from_millis(ms)).await,
        Role::Worker(worker) => compute_servers::serve(worker, agent).await,
        Role::Callers(callers) => compute_servers::call(callers, agent).await,
        Role::Application(application) => application::run(application, &args.dir).await,
        Role::RemoteServers { address } => rare_calls::serve(address, agent).await,
        Role::RareCalls(rare) => rare_calls::call(rare, agent).await,
        Role::Cleanup => cleanup::sweep(&args.dir).await,
    }
}

/// The roles that call and serve at once.
async fn run_ends(role: Role) -> Result<(), BoxError> {
    match role {
        Role::LoadPair { protocol, cgroup, host, .. } => {
            proxy_ends::run(protocol, cgroup.as_deref(), &host).await
        }
        Role::Chain { cgroup } => chain::run(&cgroup).await,
        Role::Pods { servers } => pods::run(&servers).await,
        _ => Ok(()),
    }
}

/// The roles of a large shard map.
async fn run_shards(role: Role, dir: &Path) -> Result<(), BoxError> {
    match role {
        Role::ShardSource { shards, servers } => shard_map::source(shards, servers).await,
        Role::ShardAgent { upstream } => shard_map::agent(dir, upstream).await,
        Role::ShardCaller { name } => shard_map::caller(dir, &name).await,
        _ => Ok(()),
    }
}

/// Serves with the server layer, or without it; over TLS if a certificate is given.
async fn serve(
    protocol: Protocol,
    layer: Layer,
    certificate: Option<PathBuf>,
    agent: Address,
) -> Result<(), BoxError> {
    let tls = certificate.as_deref().map(handwritten_tls::acceptor).transpose()?;
    servers::serve(protocol, (layer, tls), agent).await
}

/// Runs a client that executes commands.
async fn client(
    kind: (Kind, Protocol),
    payload: usize,
    (servers, certificate): (Vec<SocketAddr>, Option<PathBuf>),
    agent: Address,
) -> Result<(), BoxError> {
    let tls = certificate.as_deref().map(handwritten_tls::connector).transpose()?;
    match kind {
        (Kind::Mesh, protocol) => {
            let region = Location::in_region(Region::new("bench")?);
            let mesh = Mesh::builder().agent(agent).location(region).client_id("bench").connect().await?;
            match protocol {
                Protocol::Http1 | Protocol::Http2 => {
                    execute_orders(HttpCall::new(mesh.service("bench/http1")?, payload)).await
                }
                Protocol::Grpc => execute_orders(GrpcCall::new(mesh.service("bench/grpc")?, payload)).await,
            }
        }
        (Kind::Static, Protocol::Http1) => {
            execute_orders(HttpCall::new(static_client::Http1::new(&servers, tls), payload)).await
        }
        (Kind::Static, Protocol::Http2) => {
            let call = HttpCall::new(static_client::Http2::connect(&servers, tls).await?, payload);
            // HTTP/2 names the host in the URI.
            execute_orders(HttpCall { uri: http::Uri::from_static("http://http2.bench/echo"), ..call }).await
        }
        (Kind::Static, Protocol::Grpc) => {
            execute_orders(GrpcCall::new(static_client::Http2::connect(&servers, tls).await?, payload)).await
        }
    }
}

/// Reports that it is ready, then responds to `closed MS TASKS`, `open MS RATE` and `cpu` with one line each.
async fn execute_orders<C: Call>(call: C) -> Result<(), BoxError> {
    call.call().await?;
    println!("ready");
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            [how @ ("closed" | "open"), ms, number] => load_by(&call, how == "open", ms, number).await?,
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}

/// Calls for `ms` milliseconds with `number` concurrent calls, or in an `open` loop with `number` calls per second.
/// Returns the response line.
async fn load_by<C: Call>(call: &C, open: bool, ms: &str, number: &str) -> Result<String, BoxError> {
    let length = Duration::from_millis(ms.parse()?);
    Ok(match open {
        true => said(load_generator::open(call, number.parse()?, length).await),
        false => said(load_generator::closed(call, number.parse()?, length).await),
    })
}

/// The response to a command, as one line.
fn said<T: serde::Serialize>(done: Result<T, String>) -> String {
    done.and_then(|done| serde_json::to_string(&done).map_err(|e| e.to_string())).unwrap_or_else(|why| why)
}

fn orders() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

fn own_cpu_ns() -> u128 {
    process_usage::own_cpu().as_nanos()
}

/// A POST call whose response must equal its body.
#[derive(Clone)]
struct HttpCall<S> {
    service: S,
    uri: http::Uri,
    payload: Bytes,
}

impl<S> HttpCall<S> {
    fn new(service: S, payload: usize) -> Self {
        Self { service, uri: http::Uri::from_static("/echo"), payload: payload_of(payload) }
    }
}

impl<S, B> Call for HttpCall<S>
where
    S: Service<http::Request<Full<Bytes>>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
    S::Error: std::fmt::Display + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    async fn call(&self) -> Result<(), String> {
        let request = http::Request::post(self.uri.clone())
            .body(Full::new(self.payload.clone()))
            .map_err(|e| e.to_string())?;
        let response = self.service.clone().call(request).await.map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let mut body = std::pin::pin!(response.into_body());
        let mut received = 0;
        let mut matches = true;
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(|e| e.to_string())?.into_data() {
                matches &= self.payload.get(received..received + data.len()) == Some(&data[..]);
                received += data.len();
            }
        }
        check(matches && received == self.payload.len())
    }
}

/// A unary gRPC call whose response must equal its message.
#[derive(Clone)]
struct GrpcCall<S> {
    client: v1::echo_client::EchoClient<S>,
    payload: Bytes,
}

impl<S> GrpcCall<S>
where
    S: tonic::client::GrpcService<tonic::body::Body>,
    S::Error: Into<BoxError>,
    S::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    fn new(service: S, payload: usize) -> Self {
        let origin = http::Uri::from_static("http://echo.bench");
        Self {
            client: v1::echo_client::EchoClient::with_origin(service, origin),
            payload: payload_of(payload),
        }
    }
}

impl<S> Call for GrpcCall<S>
where
    S: tonic::client::GrpcService<tonic::body::Body> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    S::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    async fn call(&self) -> Result<(), String> {
        let message = v1::Payload { data: self.payload.clone() };
        let answer = self.client.clone().echo(message).await.map_err(|status| status.to_string())?;
        check(answer.into_inner().data == self.payload)
    }
}

pub(crate) fn payload_of(size: usize) -> Bytes {
    (0..size).map(|i| b'a' + (i % 26) as u8).collect()
}

fn check(right: bool) -> Result<(), String> {
    if right { Ok(()) } else { Err("the answer is not what was sent".into()) }
}
