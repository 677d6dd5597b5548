//! A DNS server beside a proxy: `cart.shop.mesh` is the address at which programs reach the service shop/cart.
//!
//! It answers for one zone, from the declarations of services, with the virtual address of a service or an address that the proxy captures.
//! It asks no other server, so that nothing from outside can be cached in it: the machine's resolver sends it the queries for the zone.
//! hickory reads and writes messages (RFC 1035). Its server was rejected: the zone has no records but one address a name, and the server
//! brings a cache, zone files and transports that are not needed here.

mod admin;
mod answers;
mod directory;
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod server;
mod zone;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use fairmesh_listen::{Listeners, table::DNS_ADMIN};
use fairmesh_pages::AdminListener;
use fairmesh_wire::transport::{Address, Transport};
use tokio::net::{TcpListener, UdpSocket};
pub use zone::{InvalidZone, Zone};

use crate::{admin::Pages, answers::Answers, directory::Directory, server::Server};

/// The configuration of a DNS server.
#[derive(Debug)]
pub struct DnsConfig {
    /// Addresses for queries, each over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// The zone.
    pub zone: Zone,
    /// The addresses of services without a virtual address: at most one of each family counts.
    pub addresses: Vec<IpAddr>,
    /// The agent or control plane that is followed.
    pub upstream: Address,
    /// How it is followed.
    pub transport: Transport,
    /// The address of the admin pages.
    pub admin: Option<SocketAddr>,
}

/// Why a DNS server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen, or stop the process that uses it"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The address of the admin pages cannot be bound.
    #[error("{0}; choose another with --admin")]
    Admin(#[from] fairmesh_pages::BindError),
}

/// Answers queries until `shutdown` completes. A query for a tenant whose services are not known waits for them, two seconds at most.
///
/// # Errors
/// An address cannot be bound.
pub async fn run(config: DnsConfig, shutdown: impl Future<Output = ()>) -> Result<(), DnsError> {
    let DnsConfig { listen, zone, addresses, upstream, transport, admin } = config;
    let mut sockets = Vec::new();
    for address in listen {
        let bound = async { Ok((UdpSocket::bind(address).await?, TcpListener::bind(address).await?)) };
        sockets.push(bound.await.map_err(|source| DnsError::Listen { address, source })?);
        tracing::info!(%address, zone = %zone, "listening");
    }
    let listeners = Listeners::default();
    let admin = AdminListener::bind_optional(admin, &listeners, &DNS_ADMIN).await?;
    let directory = Directory::follow(upstream, transport);
    let answers = Arc::new(Answers::new(zone, addresses, directory));
    let pages = Pages { answers: Arc::clone(&answers), listeners };
    let admin = admin.map(|listener| listener.start(fairmesh_pages::router(Arc::new(pages))));
    let server = Server::start(sockets, &answers);
    shutdown.await;
    server.stop().await;
    if let Some(admin) = admin {
        admin.stop().await;
    }
    Ok(())
}
