//! The gateway's part of the control plane.
//!
//! [`GatewayLoads`] takes the reports of replicas, and shows them to operators. [`PlacementController`] writes where services are
//! placed, and adds backends to services whose calls grow. What it decides by is in the pure crates `backend-loads` and `placement`.

mod loads;
mod placement;

pub use loads::{BackendLevels, GatewayLoads};
pub use placement::PlacementController;
