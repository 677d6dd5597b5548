//! The words of Fairmesh: names, keys, records of the routing information base, and what makes each of them valid.
//!
//! Every other crate speaks in these types; this one depends on nothing of ours and does no I/O. A *spec* is what a
//! person wrote (serde, unknown fields refused); a *plan* is what validation made of it, and only plans reach routers.
//! The alternative, using the protobuf types everywhere, was rejected: they cannot make an invalid value unrepresentable,
//! and every reader would have to validate again.

pub mod arith;
mod authority;
mod balancing;
mod capacity;
mod counted;
mod endpoint;
mod error;
mod health;
mod hosts;
mod identity;
mod key;
mod location;
mod name;
pub mod nearest;
mod policy;
pub mod quota;
mod record;
mod revision;
mod rib_key;
mod route;
mod service;
mod shard;
pub mod spec;
mod timeouts;
mod topology;

pub use authority::{HostPort, host_name};
pub use balancing::{Balancing, BalancingPolicy, LoadSignal, Outliers, Score};
pub use capacity::{Capacities, Capacity};
pub use counted::{Counted, counted};
pub use endpoint::{Endpoint, EndpointState, FULL_WEIGHT, MAX_WEIGHT};
pub use error::Invalid;
pub use health::{Force, HealthCheck, Judged, MAX_CAUSE, Probe, Verdict, Verdicts, bounded_cause};
pub use hosts::{AddressPrefix, FULL_SPEED, Hosts};
pub use identity::Identity;
pub use key::{KeyRange, ShardKey};
pub use location::Location;
pub use name::{Cluster, HostType, InstanceId, Label, Region, Role, ServiceName, Tenant, Zone};
pub use policy::{KeySource, Locality, Policy, Retries, Ring};
pub use record::Record;
pub use revision::{Cursor, Revision, StoreId};
pub use rib_key::{ChunkHash, HistoryKind, Prefix, RecordKey, ShardPart};
pub use route::{
    Abort, Actions, ClientMatch, Delay, GrpcMatch, HeaderEdits, HeaderMatch, HostMatch, MAX_CONDITIONS,
    MAX_EXPRESSION_BYTES, MAX_ROUTES, Match, Mirror, PathMatch, PathRewrite, Pattern, QueryMatch, RateLimit,
    Redirect, Rewrite, Route, Scope, Segment, Share, Target, Template, TextMatch, within_bounds,
};
pub use service::{Protocol, Service, ServiceKind};
pub use shard::{Replica, ReplicaState, SHARDS_TOLD, Shard, ShardId, ShardMap, ShardMove};
pub use timeouts::{Kind as CallKind, Timeouts};
pub use topology::{RegionInfo, Regions, RoundTrips};
