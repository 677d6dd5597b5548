//! Simulates fleets: servers and callers by the thousand, in which every decision is made by the routing code of
//! production.
//!
//! Each simulated caller owns a real [`fairmesh_router::Upstream`] and asks, counts and learns as the client library
//! does; the world around it (processors, networks, failures, time) is a deterministic simulation of single events. The
//! same scenario and seed give the same result to the last bit, on every machine. A second implementation of the
//! decisions, made for speed, was rejected: it would prove something about itself.

mod caller;
mod chance;
mod contest;
mod directory;
mod engine;
pub mod fleets;
mod flights;
mod lane;
mod metrics;
pub mod plot;
mod queue;
mod report;
pub mod scenario;
mod server;
pub mod sweep;
pub mod tree;

pub use contest::{Contender, Pair, Ratio, Summary, compare};
pub use engine::run;
pub use metrics::{Endings, Estimated, Recovery, Window, Worst};
pub use report::{Group, Latency, Outcome, Report};
pub use scenario::Scenario;

/// What the simulated service is called.
const SERVICE: &str = "sim/service";
