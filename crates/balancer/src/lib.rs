//! Chooses an endpoint among candidates: a stable subset for each client, two sampled by weight, the less loaded wins.
//!
//! The router hands over candidates that all may be called; this crate never asks where they are or what they serve.
//! Everything is a function of (members, counts, now, seed) in integers, so that a program in the kernel and a binding
//! in another language decide alike (`vectors/`). Round robin by weight was rejected: callers that share a list move in
//! step and herd on one endpoint (Uber, assisted balancing), while two random choices stay fair with no state shared between callers.

mod book;
mod concurrency;
mod group;
mod learn;
mod outcome;
mod pick;
pub mod poll;
pub mod rendezvous;
mod report;
mod rule;
mod slots;
mod trouble;

pub use book::Lease;
pub use concurrency::{Concurrency, ConcurrencyRule, Ended};
pub use group::{Few, Group, Members};
pub use outcome::Outcome;
pub use pick::{Contest, Handicap, SCAN_UP_TO, SCORE_BITS, Standing, Witness, pick};
pub use report::{LoadReport, Reported};
pub use rule::{Rule, Terms};
pub use slots::Slots;
