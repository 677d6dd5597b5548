//! Controllers: loops of the control plane that compare records with their desired state and write the difference.
//!
//! The crate sits above `store` and `rib` and beneath `control`, which implements the controllers. A [`Controller`] reads
//! facts, decides, and applies effects. The [`Runtime`] provides the rest: it wakes a controller, and writes its decisions on
//! condition of the read revisions and only under the writer lease. It limits the time of a round, backs off after failures,
//! survives panics, and keeps a [`ControllerStatus`] for operators.
//!
//! A controller is *level-triggered*, as in Kubernetes: a round starts from the present facts, whatever woke it, so that
//! lost or merged notifications do no harm. Work queues of changed objects were rejected: a queue has to be bounded,
//! replayed after a restart, and kept consistent with the records, which are the truth already.

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
