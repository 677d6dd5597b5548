use std::sync::Arc;

use fairmesh_model::{KeyRange, Label, Region, Role, ServiceName, ShardId, ShardKey, Timeouts};

use crate::Treatment;

/// Header look-up, so that routes match whatever the caller's request type is.
pub trait Headers {
    /// The first value of the header called `name` (lower case).
    fn get(&self, name: &str) -> Option<&[u8]>;

    /// Whether `sees` is true of any value of the header called `name`, asked of one after the other.
    fn any(&self, name: &str, sees: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.get(name).is_some_and(sees)
    }
}

/// A call without headers.
impl Headers for () {
    fn get(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

/// Headers as a list, for tools and tests; names in lower case.
impl Headers for [(String, String)] {
    fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_bytes())
    }
}

impl Headers for Vec<(String, String)> {
    fn get(&self, name: &str) -> Option<&[u8]> {
        Headers::get(self.as_slice(), name)
    }
}

/// The parts of a request that routes look at.
#[derive(Debug)]
pub struct RequestView<'a, H: Headers + ?Sized> {
    /// The authority or `Host` as the server is told it, in any case, with or without port; empty when there is none.
    pub host: &'a str,
    /// The path, and after `?` the query.
    pub path: &'a str,
    /// The method, upper case.
    pub method: &'a str,
    /// The headers.
    pub headers: &'a H,
    /// Whether it is a gRPC call.
    pub grpc: bool,
}

/// What the first matching route says about a call.
#[derive(Clone, Copy, Debug)]
pub struct Routed<'a> {
    /// The service that gets the call: this one, or an arm of the route's split. Ask that service's snapshot to pick.
    pub target: &'a ServiceName,
    /// The route that matched, or `None` for the service's default.
    pub route: Option<&'a Label>,
    /// The traffic class, where the route tells one.
    pub class: Option<&'a Label>,
    /// How long the call may take.
    pub timeouts: Timeouts,
    /// Whether the route's owner declares that a repeated call does no harm.
    pub idempotent: bool,
    /// What else happens to the call.
    pub treatment: Option<&'a Arc<Treatment>>,
}

/// What a pick depends on beside the snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The key, for sharded and consistently hashed services.
    pub key: Option<ShardKey>,
    /// The role that the replica must have; `None` takes any.
    pub role: Option<&'a Role>,
    /// Indices that this call tried already; one is taken again only when nothing else is left.
    pub avoid: &'a [u32],
}

/// Where a try goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The endpoint, for [`Upstream::target`](crate::Upstream::target), `begin` and `finish`.
    pub index: u32,
    /// The shard that holds the key, for sharded services.
    pub shard: Option<ShardId>,
    /// The version of the shard map that was used; 0 without one.
    pub map_version: u64,
    /// Whether only what should not be called any more was left: draining or lost endpoints, copies that stop. Count it.
    pub last_resort: bool,
    /// Whether so many endpoints answer badly that nobody is avoided for it any more. Count it.
    pub panic: bool,
}

/// Why a call can go nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unroutable {
    /// Nothing is registered that may be called.
    #[error("no endpoint of the service can be called; register one, or see why all are starting")]
    NoEndpoints,
    /// There are endpoints, none where the policy lets this caller go.
    #[error(
        "no endpoint that the policy allows to callers in {region}; add one there, or lift localOnly or the last ring"
    )]
    NoneInRegion {
        /// The caller's region.
        region: Region,
    },
    /// A sharded or consistently hashed service was called without a key.
    #[error("the service is called by key and the call has none; set the key or the x-fairmesh-key header")]
    KeyMissing,
    /// The shard map does not speak for this key.
    #[error("key {key} lies outside {interval}, the keys of the shard map; widen the map or mend the key")]
    KeyOutside {
        /// The key of the call.
        key: ShardKey,
        /// The keys of the map.
        interval: KeyRange,
    },
    /// No copy of the shard can serve the role from here.
    #[error("shard {shard} has no serving replica{} that this caller may use; assign one or ask for another role",
        .role.as_ref().map(|r| format!(" of role '{r}'")).unwrap_or_default())]
    NoReplica {
        /// The shard.
        shard: ShardId,
        /// The role asked for.
        role: Option<Role>,
    },
    /// The service is sharded and nobody has created its map.
    #[error("the service is sharded and has no shard map yet; apply one")]
    NoShardMap,
}
