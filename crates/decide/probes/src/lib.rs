//! Probes between agents: which agent probes which, and what the results say of the network between two zones (Canal Mesh, section
//! 6.2: full-mesh probes by application protocols in all availability zones tell a bad network from a bad service).
//!
//! [`Board`] is what a control plane knows of its agents. An agent reports the results of its last round, and gets the targets of the
//! next one. [`plan`] chooses them: every ordered pair of zones is probed by up to three agents in turn, and no agent probes more than
//! [`MAX_TARGETS`] others, so that the number of probes grows with agents and never with their pairs. [`Matrix`] keeps the last result of
//! each prober by pair of zones. Callers pass the time, the round and a seed.
//!
//! One decision: the plan depends on the round alone, and no agent waits for another. Rejected: an elected prober for each zone, which
//! would see the network from one machine, and could not tell its own fault from the zone's.

mod board;
mod matrix;
mod outcome;
mod place;
mod plan;

pub use board::{Assignment, Board, BoardCounts, MAX_AGENTS, ROUND, Report};
pub use matrix::{Cell, Matrix, ProtocolView, Verdict};
pub use outcome::{Outcomes, Protocol};
pub use place::Place;
pub use plan::{MAX_PLACES, MAX_TARGETS, plan};
