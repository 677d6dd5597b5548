//! `fairmesh demo serve`: one server of the shop, written with the library.

mod cart;
mod shop;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use clap::{Args, ValueEnum};
use fairmesh_client::Mesh;
use fairmesh_model::{Location, Protocol, Region, ServiceName, SpiffePath};
use fairmesh_server::{MeshServer, serve_http};
use fairmesh_wire::transport::Address;
use tokio::net::TcpListener;

use super::{delay_relay, error::DemoError, tls_records::RelayCounts, topology::DemoRegion};

/// Response header with the region of the server.
pub(super) const REGION_HEADER: &str = "x-shop-region";

/// The server to run, and its addresses.
#[derive(Args, Debug)]
pub(super) struct ServeArgs {
    service: Kind,
    #[arg(long)]
    instance: String,
    #[arg(long)]
    region: String,
    #[arg(long)]
    agent: Address,
    /// File for the counts of the relay in front of the server.
    #[arg(long)]
    relay_counts: PathBuf,
}

/// The services of the shop that use the library.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Catalog,
    Cart,
    Checkout,
    Payment,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Catalog => "shop/catalog",
            Self::Cart => "shop/cart",
            Self::Checkout => "shop/checkout",
            Self::Payment => "shop/payment",
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            Self::Catalog | Self::Payment => Protocol::Http1,
            Self::Cart => Protocol::Grpc,
            Self::Checkout => Protocol::Http2,
        }
    }
}

/// Serves until SIGTERM and until its callers have left.
pub(super) async fn serve(args: ServeArgs) -> Result<(), DemoError> {
    tracing_subscriber::fmt().with_ansi(false).init();
    let place = DemoRegion::named(&args.region)
        .ok_or_else(|| DemoError::Fleet(format!("there is no region {} in the shop", args.region)))?;
    let inner = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let public = delayed_listener(place, inner.local_addr()?, args.relay_counts).await?;
    let service = ServiceName::new(args.service.name()).map_err(|e| DemoError::Fleet(e.to_string()))?;
    let identity = SpiffePath::Service(service);
    let mesh = mesh(args.agent.clone(), place, &args.instance, Some(identity)).await?;

    let mut server = MeshServer::builder(args.service.name())
        .instance(&args.instance)
        .address(public)
        .protocol(args.service.protocol())
        .agent(args.agent);
    let carts = Arc::new(cart::Carts::new(mesh.clone(), place));
    if matches!(args.service, Kind::Cart) {
        server = cart::take_over_shards(server, carts.clone());
    }
    let server = server.start().await.map_err(|e| DemoError::Fleet(e.to_string()))?;
    let routes = match args.service {
        Kind::Catalog => {
            let requests = Arc::default();
            tokio::spawn(shop::report_rate(server.clone(), Arc::clone(&requests)));
            shop::catalog(place, requests)
        }
        Kind::Payment => shop::payment(place),
        Kind::Checkout => shop::checkout(place, &mesh)?,
        Kind::Cart => cart::routes(carts),
    };
    let served = serve_http(inner, routes, &server).await;
    mesh.close().await;
    Ok(served?)
}

/// The library as configured for programs of a region.
pub(super) async fn mesh(
    agent: Address,
    place: DemoRegion,
    client: &str,
    identity: Option<SpiffePath>,
) -> Result<Mesh, DemoError> {
    let region = Region::new(place.name).map_err(|e| DemoError::Fleet(e.to_string()))?;
    let mut mesh = Mesh::builder();
    if let Some(identity) = identity {
        mesh = mesh.identity(identity);
    }
    let mesh = mesh
        .agent(agent)
        .client_id(client)
        .location(Location::in_region(region))
        .local_address(place.address());
    mesh.connect().await.map_err(|e| DemoError::Fleet(e.to_string()))
}

/// Opens the address for callers, delayed for each by its distance.
async fn delayed_listener(
    place: DemoRegion,
    target: SocketAddr,
    file: PathBuf,
) -> Result<SocketAddr, DemoError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let counts = Arc::<RelayCounts>::default();
    let delay = Arc::new(move |caller| place.one_way_from(caller));
    tokio::spawn(delay_relay::serve(listener, target, delay, Arc::clone(&counts)));
    tokio::spawn(async move { counts.write_to(&file).await });
    Ok(address)
}
