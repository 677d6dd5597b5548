//! The sources of endpoints and shards: an API with leases (gRPC and HTTP/JSON), watched files, and the reconciler
//! that moves shards (ServiceRouter §3.1, §3.2, §3.3, §4.1).
//!
//! The crate reads the RIB through a `rib` node and writes it through a `store`, as the control plane does with its
//! configuration. No router talks to the registry. [`manifest`] parses YAML files, for `fairmesh apply` too.
//!
//! Leases are kept in memory: a renewal writes nothing, only a change of state writes the RIB. Leases in the RIB were
//! rejected, because the renewals of 100,000 endpoints every few seconds would be most of the store's load. The
//! price: a restarted control plane grants every lease 10 s to return and a full term before it may mark an endpoint as lost.

mod address_claims;
mod auto_declarations;
mod endpoints;
mod error;
mod file_source;
mod grpc;
mod http;
mod instance;
mod leases;
pub mod manifest;
mod plaintext_callers;
mod registry;
mod shard_balance;
mod shard_map_cache;
mod shards;
mod stored_records;
#[cfg(test)]
mod testing;

pub use auto_declarations::MAX_AUTO_DECLARED;
pub use endpoints::{DrainOutcome, MAX_BATCH, Registration, StateReport};
pub use error::RegistryError;
pub use file_source::{FileSource, FileStatus, SOURCE_LABEL};
pub use grpc::RegistryService;
pub use instance::{InstanceClaim, InstanceRef};
pub use plaintext_callers::PlaintextCaller;
pub use registry::{DECLARATION_GRACE, Registry, adopt_declaration};
pub use shard_balance::{
    Forecast, LoadReport, MovePlan, PlanInput, PlanNote, PlanOptions, ReportOutcome, Server, ServerLoad,
    ShardWork, Work, WorkByShard, plan,
};
pub use shards::{AWARE_LABEL, MoveStatus, Phase};
