//! Limits of a proxy.

use std::time::Duration;

/// Limits of a proxy. Beyond them it rejects or delays work, and counts that.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of client connections; further ones wait in the accept queue.
    pub connections: usize,
    /// Maximum bytes of a request body; `None` is unlimited.
    pub body: Option<u64>,
    /// Idle timeout of connections, and time limit of request headers and of reads by the client.
    pub idle_timeout: Duration,
    /// Idle timeout of tunnels: WebSocket, `CONNECT`, TCP.
    pub tunnel_idle: Duration,
    /// Drain deadline.
    pub drain: Duration,
    /// Maximum number of services; each takes memory here and in the agent.
    pub services: usize,
    /// The option that sets [`services`](Self::services), for messages.
    pub services_option: &'static str,
    /// Time after its last call until a service is evicted. The mesh must drop it [shortly
    /// after](fairmesh_calls::MeshBuilder::idle_timeout).
    pub service_idle: Duration,
    /// Time limit of a successor for its routing information; beyond it the running proxy continues.
    pub handover_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body: None,
            // As nginx; clients avoid older idle connections.
            idle_timeout: Duration::from_secs(75),
            // Longer than common keepalive intervals; that of TCP is two hours.
            tunnel_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(25),
            services: 65_536,
            services_option: "--max-services",
            service_idle: Duration::from_secs(600),
            handover_timeout: Duration::from_secs(15),
        }
    }
}
