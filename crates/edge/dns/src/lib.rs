//! A DNS server beside a proxy: `cart.shop.mesh` resolves to the address at which programs reach the service
//! shop/cart.
//!
//! The server answers for one zone, from the declarations of services, with the virtual address of a service
//! or an address that the proxy captures. It queries no other server, so nothing from outside can be cached
//! in it; the machine's resolver forwards queries for the zone to it. hickory reads and writes messages (RFC
//! 1035). hickory's server was rejected: the zone has only one address per name, and that server brings a
//! cache, zone files and transports that are not needed here.

mod admin_pages;
mod answers;
#[doc(hidden)]
pub mod fuzzing;
mod metrics;
mod server;
mod service_directory;
mod zone;

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use fairmesh_listen::{Listeners, listener_table::DNS_ADMIN};
use fairmesh_pages::AdminListener;
use fairmesh_wire::transport::{Address, Transport};
use tokio::net::{TcpListener, UdpSocket};
pub use zone::{InvalidZone, Zone};

use crate::{admin_pages::Pages, answers::Answers, server::Server, service_directory::Directory};

/// Configuration of the DNS server.
#[derive(Debug)]
pub struct DnsConfig {
    /// Addresses on which the server listens, each over UDP and TCP.
    pub listen: Vec<SocketAddr>,
    /// The zone that the server answers for.
    pub zone: Zone,
    /// The addresses for services without a virtual address: the first of each family is used.
    pub addresses: Vec<IpAddr>,
    /// The agent or control planes whose records the server follows: the first that responds.
    pub upstreams: Vec<Address>,
    /// Transport for connections to the upstreams.
    pub transport: Transport,
    /// Address of the admin pages; `None` serves none.
    pub admin: Option<SocketAddr>,
}

/// Reason why a DNS server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {source}; choose another with --listen, or stop the process that uses it"
    )]
    Listen {
        /// The address that cannot be bound.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The address of the admin pages cannot be bound.
    #[error("{0}; choose another with --admin")]
    Admin(#[from] fairmesh_pages::BindError),
}

/// Answers queries until `shutdown` completes. A query for a tenant whose services are not known yet waits up
/// to two seconds for them.
///
/// # Errors
/// An address cannot be bound.
pub async fn run(config: DnsConfig, shutdown: impl Future<Output = ()>) -> Result<(), DnsError> {
    let DnsConfig { listen, zone, addresses, upstreams, transport, admin } = config;
    let mut sockets = Vec::new();
    for address in listen {
        let bound = async { Ok((UdpSocket::bind(address).await?, TcpListener::bind(address).await?)) };
        sockets.push(bound.await.map_err(|source| DnsError::Listen { address, source })?);
        tracing::info!(%address, zone = %zone, "listening");
    }
    let listeners = Listeners::default();
    let admin = AdminListener::bind_optional(admin, &listeners, &DNS_ADMIN).await?;
    let directory = Directory::follow(upstreams, transport);
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
