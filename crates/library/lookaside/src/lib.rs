//! Picks endpoints for callers without an agent (ServiceRouter §2.1): the decisions of the client library, over gRPC.
//!
//! A pick is leased, for a time and a number of calls, so that a caller sends one request for many calls. A lease
//! counts as a call in flight at its endpoint, and callers report results, which update the endpoint statistics as the
//! library's own calls do: both influence the next picks. Records, tables and decisions are those of `client` and
//! `router`.
//!
//! Streaming whole tables to callers was rejected: they would need memory for endpoints that they do not call, and the
//! code that decides, which is the purpose of an agent and the library.

mod admin;
mod connections;
mod error;
mod grants;
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

/// The configuration of a lookaside.
#[derive(Clone, Debug)]
pub struct LookasideConfig {
    /// How connections are accepted, and opened to upstreams.
    pub transport: Transport,
    /// Agents or control planes whose records say what callers may read.
    pub upstreams: Vec<Address>,
    /// The address for callers.
    pub listen: Address,
    /// The address of `/metrics`, `/healthz` and `/readyz`.
    pub admin: Option<SocketAddr>,
    /// The terms of leases.
    pub lease_terms: LeaseTerms,
    /// Its bounds.
    pub limits: Limits,
}

/// The terms of leases.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// Their duration. A caller may go on calling a draining endpoint, or a moved copy, for as long.
    pub ttl: Duration,
    /// The number of calls of each.
    pub calls: u32,
}

/// Bounds of a lookaside.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrent connections; further ones wait to be accepted.
    pub connections: usize,
    /// Leases that are counted at a time; beyond it, the oldest stay valid but no longer count.
    pub leases: usize,
    /// The time limit of calls in flight after the stop.
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
