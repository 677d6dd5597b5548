//! The admin pages of every process: `/metrics`, `/healthz` and `/readyz`, and further pages of the process.
//!
//! The crate is independent of the mesh. A process implements [`Process`] to provide its metrics and readiness, and
//! adds its own routes to [`router`]. [`AdminListener`] serves all pages within the limits of admin pages.
//!
//! A separate server in each process was rejected: limits, formats and the refusal of health checks had to be kept
//! equal by hand.

mod exposition;
mod host_names;
mod metrics_push;
mod page_router;
mod server;

pub use exposition::resident_memory;
pub use host_names::HostNames;
pub use page_router::{Process, ProcessRouter, Readiness, router};
pub use server::{AdminListener, AdminServer, BindError};
