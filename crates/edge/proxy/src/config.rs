use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use fairmesh_calls::ServiceName;
use fairmesh_edge::{
    lifecycle::kept_options::KeptOptions,
    limits::Limits,
    observe::{access_log::AccessLogConfig, endpoint_metrics::EndpointMetrics, spans::TraceConfig},
    tls::certificate_files::TlsFiles,
};
use fairmesh_identity::RemoteKeys;

use crate::{
    inbound::{config::InboundConfig, server::ServedEndpoint},
    listeners::listener_config::ListenerConfig,
};

/// Configuration of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Listeners for clients. None for a proxy that only serves in front of a program.
    pub listen: Vec<ListenerConfig>,
    /// Certificate of listeners with TLS; required if there are any.
    pub tls: Option<TlsFiles>,
    /// Key servers with the certificate's key. Preferred to a key in a file.
    pub key_servers: Option<Arc<RemoteKeys>>,
    /// Address of the admin pages; `/` lists them.
    pub admin: Option<SocketAddr>,
    /// Unix socket for hot upgrades. This proxy takes over from the proxy running there, and later hands over
    /// to its successor.
    pub handover: Option<PathBuf>,
    /// Number of threads that serve connections, each with an event loop. With 0, or with 1 on a
    /// single-threaded runtime, connections are served on the runtime that runs the proxy. The mesh must be
    /// [built for the same number](fairmesh_calls::forwarding::with_event_loops).
    pub cores: usize,
    /// Limits of connections, requests and times.
    pub limits: Limits,
    /// Configuration of the access log.
    pub access_log: AccessLogConfig,
    /// Export of requests as spans; `None` exports none.
    pub traces: Option<TraceConfig>,
    /// Metrics by endpoint, if enabled. They must be registered as an observer of the mesh through which the proxy
    /// calls.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// The service whose programs call through the proxy; metrics name it as the caller. `None` for a proxy that any
    /// programs use.
    pub service: Option<ServiceName>,
    /// DNS zone whose names also stand for services, such as `mesh` for `cart.shop.mesh`.
    pub zone: Option<String>,
    /// Further options to be shown on the page `/config`. Must not contain secrets.
    pub options: BTreeMap<&'static str, String>,
    /// The endpoint that the proxy serves for a local program. The admin pages show it, and its requests are
    /// logged and traced.
    pub inbound: Option<ServedEndpoint>,
}

impl ProxyConfig {
    /// The listeners and the `inbound` endpoint that a successor must have too.
    pub(crate) fn kept_options(&self, inbound: Option<&InboundConfig>) -> KeptOptions {
        let listen = self.listen.iter().map(|listener| ("--listen", listener.address.to_string()));
        let admin = self.admin.map(|address| ("--admin", address.to_string()));
        let inbound = inbound.map(|InboundConfig { inbound, instance, .. }| {
            let instance = instance.as_ref().map(|id| format!(" --inbound-instance {id}"));
            let endpoint = format!("{}@{}", inbound.service, inbound.address);
            ("--inbound", endpoint + instance.as_deref().unwrap_or_default())
        });
        KeptOptions::new("proxy", listen.chain(admin).chain(inbound))
    }
}
