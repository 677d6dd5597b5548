//! A gateway that routes for many tenants (Canal Mesh, section 4.2).
//!
//! It sits on `edge`, whose parts serve each tenant with a table of services, counters and limits of the tenant's own. Nodes open
//! connections with the certificates of their pods: a certificate says which tenant and service calls, never an address. The host of a
//! request, or the virtual address that a pod connected to, names a service of that tenant. Routes may lead to services of other tenants,
//! with the consent of both; the policy of the service that gets a call decides here whether the caller is allowed.
//!
//! Endpoints of pods are reached through their nodes, so that equal addresses of two tenants' pods never meet.
//!
//! One process serves all tenants, and one table of routes is not shared among them. Rejected: a process for each tenant, which is
//! the cost of sidecars again, and one table of services by name, whose bounds one tenant could use up for all.

mod config;
mod connection;
mod connection_rate;
mod directory;
mod loads;
mod metrics;
mod origin;
mod pages;
mod run;
mod service_connections;
mod tenants;

pub use config::GatewayConfig;
pub use run::{GatewayError, run};
