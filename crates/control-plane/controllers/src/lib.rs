//! Controllers: loops of the control plane that compare records with what should be, and write the difference.
//!
//! This crate sits above `store` and `rib`, and beneath `control`, which has the controllers. A [`Controller`] reads facts,
//! decides, and applies effects; the [`Runtime`] does everything that all of them need: it wakes a controller, writes what it
//! decides on condition of what it read, and only while the control plane holds the writer lease; it bounds the time of a
//! round, backs off after failures, survives panics, and keeps a [`ControllerStatus`] for operators.
//!
//! A controller is *level-triggered*, as in Kubernetes: a round starts from the present facts, whatever woke it, so that a
//! lost or a merged notification costs nothing. Work queues of changed objects were rejected: a queue has to be bounded,
//! replayed after a restart, and kept in step with the records, which are the truth already.

mod controller;
mod fence;
mod round;
mod runtime;
mod schedule;
mod status;
mod unwind;

pub use controller::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
pub use round::RoundError;
pub use runtime::{Runtime, RuntimeConfig};
pub use status::{ControllerState, ControllerStatus, MAX_SHOWN, Round, Statuses, Totals};
