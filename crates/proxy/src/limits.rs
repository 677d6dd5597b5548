use std::time::Duration;

/// Bounds of a proxy. Beyond them it sheds, and says so.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections of programs at one time; the next ones wait to be accepted.
    pub connections: usize,
    /// Bytes of the body of a request; without one, as many as come.
    pub body: Option<u64>,
    /// How long the head of a request may take, and a kept connection may be idle.
    pub idle_timeout: Duration,
    /// How long nothing may come over a tunnel: a WebSocket, `CONNECT`, TCP.
    pub tunnel_idle: Duration,
    /// How long what is under way may take once the proxy stops.
    pub drain: Duration,
    /// Services at one time: each costs memory here and with the agent.
    pub services: usize,
    /// How long a service that is not called is followed. The mesh has to let go of it
    /// [soon after](fairmesh_client::MeshBuilder::unused_for).
    pub service_idle: Duration,
    /// How long one that takes over waits for its routing information before it gives up and lets the other go on.
    pub handover_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            body: None,
            // What nginx gives idle connections: clients take care to send nothing on older ones.
            idle_timeout: Duration::from_secs(75),
            // Longer than what is usual between signs of life: those of TCP itself come every two hours.
            tunnel_idle: Duration::from_secs(3600),
            drain: Duration::from_secs(25),
            services: 65_536,
            service_idle: Duration::from_secs(600),
            handover_timeout: Duration::from_secs(15),
        }
    }
}
