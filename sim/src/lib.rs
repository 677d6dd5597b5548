//! Simulates fleets of thousands of servers and callers, in which the production routing code makes every decision.
//!
//! Each simulated caller owns a real [`fairmesh_router::ServiceTable`] and picks, counts and learns as the client
//! library does. The environment (processors, networks, failures, time) is a deterministic discrete-event simulation.
//! The same scenario and seed give bit-identical results on every machine. Rejected: a second, faster implementation of
//! the decisions, which would only prove something about itself.

pub mod application;
mod caller;
mod comparison;
mod endpoint_connection;
mod engine;
mod event_queue;
pub mod fleets;
mod in_flight;
mod metrics;
pub mod plot;
mod registry;
pub mod replica_tree;
mod report;
mod sampling;
pub mod scenario;
mod server;
pub mod sweep;
mod traffic;

pub use comparison::{Contender, Ratio, ReportPair, Summary, compare};
pub use engine::run;
pub use metrics::{CallOutcomes, EstimateCounts, Recovery, Window, WorstSecond};
pub use report::{Latency, Report, ServerGroupShare, SimulationResult};
pub use scenario::Scenario;
pub use traffic::{Round, TrafficReport};

/// Name of the simulated service.
const SERVICE: &str = "sim/service";
