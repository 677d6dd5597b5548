//! How the connections of a listener are served.

use fairmesh_calls::ServiceName;

use crate::{forward::boundary::Boundary, listen::proxy_protocol::Version};

/// How a listener serves its connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// What clients speak.
    pub protocol: ServedProtocol,
    /// Whether each connection begins with a PROXY protocol header; a connection without one is refused.
    pub accept_proxy: bool,
    /// Whether TLS is terminated, after that header.
    pub tls: bool,
    /// Whether CONNECT is allowed without a route that names it.
    pub connect: bool,
    /// The border of the mesh, if clients are outside it.
    pub boundary: Option<Boundary>,
}

/// The protocol of a listener's connections.
#[derive(Clone, Debug)]
pub enum ServedProtocol {
    /// HTTP/1.1 and HTTP/2.
    Http {
        /// The service of all requests; without one, the host of each request names it.
        service: Option<ServiceName>,
    },
    /// Bytes.
    Tcp {
        /// The service of all connections.
        service: ServiceName,
        /// The PROXY protocol header that the server gets on each connection.
        send_proxy: Option<Version>,
    },
}
