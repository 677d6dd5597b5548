//! Picks endpoints for callers without an agent (ServiceRouter §2.1): makes the decisions of the client library over
//! gRPC.
//!
//! A pick is leased for a limited time and number of calls, so that a caller sends one request for many calls. A lease
//! counts as a call in flight at its endpoint. Callers report results, which update the endpoint statistics like the
//! library's own calls. Both influence later picks. Records, tables and decisions are those of `client` and `router`.
//!
//! Streaming whole tables to callers was rejected: callers would need memory for endpoints they do not call, and the
//! code that decides, which is the purpose of an agent and the library.

mod admin_pages;
mod caller_grants;
mod connections;
mod error;
mod lease_table;
mod metrics;
mod picker;
mod rls;
mod run;
mod service;

use std::{net::SocketAddr, time::Duration};

pub use error::LookasideError;
use fairmesh_wire::transport::{Address, Transport};
pub use run::run;

/// Configuration of a lookaside.
#[derive(Clone, Debug)]
pub struct LookasideConfig {
    /// Accepts connections, and opens connections to upstreams.
    pub transport: Transport,
    /// Agents or control planes whose records determine what callers may read.
    pub upstreams: Vec<Address>,
    /// The address for callers.
    pub listen: Address,
    /// Address that serves `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// The terms of leases.
    pub lease_terms: LeaseTerms,
    /// Limits of the lookaside.
    pub limits: Limits,
}

/// Duration and number of calls of a lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// Duration of a lease. For this time, a caller may still call an endpoint that is draining, or a copy that has
    /// moved.
    pub ttl: Duration,
    /// Number of calls per lease.
    pub calls: u32,
}

/// Limits of a lookaside.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent connections. Further connections wait to be accepted.
    pub connections: usize,
    /// Maximum number of leases that are counted. Beyond it, the oldest leases stay valid but are no longer counted.
    pub leases: usize,
    /// Time limit for calls in flight when the lookaside stops.
    pub drain: Duration,
}

impl Default for LeaseTerms {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(5), calls: 1000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10_000, leases: 65_536, drain: Duration::from_secs(10) }
    }
}
