//! The roles that processes of the benchmarks take: mesh, servers, load.

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
    load::{self, Call},
    meter, remote,
};

mod affinity;
mod chain;
mod cleanup;
pub(crate) mod compute;
mod delay;
mod handshakes;
mod hyper_proxy;
mod load_pair;
mod minimal_peers;
mod rare_calls;
mod relay;
mod replica_tree;
mod servers;
mod shard_map;
mod static_client;
pub(crate) mod tls_stack;

pub(crate) use affinity::{CALLERS, MEASURED};
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

/// What to be.
#[derive(Args, Debug)]
pub(crate) struct RoleArgs {
    #[command(subcommand)]
    role: Role,
    /// Where sockets and data lie.
    #[arg(long, global = true, default_value = ".")]
    dir: PathBuf,
    /// The network in which it is, where it has one of its own.
    #[arg(long, global = true)]
    place: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A control plane and an agent.
    Mesh,
    /// A control plane.
    ControlPlane {
        /// Where its store lies, unless in a file.
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
    /// Where a large shard map comes from.
    ShardSource {
        #[arg(long)]
        shards: usize,
        #[arg(long)]
        servers: usize,
    },
    /// An agent for it.
    ShardAgent {
        #[arg(long)]
        upstream: Address,
    },
    /// A program that decides by it.
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
        /// Where the certificate of servers without the layer lies, if they speak mutual TLS.
        #[arg(long)]
        certificate: Option<PathBuf>,
    },
    /// Two endpoints behind a proxy, and its callers, with orders on standard input.
    LoadPair {
        #[arg(long)]
        protocol: Protocol,
        /// The cgroup to be in.
        #[arg(long)]
        cgroup: Option<String>,
        /// What callers over HTTP/1.1 name as their host.
        #[arg(long, default_value = "http1.bench")]
        host: String,
        /// The processor to be on.
        #[arg(long, default_value_t = CALLERS)]
        processor: usize,
    },
    /// A service of a chain, and its callers, with orders on standard input.
    Chain {
        /// The cgroup to be in.
        #[arg(long)]
        cgroup: String,
    },
    /// Passes bytes on to endpoints, and understands nothing.
    Relay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Passes requests on to endpoints by hyper, and does nothing else.
    HyperProxy {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Becomes another program, on one processor.
    Launch {
        #[arg(long)]
        processor: usize,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// A client with orders on standard input.
    Client {
        #[arg(long)]
        kind: Kind,
        #[arg(long)]
        protocol: Protocol,
        #[arg(long)]
        payload: usize,
        #[arg(long, value_delimiter = ',')]
        servers: Vec<SocketAddr>,
        /// Where the certificate of a static client lies, if it speaks mutual TLS.
        #[arg(long)]
        certificate: Option<PathBuf>,
    },
    /// Clients that connect anew for each request, with orders on standard input.
    Handshakes {
        /// A folder with a certificate of the mesh.
        #[arg(long)]
        identity: Option<PathBuf>,
        #[arg(long, value_delimiter = ',', required = true)]
        to: Vec<SocketAddr>,
    },
    /// Passes bytes on to a server that is so far away.
    Delay {
        #[arg(long)]
        listen: SocketAddr,
        #[arg(long)]
        to: SocketAddr,
        /// Milliseconds of each way.
        #[arg(long)]
        ms: u64,
    },
    /// A server that computes its responses under a CPU quota.
    Worker(compute::WorkerArgs),
    /// Clients of workers, with orders on standard input.
    Callers(compute::CallersArgs),
    /// Servers in another region.
    RemoteServers {
        #[arg(long)]
        address: IpAddr,
    },
    /// Programs that call them, with orders on standard input.
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

/// Is one part until its input ends.
pub(crate) fn run_role(args: RoleArgs) -> Result<(), BoxError> {
    if let Some(place) = &args.place {
        remote::link::enter(place)?;
    }
    match &args.role {
        // Workers are kept short by quotas, wherever they run.
        Role::ControlPlane { .. } | Role::Replica { .. } | Role::Cleanup => {}
        Role::ShardSource { .. } | Role::ShardAgent { .. } | Role::ShardCaller { .. } => {}
        Role::Mesh | Role::Worker(_) | Role::Callers(_) => {}
        // These two are launched on the processor of proxies.
        Role::Relay { .. } | Role::HyperProxy { .. } => {}
        Role::RemoteServers { .. } | Role::RareCalls(_) => {}
        // It is the network.
        Role::Delay { .. } => {}
        Role::LoadPair { processor, .. } => affinity::keep_to(*processor)?,
        Role::Client { .. } | Role::Chain { .. } | Role::Handshakes { .. } => affinity::keep_to(CALLERS)?,
        Role::Servers { .. } => affinity::keep_to(MEASURED)?,
        Role::Launch { processor, command } => {
            affinity::keep_to(*processor)?;
            let (program, arguments) = command.split_first().ok_or("there is nothing to launch")?;
            return Err(Command::new(program).args(arguments).exec().into());
        }
    }
    // One thread each: client and servers share two processors, and a figure per call must not hang on how work
    // wanders.
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
        Role::LoadPair { protocol, cgroup, host, .. } => {
            load_pair::run(protocol, cgroup.as_deref(), &host).await
        }
        Role::Chain { cgroup } => chain::run(&cgroup).await,
        Role::Relay { listen, to } => relay::run(listen, &to).await,
        Role::HyperProxy { listen, to } => hyper_proxy::run(listen, &to).await,
        // It is something else by now.
        Role::Launch { .. } => Ok(()),
        Role::Servers { protocol, layer, certificate } => serve(protocol, layer, certificate, agent).await,
        Role::Client { kind, protocol, payload, servers, certificate } => {
            client((kind, protocol), payload, (servers, certificate), agent).await
        }
        Role::Handshakes { identity, to } => handshakes::run(identity.as_deref(), &to).await,
        Role::Delay { listen, to, ms } => delay::run(listen, to, Duration::from_millis(ms)).await,
        Role::Worker(worker) => compute::serve(worker, agent).await,
        Role::Callers(callers) => compute::call(callers, agent).await,
        Role::RemoteServers { address } => rare_calls::serve(address, agent).await,
        Role::RareCalls(rare) => rare_calls::call(rare, agent).await,
        Role::Cleanup => cleanup::sweep(&args.dir).await,
    }
}

/// The roles of a large map.
async fn run_shards(role: Role, dir: &Path) -> Result<(), BoxError> {
    match role {
        Role::ShardSource { shards, servers } => shard_map::source(shards, servers).await,
        Role::ShardAgent { upstream } => shard_map::agent(dir, upstream).await,
        Role::ShardCaller { name } => shard_map::caller(dir, &name).await,
        _ => Ok(()),
    }
}

/// Serves without the layer, over TLS where there is a certificate, or with it.
async fn serve(
    protocol: Protocol,
    layer: Layer,
    certificate: Option<PathBuf>,
    agent: Address,
) -> Result<(), BoxError> {
    let tls = certificate.as_deref().map(tls_stack::acceptor).transpose()?;
    servers::serve(protocol, (layer, tls), agent).await
}

/// Executes the calls that it is ordered.
async fn client(
    kind: (Kind, Protocol),
    payload: usize,
    (servers, certificate): (Vec<SocketAddr>, Option<PathBuf>),
    agent: Address,
) -> Result<(), BoxError> {
    let tls = certificate.as_deref().map(tls_stack::connector).transpose()?;
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

/// Reports that it is ready, then responds to `closed MS TASKS`, `open MS RATE` and `cpu` with a line each.
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

/// Calls for `ms` milliseconds, `number` at a time, or `number` a second in an `open` loop; returns the response.
async fn load_by<C: Call>(call: &C, open: bool, ms: &str, number: &str) -> Result<String, BoxError> {
    let length = Duration::from_millis(ms.parse()?);
    Ok(match open {
        true => said(load::open(call, number.parse()?, length).await),
        false => said(load::closed(call, number.parse()?, length).await),
    })
}

/// The response to an order, in a line.
fn said<T: serde::Serialize>(done: Result<T, String>) -> String {
    done.and_then(|done| serde_json::to_string(&done).map_err(|e| e.to_string())).unwrap_or_else(|why| why)
}

fn orders() -> Lines<BufReader<Stdin>> {
    BufReader::new(tokio::io::stdin()).lines()
}

fn own_cpu_ns() -> u128 {
    meter::own_cpu().as_nanos()
}

/// A POST whose response must be its body.
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

/// A unary gRPC call whose response must be its message.
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
