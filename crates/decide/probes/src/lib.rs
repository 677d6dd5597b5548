//! Probes between agents: which agent probes which, and what the results show about the network between two zones
//! (Canal Mesh, section 6.2: full-mesh probes by application protocols in all availability zones tell a bad network
//! from a bad service).
//!
//! [`Board`] holds what a control plane knows about its agents. An agent reports the results of its last round and
//! receives the targets of the next one. [`plan`] chooses the targets: each ordered pair of zones is probed by up to
//! three agents in turn, and no agent probes more than [`MAX_TARGETS`] others. The number of probes therefore grows
//! linearly with the number of agents. [`Matrix`] keeps the last result of each prober for each pair of zones. Callers
//! pass the time, the round and a seed.
//!
//! The plan depends only on the known agents, the round and the seed; no agent waits for another. Rejected: an elected
//! prober for each zone. It would see the network from one machine only, and could not tell its own fault from the
//! zone's.

mod outcome;
mod probe_coordinator;
mod probe_targets;
mod zone_matrix;
mod zone_place;

pub use outcome::{Outcomes, Protocol};
pub use probe_coordinator::{Assignment, Board, BoardCounts, MAX_AGENTS, ROUND, Report};
pub use probe_targets::{MAX_PLACES, MAX_TARGETS, plan};
pub use zone_matrix::{Cell, Matrix, ProtocolView, Verdict};
pub use zone_place::Place;
