//! Decides where a call goes: compiles the records of one service into an immutable [`Upstream`], and asks it per call.
//!
//! The order is fixed: route, shard, ring, subset, pick. Every step is a function of (snapshot, counts, request, now,
//! seed) in integers, without allocation, lock or clock; [`Upstream::explain`] runs the very same code with a witness
//! that writes down the reasons. One mutable table updated in place was rejected: a call would see half of a change, and
//! readers would need a lock.

mod bucket;
mod facts;
mod horizon;
mod key;
mod request;
mod routes;
mod shards;
mod treatment;
mod upstream;
mod witness;

pub use bucket::Bucket;
pub use facts::{Candidate, EndpointTarget, Facts, Reach};
pub use fairmesh_balancer::{EndpointStats, LoadReport, Outcome, ReceivedReport};
pub use request::{Ask, Headers, Picked, RequestView, Routed, Unroutable};
pub use shards::{
    Holding, HoldingNumbers, Holdings, Located, Rows, SEGMENT_SHARDS, Segment, Shards, Unfit, Words,
};
pub use treatment::{Instead, Treatment};
pub use upstream::{Explanation, Held, Upstream};
pub use witness::Step;
