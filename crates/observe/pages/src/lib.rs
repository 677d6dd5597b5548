//! The admin pages of every process: `/metrics`, `/healthz` and `/readyz`, and pages that a process adds.
//!
//! It is independent of the mesh: a process says by [`Process`] what it counts and whether it is ready, and adds routes of its
//! own to [`router`]. [`AdminListener`] serves them all within the limits of pages.
//!
//! A server in each process was rejected: bounds, formats and the refusal of health checks had to be kept equal by hand.

mod exposition;
mod push;
mod router;
mod server;

pub use exposition::resident_memory;
pub use router::{Process, ProcessRouter, Readiness, router};
pub use server::{AdminListener, AdminServer, BindError};
