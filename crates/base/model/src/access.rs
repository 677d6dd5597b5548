//! Access control of the control plane: who may read, write and report which records.
//!
//! Decisions are functions of the caller's [`Grants`], which follow from records of role bindings and joined agents. A list
//! of permitted methods for each role was rejected, because a new method could be open or closed by accident. Instead each
//! method declares its requirements, and a test fails for a method without a declaration.

mod callable;
mod grants;
mod role;
mod workload_bounds;

pub use callable::{MachineCallers, admits, admits_caller};
pub use grants::{Delegation, Grants, Machine, Reach};
pub use role::{AccessRole, RoleBinding, Subject};
pub use workload_bounds::{OutOfBounds, UidRange, WorkloadBounds};
