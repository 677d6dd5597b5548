//! Servers and clients of one region of an application, as in scenarios of `kind: app`.
//!
//! Work takes a worker slot for some time, and no CPU, so that two cores can stand for several regions. A slot counts as
//! a core in the servers' reports.

mod worker_slots;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
};
use clap::Args;
use fairmesh_calls::{Body, Mesh, ServiceHandle};
use fairmesh_model::{
    Location, Protocol, Region, RoundTrips,
    arith::{Generator, hash_text, mix_pair},
};
use fairmesh_server::{Cpu, MeshServer, RegistrationState, serve_http};
use fairmesh_sim::application::{Call, Clients, Operation, Scenario, Service};
use fairmesh_wire::transport::Address;
use futures_util::future::{join_all, try_join_all};
use http_body_util::BodyExt as _;
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{BoxError, network_delay, orders, said};
use crate::te_app::real::{APPLICATION, Clocked, Phase, service_name, socket_of};
use worker_slots::WorkerSlots;

/// Request header with the seed of all random draws of a call, so that all planners get the same calls.
const SEED: &str = "x-seed";

/// Options of the role.
#[derive(Args, Debug)]
pub(crate) struct ApplicationArgs {
    /// Region of these servers and clients.
    #[arg(long)]
    region: String,
}

/// The application as seen by its programs in one region.
struct Application {
    scenario: Scenario,
    region: String,
    /// The called services, by operation.
    called: BTreeMap<String, ServiceHandle>,
}

/// A service of the region.
struct Pool {
    application: Arc<Application>,
    slots: WorkerSlots,
}

/// Serves, and executes `call PHASE SETTLE MEASURE` (milliseconds) until its input ends.
pub(super) async fn run(args: ApplicationArgs, dir: &Path) -> Result<(), BoxError> {
    let scenario: Scenario = serde_json::from_slice(&fs::read(dir.join(APPLICATION))?)?;
    let agent = Address::Unix(dir.join(socket_of(&args.region)));
    let at = position(&scenario, &args.region).ok_or("the application has no such region")?;
    let mesh = Mesh::builder()
        .agent(agent.clone())
        .location(Location::in_region(Region::new(&args.region)?))
        .client_id(format!("app-{}", args.region))
        .local_address(address_of(at))
        .connect()
        .await?;
    let called = scenario.operations.iter().map(|operation| {
        let handle = mesh.service(service_name(&operation.service).as_str())?;
        Ok((operation.name.clone(), handle))
    });
    let called = called.collect::<Result<_, BoxError>>()?;
    let application = Arc::new(Application { scenario, region: args.region, called });
    for service in &application.scenario.services {
        if service.cores.get(&application.region).is_some_and(|cores| *cores > 0.0) {
            serve(&application, service, agent.clone()).await?;
        }
    }
    println!("ready");
    let mut orders = orders();
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        let done = match words[..] {
            ["call", phase, settle, measure] => {
                let times = [settle.parse()?, measure.parse()?].map(Duration::from_millis);
                said(Ok(Arc::clone(&application).call_as_clients(phase.parse()?, times).await))
            }
            _ => format!("unknown order '{order}'"),
        };
        println!("{done}");
    }
    Ok(())
}

fn position(scenario: &Scenario, region: &str) -> Option<u8> {
    let at = scenario.topology.regions.iter().position(|one| one.name == region)?;
    u8::try_from(at).ok()
}

/// The loopback address from which only programs of this region call.
fn address_of(region: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, region.saturating_add(1), 1))
}

/// Starts the servers of a service, behind a relay that delays calls by their distance.
async fn serve(application: &Arc<Application>, service: &Service, agent: Address) -> Result<(), BoxError> {
    let inner = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let public = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let slots = WorkerSlots::of(service.cores.get(&application.region).copied().unwrap_or_default());
    let server = MeshServer::builder(service_name(&service.name))
        .instance(format!("{}-{}", service.name, application.region))
        .address(public.local_addr()?)
        .protocol(Protocol::Http1)
        .cpu(Cpu::of_counter(slots.busy_us(), slots.millicores()))
        .agent(agent)
        .start()
        .await?;
    let registered = |state: &RegistrationState| matches!(state, RegistrationState::Registered(_));
    server.registration_state().wait_for(registered).await?;
    tokio::spawn(network_delay::forward(public, inner.local_addr()?, application.delays()?));
    let pool = Arc::new(Pool { application: Arc::clone(application), slots });
    let routes = Router::new().fallback(answer).with_state(pool);
    tokio::spawn(async move { serve_http(inner, routes, &server).await });
    Ok(())
}

async fn answer(State(pool): State<Arc<Pool>>, request: Request) -> Result<(), StatusCode> {
    let seed = request.headers().get(SEED).and_then(|seed| seed.to_str().ok()?.parse().ok());
    let seed = seed.ok_or(StatusCode::BAD_REQUEST)?;
    let name = request.uri().path().trim_start_matches('/');
    let operation = pool.application.scenario.operations.iter().find(|operation| operation.name == name);
    let operation = operation.ok_or(StatusCode::NOT_FOUND)?;
    let mut random = Generator::new(seed);
    let work = operation.cpu.as_seconds() * exponential(&mut random);
    pool.slots.work(Duration::from_secs_f64(work)).await;
    sleep(Duration::from_secs_f64(operation.wait.as_seconds())).await;
    pool.application.call_for(operation, &mut random).await.map_err(|_| StatusCode::BAD_GATEWAY)
}

impl Application {
    /// One-way delays by the address of the caller.
    fn delays(&self) -> Result<impl Fn(IpAddr) -> Duration + Send + use<>, BoxError> {
        let (_, round_trips): (_, RoundTrips) = self.scenario.topology.validate()?;
        let here = Region::new(&self.region)?;
        let mut delays = BTreeMap::new();
        for (at, region) in (0..).zip(&self.scenario.topology.regions) {
            let round_trip = round_trips.get(&here, &Region::new(&region.name)?);
            delays.insert(address_of(at), round_trip.unwrap_or_default() / 2);
        }
        Ok(move |caller| delays.get(&caller).copied().unwrap_or_default())
    }

    /// Makes the calls of an operation: stages one after the other, the calls of a stage in parallel.
    async fn call_for(&self, operation: &Operation, random: &mut Generator) -> Result<(), String> {
        for stage in &operation.calls {
            let chains = stage
                .iter()
                .flat_map(|call| chains(call, random).into_iter().map(move |seeds| (call, seeds)));
            let chains: Vec<_> = chains.collect();
            let made = chains.into_iter().map(|(call, seeds)| async move {
                for seed in seeds {
                    self.call(&call.to, seed).await?;
                }
                Ok::<_, String>(())
            });
            try_join_all(made).await?;
        }
        Ok(())
    }

    async fn call(&self, operation: &str, seed: u64) -> Result<(), String> {
        let handle = self.called.get(operation).ok_or("no such operation")?;
        let request = http::Request::post(format!("/{operation}")).header(SEED, seed).body(Body::empty());
        let sent = handle.send(request.map_err(|e| e.to_string())?).await.map_err(|e| e.to_string())?;
        let status = sent.status();
        sent.into_body().collect().await.map_err(|e| e.to_string())?;
        if status.is_success() { Ok(()) } else { Err(format!("answered {status}")) }
    }

    /// Calls as all clients of the region do, and returns what those calls took that began after `settle`.
    async fn call_as_clients(self: Arc<Self>, phase: Phase, [settle, measure]: [Duration; 2]) -> Clocked {
        let begin = Instant::now();
        let groups = (0..).zip(&self.scenario.clients).map(|(at, clients)| {
            let seed = mix_pair(hash_text(&self.region), at);
            let rate = phase.rate(clients, &self.region);
            Arc::clone(&self).call_at_rate(clients, (rate, seed), [begin + settle, begin + settle + measure])
        });
        join_all(groups).await.into_iter().fold(Clocked::default(), Clocked::plus)
    }

    /// Makes calls at random times until `to`, and clocks each call that begins after `from`. The number of calls in flight
    /// is bounded by their deadline.
    async fn call_at_rate(
        self: Arc<Self>,
        clients: &Clients,
        (rate, seed): (f64, u64),
        [from, to]: [Instant; 2],
    ) -> Clocked {
        let (mut random, mut due) = (Generator::new(seed), Instant::now());
        let mut calls = JoinSet::new();
        let mut clocked = Clocked::default();
        if rate <= 0.0 {
            return clocked;
        }
        loop {
            due += Duration::from_secs_f64(exponential(&mut random) / rate);
            if due >= to {
                break;
            }
            sleep_until(due).await;
            let (this, seed, operation) = (Arc::clone(&self), random.next(), clients.to.clone());
            calls.spawn(async move { Clocked::call(due, this.call(&operation, seed).await, from) });
            while let Some(Ok(one)) = calls.try_join_next() {
                clocked = clocked.plus(one);
            }
        }
        while let Some(Ok(one)) = calls.join_next().await {
            clocked = clocked.plus(one);
        }
        clocked
    }
}

/// The seeds of calls over an edge, by chain: those of a chain are made one after the other. Their number is the mean,
/// rounded up or down at random.
fn chains(call: &Call, random: &mut Generator) -> Vec<Vec<u64>> {
    let more = usize::from(unit(random) < call.times.fract());
    let seeds: Vec<u64> = (0..call.times as usize + more).map(|_| random.next()).collect();
    if call.parallel { seeds.into_iter().map(|seed| vec![seed]).collect() } else { vec![seeds] }
}

/// A uniform number from 0 up to 1.
fn unit(random: &mut Generator) -> f64 {
    (random.next() >> 11) as f64 / (1_u64 << 53) as f64
}

/// An exponentially distributed number with mean 1.
fn exponential(random: &mut Generator) -> f64 {
    -(1.0 - unit(random)).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_calls_are_chains_of_one_and_their_number_has_given_mean() {
        let call = |times, parallel| Call { to: "a".into(), times, parallel, request: 0.0, response: 0.0 };
        let mut random = Generator::new(1);
        assert_eq!(chains(&call(3.0, false), &mut random).iter().map(Vec::len).collect::<Vec<_>>(), [3]);
        assert_eq!(chains(&call(3.0, true), &mut random).iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1]);
        let made: usize = (0..10_000).map(|_| chains(&call(1.3, true), &mut random).len()).sum();
        assert!((12_700..13_300).contains(&made), "{made}");
    }
}
