//! Access control of the control plane: who may read, write and report what.
//!
//! Decisions are functions of the caller's [`Grants`], which follow from the records of role bindings and of joined agents.
//! A list of permitted methods for each role was rejected: a new method would be open or closed by accident. Each method
//! says what it needs, and a test fails for one that does not.

mod callable;
mod grants;
mod role;
mod workload_bounds;

pub use callable::{MachineCallers, admits, admits_caller};
pub use grants::{Delegation, Grants, Machine, Reach};
pub use role::{AccessRole, RoleBinding, Subject};
pub use workload_bounds::{UidRange, WorkloadBounds};
