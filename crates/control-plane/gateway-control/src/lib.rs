//! The part of the control plane that manages the gateway.
//!
//! [`GatewayLoads`] receives the reports of replicas, and shows them to operators. [`PlacementController`]
//! writes the placements of services, adds backends to services whose calls grow, has a [`GatewayLauncher`] start
//! backends where none has room, and moves services that harm backends to the sandbox. The decisions are made
//! by the pure crates `backend-loads` and `placement`.

mod launcher;
mod loads;
mod placement;

pub use launcher::GatewayLauncher;
pub use loads::{BackendLevels, GatewayLoads};
pub use placement::PlacementController;
