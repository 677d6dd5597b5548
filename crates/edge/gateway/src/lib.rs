//! A gateway that routes for many tenants (Canal Mesh, section 4.2).
//!
//! It is built on `edge`, and serves each tenant with a separate table of services, counters and limits.
//! Nodes open connections with the certificates of their pods: the certificate tells which tenant and service
//! calls, never an address. The host of a request, or the virtual address that a pod connected to, names a
//! service of that tenant. Routes may lead to services of other tenants, with the consent of both; the
//! gateway enforces the policy of the called service.
//!
//! Endpoints of pods are reached through their nodes, so equal addresses of two tenants' pods are never
//! confused.
//!
//! One process serves all tenants, with separate route tables. Rejected: a process for each tenant, which
//! would cost as much as sidecars; and one common table of services, whose limits one tenant could exhaust
//! for all.

mod admin_pages;
mod config;
mod connection_rate;
mod entry;
mod load_reporter;
mod metrics;
mod node_connections;
mod pod_connection;
mod run;
mod service_connections;
mod tenant_directory;
mod tenants;

pub use config::GatewayConfig;
pub use entry::{EntryConfig, EntryError};
pub use run::{GatewayError, run};
