//! Assignment of services to backends of a gateway: shuffle sharding (Canal Mesh, section 4.2; mechanism of the AWS
//! Builders' Library, "Workload isolation using shuffle-sharding").
//!
//! A backend is a group of replicas with one configuration, in one zone. [`plan`] maps backends, services and their
//! present backends to changes. No placed service has all of its backends among those of another one, whatever their
//! numbers are. If a service takes down all of its backends, every other service still has a backend that is up. The
//! crate has no clock and no I/O; randomness comes from a seed.
//!
//! A plan keeps what is in force and changes as little as possible. A growing service takes the backends that would
//! cover the fewest other services, and each covered service gets one of its backends replaced. Rejected: combinations
//! from a fixed design, such as a finite geometry, in which any two meet in at most one backend. A design has a fixed
//! number of combinations, and a design that grows with the fleet moves every service.
//!
//! A service whose calls harm backends is moved to sandbox backends, which serve nothing else. They are no part of the
//! combinations: what is in the sandbox is not kept apart from each other.
//!
//! Within a backend, [`BucketTable`] divides connections to the address that its replicas share.
//!
//! A backend that is down changes no plan. Nodes use the other backends, and services moved off the failed one could
//! take down the next ones.

mod backend_choice;
mod backend_set;
mod bucket_table;
mod fleet;
mod growth;
mod input;
mod missing_backends;
mod occupied_backends;
mod operator_choice;
mod plan;
mod sandbox;
mod scatter;

pub use bucket_table::{BUCKETS, BucketTable, CHAIN};
pub use input::{Backend, MAX_ADDED_PERMILLE, MAX_BACKENDS, MIN_BACKENDS, PlacedService, PlanInput};
pub use missing_backends::Missing;
pub use operator_choice::{Unfit, check_choice};
pub use plan::{Effort, Plan, plan};
pub use scatter::{DayLoads, Scattered, scatter};
