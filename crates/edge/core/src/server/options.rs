//! How the connections of a listener are served.

use fairmesh_calls::ServiceName;

use crate::{forward::mesh_boundary::Boundary, listen::proxy_protocol::Version};

/// How a listener serves its connections.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The protocol that clients speak.
    pub protocol: ServedProtocol,
    /// Whether each connection begins with a PROXY protocol header. Connections without one are refused.
    pub accept_proxy: bool,
    /// Whether TLS is terminated, after the PROXY protocol header.
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
        /// The service of all requests. `None`: the host of each request names its service.
        service: Option<ServiceName>,
    },
    /// A byte stream over TCP.
    Tcp {
        /// The service of all connections.
        service: ServiceName,
        /// Version of the PROXY protocol header that is sent to the server on each connection.
        send_proxy: Option<Version>,
    },
}
