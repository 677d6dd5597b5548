//! Load balancing: each client has a stable subset of endpoints. A pick samples two candidates by weight, and the less
//! loaded one wins.
//!
//! The router supplies candidates that may all be called; location and service are unknown to this crate. Every
//! decision is a function of (members, counts, now, seed) in integers, so that eBPF programs and bindings in other
//! languages decide alike (`vectors/`). Weighted round robin was rejected as the default: callers that share a list
//! move in step and herd on one endpoint (Uber, assisted balancing). Two random choices stay fair without shared state.

mod adaptive_concurrency;
mod candidates;
mod config;
mod endpoint_stats;
mod index_allocator;
pub mod load_poll;
mod load_report;
mod outcome;
mod outlier;
mod pick;
mod pool_means;
pub mod rendezvous;

pub use adaptive_concurrency::{AdaptiveConcurrency, CompletedRequest, ConcurrencyConfig};
pub use candidates::{CandidateSet, Candidates, InlineCandidates};
pub use config::{BalancerConfig, PickConfig};
pub use endpoint_stats::{BLOCK_ENDPOINTS, EndpointStats, SharedBlock, SharedStats};
pub use index_allocator::IndexPin;
pub use load_report::{LoadReport, ReceivedReport};
pub use outcome::Outcome;
pub use pick::{Exclusion, FULL_SCAN_MAX, PickContext, PickTracer, SCORE_BITS, ScoredEndpoint, pick};
