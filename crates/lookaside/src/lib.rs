//! Tells callers that have no agent which endpoints to call (ServiceRouter §2.1): the picks of the client library, over gRPC.
//!
//! A pick is leased, for a time and a number of calls, so that a caller asks once for many calls. A lease counts as a call
//! under way at its endpoint, and what callers report of it is learnt from as the library learns from its own calls: the
//! next picks go by both. The records, the tables and the choice are those of `client` and `router`; nothing is decided here.
//!
//! Streaming whole tables to callers was rejected: they would need memory for what they do not call, and the code that
//! decides, which is what an agent and the library are.

mod book;
mod error;
mod metrics;
mod pages;
mod picker;
mod rls;
mod run;
mod serve;
mod service;

use std::{net::SocketAddr, time::Duration};

pub use error::LookasideError;
use fairmesh_wire::transport::Address;
pub use run::run;

/// What a lookaside does.
#[derive(Clone, Debug)]
pub struct LookasideConfig {
    /// Where callers connect.
    pub listen: Address,
    /// Where `/metrics`, `/healthz` and `/readyz` are.
    pub admin: Option<SocketAddr>,
    /// What leases are good for.
    pub terms: Terms,
    /// Bounds.
    pub limits: Limits,
}

/// What leases are good for.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How long. It is also for how long a caller may go on calling an endpoint that drains, or a copy that moved.
    pub ttl: Duration,
    /// For how many calls each.
    pub calls: u32,
}

/// Bounds of a lookaside.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; the next ones wait to be accepted.
    pub connections: usize,
    /// Leases that are counted at one time; the oldest are counted no longer where there are more.
    pub leases: usize,
    /// How long what is under way may take once it stops.
    pub drain: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(5), calls: 1000 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 10_000, leases: 65_536, drain: Duration::from_secs(10) }
    }
}
