//! Which backends of a gateway serve which service: shuffle sharding (Canal Mesh, section 4.2; mechanism of the AWS Builders'
//! Library, "Workload isolation using shuffle-sharding").
//!
//! A backend is a group of replicas with one configuration, in one zone. [`plan`] is a function from the backends, the services
//! and their present backends to the changes. Among the services that it places, the backends of one never all lie among those of
//! another, whatever their numbers are. If a service takes all of its backends down, every other one has a backend that is up.
//! It has no clock and no I/O; chance comes from a seed.
//!
//! One decision: a plan keeps what is in force and changes as little as possible. A service that grows takes the backends that hold
//! the fewest other services completely, and one backend of each of these is replaced. Rejected: combinations from a fixed design,
//! such as a finite geometry, in which any two meet in at most one backend. A design has a fixed number of combinations, and one that
//! grows with the fleet moves every service.
//!
//! A backend that is down changes nothing here. Nodes use the others, and services that are moved off it could take the next ones down.

mod backend_set;
mod choice;
mod fleet;
mod growth;
mod input;
mod missing;
mod occupied;
mod operator_choice;
mod plan;

pub use input::{Backend, MAX_ADDED_PERMILLE, MAX_BACKENDS, MIN_BACKENDS, PlacedService, PlanInput};
pub use missing::Missing;
pub use operator_choice::{Unfit, check_choice};
pub use plan::{Effort, Plan, plan};
