use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use fairmesh_calls::ServiceName;
use fairmesh_edge::{
    limits::Limits,
    observe::{access_log::AccessLogConfig, endpoint_metrics::EndpointMetrics, spans::TraceConfig},
    tls::files::TlsFiles,
};
use fairmesh_identity::RemoteKey;

use crate::{inbound::server::ServedEndpoint, listeners::listener_config::ListenerConfig};

/// Configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Listeners for clients; none for a proxy that only serves in front of a program.
    pub listen: Vec<ListenerConfig>,
    /// Certificate of listeners with TLS; required if there is one.
    pub tls: Option<TlsFiles>,
    /// The certificate's key on a key server, preferred to the key in a file.
    pub key_server: Option<Arc<RemoteKey>>,
    /// Address of the admin pages; `/` lists them.
    pub admin: Option<SocketAddr>,
    /// Unix socket for hot upgrades: this proxy takes over from the proxy running there, and later hands over to its
    /// successor.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections, each with an event loop. With 0, connections are served on the runtime that runs
    /// the proxy, as with 1 on a single-threaded runtime. The mesh must be [built for the same
    /// number](fairmesh_calls::forwarding::with_event_loops).
    pub cores: usize,
    /// Limits.
    pub limits: Limits,
    /// Access log.
    pub access_log: AccessLogConfig,
    /// Export of requests as spans; `None` exports none.
    pub traces: Option<TraceConfig>,
    /// Metrics by endpoint; must be an observer of the mesh that the proxy calls with.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// The service whose programs call through the proxy, as the caller in metrics; `None` for a proxy of any programs.
    pub service: Option<ServiceName>,
    /// The DNS zone beneath which hosts name services too, such as `mesh` for `cart.shop.mesh`.
    pub zone: Option<String>,
    /// Further options for the page `/config`; must not contain secrets.
    pub options: BTreeMap<&'static str, String>,
    /// The endpoint that the proxy serves for a local program: for the admin pages, and to log and trace its requests.
    pub inbound: Option<ServedEndpoint>,
}
