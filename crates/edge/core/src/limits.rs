//! Limits of a proxy.

use std::time::Duration;

/// Limits of a proxy. Work beyond a limit is refused or delayed, and counted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of client connections. Further connections wait in the accept queue.
    pub connections: usize,
    /// Maximum bytes of a request body; `None` is unlimited.
    pub body: Option<u64>,
    /// Idle timeout of connections, which is also the time limit for request headers and for each write to the
    /// client.
    pub idle_timeout: Duration,
    /// Idle timeout of tunnels: WebSocket, `CONNECT`, TCP.
    pub tunnel_idle: Duration,
    /// Time that open connections have after the shutdown starts.
    pub drain: Duration,
    /// Maximum number of services. Each takes memory here and in the agent.
    pub services: usize,
    /// Name of the option that sets [`services`](Self::services), for messages.
    pub services_option: &'static str,
    /// Time without calls after which a service is evicted. The mesh must drop the service [shortly
    /// after](fairmesh_calls::MeshBuilder::idle_timeout).
    pub service_idle: Duration,
    /// Time limit for a successor to obtain its routing information. Afterwards the running proxy continues.
    pub handover_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body: None,
            // As in nginx; clients do not reuse connections that were idle for longer.
            idle_timeout: Duration::from_secs(75),
            // Longer than common keepalive intervals. The default interval of TCP keepalive is two hours.
            tunnel_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(25),
            services: 65_536,
            services_option: "--max-services",
            service_idle: Duration::from_secs(600),
            handover_timeout: Duration::from_secs(15),
        }
    }
}
