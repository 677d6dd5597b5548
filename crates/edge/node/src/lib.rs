//! The part of a multi-tenant gateway that runs on a tenant's node (Canal Mesh, section 4.1).
//!
//! It is built on `edge`, like the gateway. A node captures the connections of its pods, opens mutual TLS to
//! a gateway with the certificate of the pod's service, and forwards bytes. A PROXY protocol header within
//! the TLS connection carries the original destination and an id of the connection. In the other direction
//! the node accepts connections of gateways, whose header names the pod. Both directions are counted by pod.
//!
//! A node knows no routes and no policies: a change of either reaches one gateway instead of every node.
//! Rejected: one listener and certificate for all pods of a node, since the node could then vouch for
//! services without their certificates. Each service has a separate listener, and callers verify it like any
//! endpoint of that service.

mod admin_pages;
mod config;
mod forwarded_connection;
mod gateway_connect;
mod gateway_replicas;
mod inbound;
mod metrics;
mod outbound;
mod placements;
mod pod_probes;
mod pod_registration;
mod pods;
mod run;

pub use config::{NodeConfig, PodConfig, ServedPod};
pub use run::{NodeError, run};
