//! Programs that call a service of another region once each, and the servers of that service.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use axum::{Router, body::Bytes as Text, extract::DefaultBodyLimit, routing::post};
use bytes::Bytes;
use clap::Args;
use fairmesh_calls::{Mesh, ServiceHandle};
use fairmesh_model::{Location, Protocol, Region};
use fairmesh_server::{MeshServer, RegistrationState, serve_http};
use fairmesh_wire::transport::Address;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{BoxError, HttpCall, check, orders, payload_of, said};
use crate::{
    cross_region_calls::{BODIES, Kept, Round},
    load_generator::Call as _,
};

/// The service, and its host name for programs without the library.
const SERVICE: &str = "bench/far";
const HOST: &str = "far.bench";
/// Number of servers.
const SERVERS: usize = 4;
/// Maximum time for the proxy to start.
const START: Duration = Duration::from_secs(20);

/// Options of callers.
#[derive(Args, Debug)]
pub(crate) struct RareCallsArgs {
    /// Address of the shared proxy.
    #[arg(long)]
    proxy: SocketAddr,
    /// Address of the proxy's admin pages.
    #[arg(long)]
    admin: SocketAddr,
}

/// Serves until its input ends.
pub(super) async fn serve(address: IpAddr, agent: Address) -> Result<(), BoxError> {
    for number in 0..SERVERS {
        let listener = TcpListener::bind((address, 0)).await?;
        let server = MeshServer::builder(SERVICE)
            .instance(format!("far-{number}"))
            .address(listener.local_addr()?)
            .protocol(Protocol::Http2)
            .location(Location::in_region(Region::new("far")?))
            .agent(agent.clone())
            .start()
            .await?;
        server
            .registration_state()
            .wait_for(|standing| matches!(standing, RegistrationState::Registered(_)))
            .await?;
        let routes = Router::new().route("/echo", post(async |body: Text| body));
        let routes = routes.layer(DefaultBodyLimit::disable());
        tokio::spawn(async move { serve_http(listener, routes, &server).await });
    }
    println!("ready");
    let mut orders = orders();
    while orders.next_line().await?.is_some() {}
    Ok(())
}

/// Executes commands: `round PROGRAMS MICROSECONDS` (the interval between calls), and `kept`.
pub(super) async fn call(args: RareCallsArgs, agent: Address) -> Result<(), BoxError> {
    let until = Instant::now() + START;
    while let Err(why) = shared(args.proxy, BODIES[0]).await {
        if Instant::now() > until {
            return Err(format!("the proxy does not answer: {why}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    println!("ready");
    let mut orders = orders();
    let mut rounds = 0;
    while let Some(order) = orders.next_line().await? {
        let words: Vec<&str> = order.split(' ').collect();
        println!(
            "{}",
            match words[..] {
                ["round", programs, apart] => {
                    rounds += 1;
                    let apart = Duration::from_micros(apart.parse()?);
                    said(round((rounds, programs.parse()?), apart, args.proxy, &agent).await)
                }
                ["kept"] => said(kept(args.admin).await),
                _ => format!("unknown order '{order}'"),
            }
        );
    }
    Ok(())
}

/// Each program calls once. The sides alternate, and which one is first changes.
async fn round(
    (round, programs): (u32, usize),
    apart: Duration,
    proxy: SocketAddr,
    agent: &Address,
) -> Result<Round, String> {
    let mut own = Vec::with_capacity(programs);
    for program in 0..programs {
        own.push(learnt(agent.clone(), format!("{round}-{program}")).await.map_err(|e| e.to_string())?);
    }
    let mut calls: JoinSet<Result<(bool, usize, u64), String>> = JoinSet::new();
    let mut due = Instant::now();
    for (program, (mesh, handle)) in own.into_iter().enumerate() {
        let size = BODIES[program % BODIES.len()];
        let mut mine = Some((mesh, HttpCall::new(handle, size)));
        for is_own in [program % 2 == 0, program % 2 == 1] {
            sleep_until(due).await;
            due += apart;
            let program = mine.take_if(|_| is_own);
            calls.spawn(async move {
                let began = Instant::now();
                match program {
                    // The mesh handle is dropped with its program.
                    Some((_mesh, call)) => call.call().await?,
                    None => shared(proxy, size).await?,
                }
                Ok((is_own, size, u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)))
            });
        }
    }
    let mut seen = Round::default();
    while let Some(done) = calls.join_next().await {
        let (is_own, size, time) = done.map_err(|e| e.to_string())??;
        let side = if is_own { &mut seen.own } else { &mut seen.shared };
        side.push((size, time));
    }
    Ok(seen)
}

/// A program with resolved endpoints that has made no call yet.
async fn learnt(agent: Address, name: String) -> Result<(Mesh, ServiceHandle), BoxError> {
    let region = Location::in_region(Region::new("bench")?);
    let mesh = Mesh::builder().agent(agent).location(region).client_id(name).connect().await?;
    let handle = mesh.service(SERVICE)?;
    handle.resolved().await;
    Ok((mesh, handle))
}

/// A call of a program without the library, which connects to the proxy for it.
async fn shared(proxy: SocketAddr, size: usize) -> Result<(), String> {
    let payload = payload_of(size);
    let request = Request::post("/echo").header("host", HOST).body(Full::new(payload.clone()));
    let answer = ask(proxy, request.map_err(|e| e.to_string())?).await?;
    check(answer == payload)
}

async fn ask(to: SocketAddr, request: Request<Full<Bytes>>) -> Result<Bytes, String> {
    let asked = async {
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let answer = sender.send_request(request).await?;
        if !answer.status().is_success() {
            return Err(format!("answered {}", answer.status()).into());
        }
        Ok(answer.into_body().collect().await?.to_bytes())
    };
    asked.await.map_err(|e: BoxError| e.to_string())
}

/// How often the proxy reused a connection.
async fn kept(admin: SocketAddr) -> Result<Kept, String> {
    let request = Request::get("/metrics").header("host", "proxy").body(Full::default());
    let page = ask(admin, request.map_err(|e| e.to_string())?).await?;
    let page = String::from_utf8_lossy(&page).into_owned();
    let value = |name: &str| {
        // The metric may have no labels or a service label.
        let of = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let value =
                rest.strip_prefix(' ').or_else(|| Some(rest.strip_prefix('{')?.rsplit_once("} ")?.1))?;
            value.parse::<u64>().ok()
        };
        let values: Vec<_> = page.lines().filter_map(of).collect();
        (!values.is_empty())
            .then(|| values.iter().sum::<u64>() as f64)
            .ok_or_else(|| format!("the proxy tells no {name}"))
    };
    Ok(Kept {
        tries: value("fairmesh_proxy_attempts_total")?,
        reused: value("fairmesh_proxy_upstream_connection_reuses_total")?,
    })
}
