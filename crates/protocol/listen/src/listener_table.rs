//! The table of all listeners. `docs/limits.md` has the same rows, and a test compares both with the sockets of running
//! processes.

/// A row of the table: a listener of a process. Listeners with the same purpose at several addresses share a row.
#[derive(Debug, PartialEq, Eq)]
pub struct ListenerInfo {
    /// Name of the process.
    pub process: &'static str,
    /// Name of the listener in metrics; empty if `fairmesh_listen` does not count its connections.
    pub name: &'static str,
    /// Peers of the listener, which determine how connections are secured.
    pub peers: Peers,
}

/// The peers that connect to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// Processes of the mesh and callers of services. The transport of the process secures their connections.
    Mesh,
    /// Processes of this machine, over a Unix socket. The kernel authenticates their user.
    Machine,
    /// Operators and monitoring, in plaintext and without authentication.
    Operators,
    /// Clients outside the mesh. The listener's options determine how connections are secured.
    Clients,
}

impl Peers {
    /// The name in `docs/limits.md`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mesh => "mesh",
            Self::Machine => "machine",
            Self::Operators => "operators",
            Self::Clients => "clients",
        }
    }
}

const fn row(process: &'static str, name: &'static str, peers: Peers) -> ListenerInfo {
    ListenerInfo { process, name, peers }
}

/// gRPC of the control plane.
pub static CONTROL_GRPC: ListenerInfo = row("control plane", "grpc", Peers::Mesh);
/// HTTP of the control plane.
pub static CONTROL_HTTP: ListenerInfo = row("control plane", "http", Peers::Operators);
/// Spans that processes export to the control plane.
pub static CONTROL_TRACES: ListenerInfo = row("control plane", "traces", Peers::Clients);
/// gRPC of a replica.
pub static REPLICA_GRPC: ListenerInfo = row("replica", "grpc", Peers::Mesh);
/// HTTP of a replica.
pub static REPLICA_HTTP: ListenerInfo = row("replica", "http", Peers::Operators);
/// gRPC of an agent. If it also listens on TCP, those connections are secured as for the mesh.
pub static AGENT_GRPC: ListenerInfo = row("agent", "grpc", Peers::Machine);
/// Shard maps of an agent.
pub static AGENT_MAPS: ListenerInfo = row("agent", "maps", Peers::Machine);
/// HTTP of an agent.
pub static AGENT_HTTP: ListenerInfo = row("agent", "http", Peers::Operators);
/// Probes by other agents.
pub static AGENT_PROBES: ListenerInfo = row("agent", "", Peers::Clients);
/// gRPC of a lookaside.
pub static LOOKASIDE_GRPC: ListenerInfo = row("lookaside", "grpc", Peers::Mesh);
/// HTTP of a lookaside.
pub static LOOKASIDE_HTTP: ListenerInfo = row("lookaside", "http", Peers::Operators);
/// gRPC of a key server.
pub static KEYSERVER_GRPC: ListenerInfo = row("key server", "grpc", Peers::Mesh);
/// HTTP of a key server.
pub static KEYSERVER_HTTP: ListenerInfo = row("key server", "http", Peers::Operators);
/// Pages of a proxy.
pub static PROXY_ADMIN: ListenerInfo = row("proxy", "admin", Peers::Operators);
/// Requests and connections that a proxy forwards.
pub static PROXY_TRAFFIC: ListenerInfo = row("proxy", "", Peers::Clients);
/// Handover to the process that replaces a proxy.
pub static PROXY_HANDOVER: ListenerInfo = row("proxy", "", Peers::Machine);
/// Pages of a node.
pub static NODE_ADMIN: ListenerInfo = row("node", "admin", Peers::Operators);
/// Captured connections of a node's pods.
pub static NODE_CAPTURED: ListenerInfo = row("node", "", Peers::Clients);
/// Connections of gateways to a node's pods.
pub static NODE_PODS: ListenerInfo = row("node", "", Peers::Mesh);
/// Handover to the process that replaces a node.
pub static NODE_HANDOVER: ListenerInfo = row("node", "", Peers::Machine);
/// Pages of a gateway.
pub static GATEWAY_ADMIN: ListenerInfo = row("gateway", "admin", Peers::Operators);
/// Connections of nodes to a gateway.
pub static GATEWAY_NODES: ListenerInfo = row("gateway", "", Peers::Mesh);
/// Handover to the process that replaces a gateway.
pub static GATEWAY_HANDOVER: ListenerInfo = row("gateway", "", Peers::Machine);
/// Pages of a DNS server.
pub static DNS_ADMIN: ListenerInfo = row("dns", "admin", Peers::Operators);
/// DNS queries over TCP.
pub static DNS_QUERIES: ListenerInfo = row("dns", "", Peers::Clients);
/// Pages of `register`.
pub static REGISTER_ADMIN: ListenerInfo = row("register", "admin", Peers::Operators);
/// The server of a program, or a proxy in front of one.
pub static PROGRAM: ListenerInfo = row("a program's server", "", Peers::Mesh);

/// All rows of the table.
pub static LISTENERS: &[&ListenerInfo] = &[
    &CONTROL_GRPC,
    &CONTROL_HTTP,
    &CONTROL_TRACES,
    &REPLICA_GRPC,
    &REPLICA_HTTP,
    &AGENT_GRPC,
    &AGENT_MAPS,
    &AGENT_HTTP,
    &AGENT_PROBES,
    &LOOKASIDE_GRPC,
    &LOOKASIDE_HTTP,
    &KEYSERVER_GRPC,
    &KEYSERVER_HTTP,
    &PROXY_ADMIN,
    &PROXY_TRAFFIC,
    &PROXY_HANDOVER,
    &NODE_ADMIN,
    &NODE_CAPTURED,
    &NODE_PODS,
    &NODE_HANDOVER,
    &GATEWAY_ADMIN,
    &GATEWAY_NODES,
    &GATEWAY_HANDOVER,
    &DNS_ADMIN,
    &DNS_QUERIES,
    &REGISTER_ADMIN,
    &PROGRAM,
];
