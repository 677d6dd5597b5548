//! Chooses an endpoint among candidates: a stable subset for each client, two sampled by weight, the less loaded wins.
//!
//! The router hands over candidates that all may be called; this crate never asks where they are or what they serve.
//! Everything is a function of (members, counts, now, seed) in integers, so that a program in the kernel and a binding
//! in another language decide alike (`vectors/`). Round robin by weight was rejected: callers that share a list move in
//! step and herd on one endpoint (Uber, assisted balancing), while two random choices stay fair with no state shared between callers.

mod adaptive_concurrency;
mod candidates;
mod config;
mod endpoint_stats;
mod index_allocator;
mod outcome;
mod outlier;
mod pick;
pub mod poll;
mod pool_means;
pub mod rendezvous;
mod report;

pub use adaptive_concurrency::{AdaptiveConcurrency, CompletedRequest, ConcurrencyConfig};
pub use candidates::{CandidateSet, Candidates, InlineCandidates};
pub use config::{BalancerConfig, PickConfig};
pub use endpoint_stats::EndpointStats;
pub use index_allocator::IndexPin;
pub use outcome::Outcome;
pub use pick::{Exclusion, FULL_SCAN_MAX, PickContext, PickTracer, SCORE_BITS, ScoredEndpoint, pick};
pub use report::{LoadReport, ReceivedReport};
