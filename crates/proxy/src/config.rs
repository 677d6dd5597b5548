use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc};

use fairmesh_server::Server;

use crate::{
    limits::Limits,
    listen::{listener_config::ListenerConfig, tls::files::TlsFiles},
    observe::{access_log::AccessLogConfig, endpoint_metrics::EndpointMetrics, spans::TraceConfig},
};

/// What a proxy does.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where programs connect; at least one.
    pub listen: Vec<ListenerConfig>,
    /// What listeners with TLS show; needed where there is one.
    pub tls: Option<TlsFiles>,
    /// Where the pages for operators are; `/` lists them.
    pub admin: Option<SocketAddr>,
    /// The Unix socket at which it takes over from a proxy that runs, and is succeeded in its turn.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections, each with an event loop of its own; 0 to serve on the runtime that runs the proxy, as 1 does where
    /// that has a single thread. The mesh has to be [built for as many](fairmesh_client::MeshBuilder::cores).
    pub cores: usize,
    /// Bounds.
    pub limits: Limits,
    /// What is written of each request.
    pub access_log: AccessLogConfig,
    /// Which requests are told as spans, and whom.
    pub traces: Option<TraceConfig>,
    /// What is counted by endpoint; it observes the mesh that the proxy calls by.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// What else it was told, for the page `/config`; nothing secret.
    pub options: BTreeMap<&'static str, String>,
    /// The endpoint that it serves for a program, to be shown.
    pub inbound: Option<Server>,
}
