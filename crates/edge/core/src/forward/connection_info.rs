//! The connection on which a request arrives.

use std::{net::SocketAddr, sync::Arc};

use fairmesh_calls::ServiceName;

use crate::{listen::connection_permit::ConnectionPermit, services::host_cache::HostCache};

/// A client connection, as its requests need it.
#[derive(Debug)]
pub struct ConnectionInfo {
    pub(crate) caller: SocketAddr,
    /// The service of the listener, if it has one.
    pub(crate) service: Option<ServiceName>,
    /// Held by everything that outlives a request, such as tunnels.
    pub(crate) permit: Arc<ConnectionPermit>,
    /// Whether the client uses TLS.
    pub(crate) over_tls: bool,
    /// Whether CONNECT is allowed without a route that names it.
    pub(crate) allows_connect: bool,
    pub(crate) host_cache: HostCache,
}

impl ConnectionInfo {
    /// A client at `caller`, and the service of its listener, if that has one.
    pub fn new(caller: SocketAddr, service: Option<ServiceName>, permit: Arc<ConnectionPermit>) -> Self {
        let host_cache = HostCache::default();
        Self { caller, service, permit, over_tls: false, allows_connect: false, host_cache }
    }

    /// Sets [`over_tls`](Self::over_tls).
    pub(crate) fn over_tls(self, over_tls: bool) -> Self {
        Self { over_tls, ..self }
    }

    /// Allows CONNECT without a route that names it.
    pub fn allow_connect(self, allows_connect: bool) -> Self {
        Self { allows_connect, ..self }
    }
}
