//! The data model: names, keys and records of the routing information base (RIB), and their validation.
//!
//! All other crates use these types; this crate depends on no other crate of the workspace and does no I/O. A *spec*
//! is a document as written (serde, unknown fields are rejected). A *plan* is the validated value, and routers see
//! only plans. Using the protobuf types everywhere was rejected: they can represent invalid values, so every reader
//! would have to validate again.

pub mod access;
pub mod arith;
mod duration;
mod endpoint;
mod error;
mod gateway;
mod health;
mod host_port;
mod identity;
mod name;
mod plural;
mod policy;
pub mod rate_limit_quota;
mod record;
mod revocation;
mod route;
mod service;
mod shard;
#[cfg(feature = "spec")]
pub mod spec;
mod spiffe;
pub mod suggestion;
mod token_issuers;
mod topology;
mod traffic;
mod trust_bundle;
mod workload;

pub use duration::{read_duration, write_duration};
pub use endpoint::{AddressPrefix, Capacities, Capacity, FULL_SPEED, Hosts};
pub use endpoint::{Endpoint, EndpointState, FULL_WEIGHT, MAX_WEIGHT, check_reachable, is_of_link};
pub use error::Invalid;
pub use gateway::{
    ConnectionLimit, GatewayBackend, GatewayQuota, GatewayService, Placement, PlacementPin, Throttle,
};
pub use health::{
    ALL_CALLS, CallerView, ElectedChecker, HealthCheck, Judgement, MAX_CAUSE, Probe, ServingPower, Standing,
    Verdict, VerdictEffect, Verdicts, bounded_cause, share_calls,
};
pub use host_port::{HostPort, host_name};
pub use identity::Identity;
pub use name::{Cluster, HostType, InstanceId, Label, Region, Role, ServiceName, Tenant, TrustDomain, Zone};
pub use plural::{Counted, counted};
pub use policy::{
    AcceptedTokens, Authorization, AuthorizationMode, AuthorizationRule, CallerId, CallerMatch, Condition,
    ConditionSubject, DefaultAuthorization, ValueMatch,
};
pub use policy::{Balancing, BalancingPolicy, LoadSignal, Outliers, Score};
pub use policy::{CallKind, Timeouts};
pub use policy::{
    DefaultsByScope, DefaultsScope, FieldOrigin, InheritedDefaults, PolicyDefaults, PolicyField,
};
pub use policy::{
    KeySource, LocalTransport, Locality, MAX_KEY_SOURCES, MtlsMode, Policy, Retries, Ring, RouteSource,
};
pub use record::Record;
pub use record::{Audit, KindHistory, KindRules, KindScope, Readers, RecordKind, RecordList, Writers};
pub use record::{ChunkHash, Prefix, RecordKey, ShardPart};
pub use record::{Cursor, Revision, StoreId};
pub use revocation::*;
pub use route::{
    Abort, Actions, Backend, ClientMatch, Delay, GrpcMatch, HeaderEdits, HeaderMatch, HostMatch,
    MAX_CONDITIONS, MAX_EXPRESSION_BYTES, MAX_ROUTES, Match, Mirror, PathMatch, PathRewrite, Pattern,
    QueryMatch, RateLimit, Redirect, Rewrite, Route, Scope, Segment, Share, Template, TextMatch,
    alternatives_cover, within_bounds,
};
pub use service::{Protocol, Service, ServiceKind};
pub use shard::{KeyRange, ShardKey};
pub use shard::{MAX_REPORTED_SHARDS, Replica, ReplicaState, Shard, ShardId, ShardMap, ShardMove};
pub use spiffe::{MeshRole, SpiffeId, SpiffePath};
pub use token_issuers::*;
pub use topology::*;
pub use traffic::*;
pub use trust_bundle::*;
pub use workload::*;
