//! Routing decisions: compiles the records of one service into an immutable [`ServiceTable`], and picks an endpoint for
//! each call.
//!
//! The order is fixed: route, shard, region, subset, pick. Every step is a function of (snapshot, counts, request, now,
//! seed) in integers, without allocation, lock or clock. [`ServiceTable::explain`] runs the same code with a tracer
//! that records the reasons. Updating one mutable table in place was rejected: a call could observe half of a change,
//! and readers would need a lock.

mod authorization;
mod class_table;
mod compile_input;
mod decision_trace;
mod locality;
mod request;
mod request_key;
mod route_actions;
mod routes;
mod service_table;
mod shard_table;
mod token_bucket;

pub use authorization::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, ClaimValue, DecisionReason,
    NeedsSidecar, RequestAttributes, TokenRefusal, TokenVerifier, UserToken,
};
pub use class_table::ClassTable;
pub use compile_input::{Candidate, CompileInput, EndpointTarget, PeerIdentity, RegionDistance, TableInput};
pub use decision_trace::Step;
pub use fairmesh_balancer::{EndpointStats, LoadReport, Outcome, ReceivedReport};
pub use request::{EndpointPick, Headers, PickError, PickParams, RequestView, RouteDecision};
pub use route_actions::{DirectResponse, RouteActions};
pub use routes::{ROUTE_ARMS, ROUTE_STEPS, RouteArm, RouteNumbers, RouteStep};
pub use service_table::{CandidateNumbers, EndpointRef, Explanation, ServiceNumbers, ServiceTable};
pub use shard_table::{
    Holding, HoldingInterner, Holdings, InvalidTable, SEGMENT_SHARDS, Segment, SegmentBuilder, SegmentMemory,
    ShardLocation, ShardTable,
};
pub use token_bucket::TokenBucket;
