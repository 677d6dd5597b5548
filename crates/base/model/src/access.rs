//! Access control of the control plane: which callers may read, write and report which records.
//!
//! Decisions are functions of the caller's [`Grants`], which follow from role bindings and from the records of joined
//! agents. A list of permitted methods per role was rejected, because a new method could be open or closed by
//! accident. Instead each method declares its requirements, and a test fails for methods without a declaration.

mod grants;
mod machine_callers;
mod role_binding;
mod workload_bounds;

pub use grants::{Delegation, Grants, Machine, Reach};
pub use machine_callers::{MachineCallers, admits, admits_caller};
pub use role_binding::{AccessRole, RoleBinding, Subject};
pub use workload_bounds::{OutOfBounds, UidRange, WorkloadBounds};
