//! The part of the control plane that manages the gateway.
//!
//! [`GatewayLoads`] receives the reports of replicas, and shows them to operators. [`PlacementController`]
//! writes the placements of services, and adds backends to services whose calls grow. The decisions are made
//! by the pure crates `backend-loads` and `placement`.

mod loads;
mod placement;

pub use loads::{BackendLevels, GatewayLoads};
pub use placement::PlacementController;
