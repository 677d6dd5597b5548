//! Where endpoints and shards of Fairmesh come from: an API with leases (gRPC and HTTP/JSON), watched files, and the
//! reconciler that moves shards (ServiceRouter §3.1, §3.2, §3.3, §4.1).
//!
//! It sits beside the control plane's configuration: it reads the RIB through a `rib` node and writes it through a
//! `store`, and no router ever talks to it. [`manifest`] reads the files that people write, for `fairmesh apply` too.
//!
//! Leases are kept in memory and a renewal never writes the RIB; only a change of state does. Keeping them in the RIB
//! was rejected: a fleet of 100,000 endpoints that renew every few seconds would be all that the store does. The price
//! is that a restarted control plane grants everybody a full term before it may call anybody lost.

mod balance;
mod clock;
mod declarations;
mod endpoints;
mod error;
mod file;
mod grpc;
mod http;
mod leases;
pub mod manifest;
mod maps;
mod registry;
mod shards;
#[cfg(test)]
mod testing;
mod view;

pub use balance::{
    Facts, Forecast, LoadReport, Note, Plan, Server, ServerLoad, ShardWork, Taken, Terms, Work, Works, plan,
};
pub use declarations::{GRACE, MAX_DECLARED, adopt_declaration};
pub use endpoints::{Claim, Drained, InstanceRef, MAX_BATCH, Registration, StateReport};
pub use error::RegistryError;
pub use file::{FileSource, FileStatus, SOURCE_LABEL};
pub use grpc::RegistryService;
pub use registry::Registry;
pub use shards::{AWARE_LABEL, MoveStatus, Phase};
