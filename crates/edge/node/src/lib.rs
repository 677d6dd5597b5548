//! The part of a gateway of many tenants that runs on a tenant's node (Canal Mesh, section 4.1).
//!
//! It sits on `edge`, beside the gateway. A node captures the connections of its pods, opens mutual TLS to a gateway with the
//! certificate of the pod's service, and forwards bytes. A PROXY protocol header within the TLS connection has the original destination and
//! an id of the connection. In the other direction it accepts connections of gateways, whose header names the pod, and counts both
//! by pod.
//!
//! A node knows no routes and no policies: a change of either reaches one gateway and not every node. Rejected: one listener and
//! certificate for all pods of a node, which would let a node vouch for services without their certificates. Each service has a listener
//! of its own, and callers verify it as they verify any endpoint of that service.

mod arriving;
mod captured;
mod config;
mod forwarded;
mod gateways;
mod metrics;
mod opening;
mod pages;
mod placements;
mod pods;
mod registered;
mod run;

pub use config::{NodeConfig, PodConfig, ServedPod};
pub use run::{NodeError, run};
