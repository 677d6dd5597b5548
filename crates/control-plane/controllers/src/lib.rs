//! Controllers: loops of the control plane that compare records with their desired state and write the difference.
//!
//! The crate sits above `store` and `rib` and beneath `control`, which implements the controllers. A
//! [`Controller`] reads facts, decides, and applies effects. The [`Runtime`] does the rest: it wakes
//! controllers, and writes their decisions, conditional on the revisions that were read and only under the
//! writer lease. It limits the time of rounds, backs off after failures, survives panics, and keeps a
//! [`ControllerStatus`] for operators.
//!
//! A controller is *level-triggered*, as in Kubernetes: a round starts from the current facts, regardless of what
//! woke it, so lost or merged notifications do no harm. Work queues of changed objects were rejected: a queue must be
//! bounded, replayed after a restart, and kept consistent with the records, which already are the source of truth.

mod catch_panic;
mod controller;
mod fence;
mod monotonic_clock;
mod round;
mod runtime;
mod schedule;
mod status;

pub use controller::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
pub use monotonic_clock::MonotonicClock;
pub use round::RoundError;
pub use runtime::{Runtime, RuntimeConfig};
pub use status::{ControllerState, ControllerStatus, MAX_SHOWN, Round, Statuses, Totals};
