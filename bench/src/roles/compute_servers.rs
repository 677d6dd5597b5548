//! Servers that compute their responses, and callers that verify them.

use std::{
    fs,
    hint::black_box,
    net::Ipv4Addr,
    path::PathBuf,
    process,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, http::StatusCode, routing::post};
use clap::Args;
use fairmesh_calls::Mesh;
use fairmesh_model::{Location, Protocol, Region, arith::mix64};
use fairmesh_server::{MeshServer, RegistrationState, serve_http};
use fairmesh_wire::transport::Address;
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;

use super::{BoxError, execute_orders, orders};
use crate::load_generator::Call;

/// Wait of a request that uses no CPU, as for a database.
const WAIT: Duration = Duration::from_millis(3);
/// Number of different requests; a power of two.
const TASKS: u64 = 64;

/// Options of a worker.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// Service of the worker's endpoint.
    #[arg(long)]
    service: String,
    /// Instance name of the worker.
    #[arg(long)]
    name: String,
    /// Cgroups to join.
    #[arg(long, value_delimiter = ',')]
    groups: Vec<PathBuf>,
}

/// Options of callers of workers.
#[derive(Args, Debug)]
pub(crate) struct CallersArgs {
    /// Service to call.
    #[arg(long)]
    service: String,
    /// Number of clients.
    #[arg(long)]
    clients: u32,
    /// Mean number of rounds of work per request.
    #[arg(long)]
    rounds: u32,
    /// Cgroups to join.
    #[arg(long, value_delimiter = ',')]
    groups: Vec<PathBuf>,
}

/// The work: rounds of arithmetic, each depending on the previous one. Measured in rounds rather than time, because a
/// server stopped after using up its quota must not make progress meanwhile.
pub(crate) fn compute(seed: u64, rounds: u32) -> u64 {
    (0..rounds).fold(seed, |word, _| black_box(mix64(word)))
}

/// Joins its cgroups, and serves until its input ends.
pub(super) async fn serve(args: WorkerArgs, agent: Address) -> Result<(), BoxError> {
    join(&args.groups)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let server = MeshServer::builder(args.service)
        .instance(args.name)
        .address(listener.local_addr()?)
        .protocol(Protocol::Http1)
        .agent(agent)
        .start()
        .await?;
    server
        .registration_state()
        .wait_for(|standing| matches!(standing, RegistrationState::Registered(_)))
        .await?;
    println!("ready");
    let routes = Router::new().route("/work", post(answer));
    let mut orders = orders();
    tokio::select! {
        ended = serve_http(listener, routes, &server) => Ok(ended?),
        _ = async { while let Ok(Some(_)) = orders.next_line().await {} } => Ok(()),
    }
}

/// Joins cgroups before the measurement: CPU time used elsewhere does not count there.
fn join(groups: &[PathBuf]) -> std::io::Result<()> {
    groups.iter().try_for_each(|group| fs::write(group.join("cgroup.procs"), process::id().to_string()))
}

/// Works and waits. The request is a seed and a number of rounds, the response is the result.
async fn answer(request: Bytes) -> Result<Vec<u8>, StatusCode> {
    let (seed, rounds) = request.split_first_chunk().ok_or(StatusCode::BAD_REQUEST)?;
    let rounds = rounds.try_into().map_err(|_| StatusCode::BAD_REQUEST)?;
    let result = compute(u64::from_le_bytes(*seed), u32::from_le_bytes(rounds));
    tokio::time::sleep(WAIT).await;
    Ok(result.to_le_bytes().into())
}

/// Executes call commands. Expected responses are computed locally.
pub(super) async fn call(args: CallersArgs, agent: Address) -> Result<(), BoxError> {
    join(&args.groups)?;
    let mut clients = Vec::new();
    for client in 0..args.clients {
        let region = Location::in_region(Region::new("bench")?);
        let mesh =
            Mesh::builder().agent(agent.clone()).location(region).client_id(format!("caller-{client}"));
        clients.push(mesh.connect().await?.service(&args.service)?);
    }
    let tasks = (0..TASKS).map(|number| Task::new(number, args.rounds)).collect();
    execute_orders(WorkCall { clients: clients.into(), tasks, next: Arc::default() }).await
}

struct Task {
    request: Bytes,
    answer: [u8; 8],
}

impl Task {
    /// An entry of an even sample of an exponential distribution: most requests are small, and a few are five times the
    /// mean.
    fn new(number: u64, mean: u32) -> Self {
        let share = (number as f64 + 0.5) / TASKS as f64;
        let rounds = (-(1.0 - share).ln() * f64::from(mean)) as u32;
        let mut request = number.to_le_bytes().to_vec();
        request.extend(rounds.to_le_bytes());
        Self { request: request.into(), answer: compute(number, rounds).to_le_bytes() }
    }
}

/// Calls that use several clients in turn, each with a random one of the tasks.
#[derive(Clone)]
struct WorkCall<S> {
    clients: Arc<[S]>,
    tasks: Arc<[Task]>,
    next: Arc<AtomicU64>,
}

impl<S, B> Call for WorkCall<S>
where
    S: tower::Service<http::Request<Full<Bytes>>, Response = http::Response<B>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Error: std::fmt::Display + Send,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    async fn call(&self) -> Result<(), String> {
        let number = self.next.fetch_add(1, Relaxed);
        // Proof: both indices are remainders of division by the length.
        let mut client = self.clients[number as usize % self.clients.len()].clone();
        let task = &self.tasks[mix64(number) as usize % self.tasks.len()];
        let request =
            http::Request::post("/work").body(Full::new(task.request.clone())).map_err(|e| e.to_string())?;
        let response = client.call(request).await.map_err(|e| e.to_string())?;
        if !response.status().is_success() {
            return Err(format!("answered {}", response.status()));
        }
        let body = response.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
        super::check(body[..] == task.answer)
    }
}
