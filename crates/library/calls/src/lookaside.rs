//! Calls by leases from a lookaside: for programs on machines without an agent (ServiceRouter §2.1), and for services
//! whose policies name a lookaside (§3.3).
//!
//! Leased endpoints become a table like that of any other service, so that the same code balances, retries and keeps
//! connections. One [`LeaseSet`] holds the leases of a service, or of a shard in a role. A call finds the set by its
//! key and is counted there. A task of the set requests new leases before the old ones expire. While the lookaside does
//! not respond, calls continue with the existing leases.

mod lease_index;
mod lease_renewal;
mod lease_set;
mod lease_table;
mod leases;
mod lookaside_connection;
mod service_lookasides;

pub(crate) use self::{lease_set::LeaseSet, leases::Leases, service_lookasides::ServiceLookasides};
