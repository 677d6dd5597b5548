//! The mesh and the servers.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener as StdListener},
    path::Path,
};

use axum::{Router, body::Bytes, routing::post};
use fairmesh_agent::AgentConfig;
use fairmesh_control::ControlConfig;
use fairmesh_model::{Location, Region};
use fairmesh_server::{MeshServer, RegistrationState, serve_http};
use fairmesh_wire::transport::Address;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::{Request, Response, Status};

use super::{
    BoxError, Layer, Protocol, orders, own_cpu_ns,
    v1::{
        Payload,
        echo_server::{Echo, EchoServer},
    },
};

/// Number of servers of one service.
const COUNT: usize = 10;

/// Runs a control plane and an agent until its input ends, and prints the address of the control plane.
pub(super) async fn mesh(dir: &Path, agent: Address) -> Result<(), BoxError> {
    let grpc = free_port()?;
    let control = ControlConfig {
        transport: Default::default(),
        trust_domain: Default::default(),
        data_dir: dir.join("control"),
        etcd: None,
        oidc: None,
        grpc: vec![Address::Tcp(grpc.to_string())],
        http: Some(free_port()?),
        traces: None,
        http_names: Vec::new(),
        http_certificate: None,
        sources: Vec::new(),
        proxies: Vec::new(),
        shadow_controllers: Vec::new(),
        gateway_launcher: None,
    };
    let agent = AgentConfig {
        transport: Default::default(),
        upstreams: control.grpc.clone(),
        listen: agent,
        state_dir: dir.join("agent"),
        location: Location::in_region(Region::new("bench")?),
        join_token: None,
        workload_api: None,
        local_address: None,
        name: "bench".into(),
        metrics: None,
        probes: None,
    };
    let control = tokio::spawn(fairmesh_control::run(control, std::future::pending()));
    let agent = tokio::spawn(fairmesh_agent::run(agent, std::future::pending()));
    println!("{grpc}");
    tokio::select! {
        ended = control => Err(format!("the control plane ended: {:?}", ended?).into()),
        ended = agent => Err(format!("the agent ended: {:?}", ended?).into()),
        _ = async { while let Ok(Some(_)) = orders().next_line().await {} } => Ok(()),
    }
}

/// A free loopback address.
pub(crate) fn free_port() -> std::io::Result<SocketAddr> {
    StdListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Starts ten servers, prints their addresses, and then its CPU time for each line of its input.
pub(super) async fn serve(
    protocol: Protocol,
    (layer, tls): (Layer, Option<TlsAcceptor>),
    agent: Address,
) -> Result<(), BoxError> {
    let mut addresses = Vec::new();
    for number in 0..COUNT {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        addresses.push(listener.local_addr()?.to_string());
        match layer {
            Layer::On => {
                let server = register(&listener, protocol, number, agent.clone()).await?;
                tokio::spawn(async move { serve_http(listener, routes(protocol), &server).await });
            }
            Layer::Off => {
                tokio::spawn(serve_plain(listener, routes(protocol), tls.clone()));
            }
        }
    }
    println!("{}", addresses.join(","));
    let mut orders = orders();
    while orders.next_line().await?.is_some() {
        println!("{}", own_cpu_ns());
    }
    Ok(())
}

/// Registers a server, and returns once callers can find it.
async fn register(
    listener: &TcpListener,
    protocol: Protocol,
    number: usize,
    agent: Address,
) -> Result<MeshServer, BoxError> {
    let (service, speaks) = match protocol {
        Protocol::Http1 => ("bench/http1", fairmesh_model::Protocol::Http1),
        Protocol::Http2 => ("bench/http2", fairmesh_model::Protocol::Http2),
        Protocol::Grpc => ("bench/grpc", fairmesh_model::Protocol::Grpc),
    };
    let server = MeshServer::builder(service)
        .instance(format!("echo-{number}"))
        .address(listener.local_addr()?)
        .protocol(speaks)
        .agent(agent)
        .start()
        .await?;
    server
        .registration_state()
        .wait_for(|standing| matches!(standing, RegistrationState::Registered(_)))
        .await?;
    Ok(server)
}

/// The same server without any part of Fairmesh.
pub(super) async fn serve_plain(
    listener: TcpListener,
    routes: Router,
    tls: Option<TlsAcceptor>,
) -> Result<(), BoxError> {
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let service = TowerToHyperService::new(routes.clone());
        let tls = tls.clone();
        tokio::spawn(async move {
            let builder = auto::Builder::new(TokioExecutor::new());
            // A client that disconnects ends its connection with an error, which the benchmark sees on its side.
            let Some(tls) = tls else {
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(socket), service).await;
                return;
            };
            if let Ok(stream) = tls.accept(socket).await {
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            }
        });
    }
}

pub(super) fn routes(protocol: Protocol) -> Router {
    match protocol {
        Protocol::Http1 | Protocol::Http2 => Router::new().route("/echo", post(async |body: Bytes| body)),
        Protocol::Grpc => tonic::service::Routes::new(EchoServer::new(Echoing)).into_axum_router(),
    }
}

struct Echoing;

#[tonic::async_trait]
impl Echo for Echoing {
    async fn echo(&self, request: Request<Payload>) -> Result<Response<Payload>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}
