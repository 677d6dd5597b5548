use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use fairmesh_server::Server;

use crate::{AccessLog, EndpointMetrics, Listen, TlsFiles, Traces};

/// What a proxy does.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where programs connect; at least one.
    pub listen: Vec<Listen>,
    /// What listeners with TLS show; needed where there is one.
    pub tls: Option<TlsFiles>,
    /// Where the pages for operators are; `/` lists them.
    pub admin: Option<SocketAddr>,
    /// The Unix socket at which it takes over from a proxy that runs, and is succeeded in its turn.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections, each with an event loop of its own; 0 to serve on the runtime that runs the proxy, as 1 does where
    /// that has a single thread. The mesh has to be [built for as many](fairmesh_client::MeshBuilder::event_loops).
    pub cores: usize,
    /// Bounds.
    pub limits: Limits,
    /// What is written of each request.
    pub access_log: AccessLog,
    /// Which requests are told as spans, and whom.
    pub traces: Option<Traces>,
    /// What is counted by endpoint; it observes the mesh that the proxy calls by.
    pub endpoints: Option<Arc<EndpointMetrics>>,
    /// What else it was told, for the page `/config`; nothing secret.
    pub told: BTreeMap<&'static str, String>,
    /// The endpoint that it serves for a program, to be shown.
    pub inbound: Option<Server>,
}

/// Bounds of a proxy. Beyond them it sheds, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of programs at one time; the next ones wait to be accepted.
    pub connections: usize,
    /// Bytes of the body of a request; without one, as many as come.
    pub body: Option<u64>,
    /// How long the head of a request may take, and a kept connection may be idle.
    pub head: Duration,
    /// How long nothing may come over a tunnel: a WebSocket, `CONNECT`, TCP.
    pub tunnel_idle: Duration,
    /// How long what is under way may take once the proxy stops.
    pub drain: Duration,
    /// Services at one time: each costs memory here and with the agent.
    pub services: usize,
    /// How long a service that is not called is followed. The mesh has to let go of it
    /// [soon after](fairmesh_client::MeshBuilder::idle_timeout).
    pub service_idle: Duration,
    /// How long one that takes over waits for its routing information before it gives up and lets the other go on.
    pub first_contact: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body: None,
            // What nginx gives idle connections: clients take care to send nothing on older ones.
            head: Duration::from_secs(75),
            // Longer than what is usual between signs of life: those of TCP itself come every two hours.
            tunnel_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(25),
            services: 65_536,
            service_idle: Duration::from_secs(600),
            first_contact: Duration::from_secs(15),
        }
    }
}
