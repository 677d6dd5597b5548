use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::{AccessLog, Listen};

/// What a proxy does.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where programs connect; at least one.
    pub listen: Vec<Listen>,
    /// Where `/metrics`, `/healthz`, `/readyz` and `/services` are.
    pub admin: Option<SocketAddr>,
    /// The Unix socket at which it takes over from a proxy that runs, and is succeeded in its turn.
    pub handover: Option<PathBuf>,
    /// Threads that serve connections, each with an event loop of its own; 0 to serve on the runtime that runs the proxy. The mesh
    /// has to be [built for as many](fairmesh_client::MeshBuilder::cores).
    pub cores: usize,
    /// Bounds.
    pub limits: Limits,
    /// What is written of each request.
    pub access_log: AccessLog,
}

/// Bounds of a proxy. Beyond them it sheds, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of programs at one time; the next ones wait to be accepted.
    pub connections: usize,
    /// How long the head of a request may take, and a kept connection may be idle.
    pub head: Duration,
    /// How long nothing may come over a tunnel: a WebSocket, `CONNECT`, TCP.
    pub tunnel_idle: Duration,
    /// How long what is under way may take once the proxy stops.
    pub drain: Duration,
    /// How long one that takes over waits for its routing information before it gives up and lets the other go on.
    pub first_contact: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            // What nginx gives idle connections: clients take care to send nothing on older ones.
            head: Duration::from_secs(75),
            // Longer than what is usual between signs of life: those of TCP itself come every two hours.
            tunnel_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(25),
            first_contact: Duration::from_secs(15),
        }
    }
}
