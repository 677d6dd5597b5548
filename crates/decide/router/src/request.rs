use std::sync::Arc;

use fairmesh_model::{KeyRange, Label, Region, Role, ServiceName, ShardId, ShardKey, Share, Timeouts};

use crate::RouteActions;

/// Access to headers, so that routes can match any request type.
pub trait Headers {
    /// Returns the first value of the header `name`, which is in lower case.
    fn get(&self, name: &str) -> Option<&[u8]>;

    /// Whether `matches` holds for any value of the header `name`. Called for each value in turn.
    fn any(&self, name: &str, matches: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        self.get(name).is_some_and(matches)
    }
}

/// Stands for a request without headers.
impl Headers for () {
    fn get(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

/// A list of headers, for tools and tests. Names are in lower case.
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

/// The parts of a request that route conditions compare.
#[derive(Debug)]
pub struct RequestView<'a, H: Headers + ?Sized> {
    /// The authority or `Host` as sent to the server, in any case, with or without port; empty if absent.
    pub host: &'a str,
    /// The path, followed by `?` and the query if any.
    pub path: &'a str,
    /// The method, in upper case.
    pub method: &'a str,
    /// The headers.
    pub headers: &'a H,
    /// Whether the request is a gRPC call.
    pub grpc: bool,
}

/// The decision of the first matching route.
#[derive(Clone, Copy, Debug)]
pub struct RouteDecision<'a> {
    /// The service that receives the call: this one, or a backend of the route's split. The target's own snapshot
    /// picks.
    pub target: &'a ServiceName,
    /// The matching route; `None` for the service's default.
    pub route: Option<&'a Label>,
    /// Position of the route and its backend in [`ServiceTable::route_backends`](crate::ServiceTable::route_backends),
    /// plus one; 0 without a route.
    pub route_backend: u32,
    /// The traffic class, if the route sets one.
    pub class: Option<&'a Label>,
    /// Timeouts of the call.
    pub timeouts: Timeouts,
    /// Whether the route declares calls idempotent.
    pub idempotent: bool,
    /// Route actions other than the choice of a backend.
    pub actions: Option<&'a Arc<RouteActions>>,
}

/// Inputs of a pick, in addition to the snapshot.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickParams<'a> {
    /// The key, for sharded and consistently hashed services.
    pub key: Option<ShardKey>,
    /// The role that the replica must have: the role requested by the call, or otherwise the role of its route.
    /// `None` leaves the choice to the service's policy, which by default accepts any role.
    pub role: Option<&'a Role>,
    /// Indices of the endpoints of earlier attempts of this call. They are picked again only if no other endpoint is
    /// left.
    pub avoid: &'a [u32],
    /// The call's traffic class, which selects shares of a region table.
    pub class: Option<&'a Label>,
    /// A random number shared by all attempts of a call. A region table uses it to draw the call's region.
    pub call_seed: u64,
    /// Whether the call has already made an attempt, so that region tables no longer drop it.
    pub admitted: bool,
    /// The service whose route sends the call here; `None` if the call was addressed to this service itself.
    pub routed_from: Option<&'a ServiceName>,
}

/// The result of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointPick {
    /// Index of the endpoint, to be passed to [`ServiceTable::target`](crate::ServiceTable::target), `begin` and
    /// `finish`.
    pub index: u32,
    /// The shard that holds the key, for sharded services.
    pub shard: Option<ShardId>,
    /// Version of the shard map; 0 without one.
    pub map_version: u64,
    /// Whether only endpoints were left that calls should avoid: draining or lost endpoints, or stopping copies.
    /// Callers count such picks.
    pub last_resort: bool,
    /// Whether the pick was made in panic mode: so many endpoints fail that ejections are ignored. Callers count such
    /// picks.
    pub panic: bool,
}

/// Reason why no endpoint can be picked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No registered endpoint may be called.
    #[error(
        "the service has no serving endpoint; 'fairmesh get endpoints' shows the state of each; start a server, register it with \
         'fairmesh register', or end a drain with 'fairmesh undrain'"
    )]
    NoEndpoints,
    /// All registered endpoints speak plaintext, but the mesh has a trust domain.
    #[error(
        "{count} plaintext endpoint{} in a strict mesh, and no other; register the service with mutual TLS, as 'fairmesh register' does without \
         --plaintext, or write 'mtls: permissive' into its policy",
        if *.count == 1 { "" } else { "s" }
    )]
    PlaintextRefused {
        /// Number of refused endpoints.
        count: usize,
    },
    /// Endpoints exist, but none in a region that the policy lets this caller use.
    #[error(
        "no endpoint that the policy allows for callers in {region}; add one there, or relax localOnly or the last ring"
    )]
    NoneInRegion {
        /// The caller's region.
        region: Region,
    },
    /// A sharded or consistently hashed service was called without a key.
    #[error("the service is called by key and the call has none; set the key or the x-fairmesh-key header")]
    KeyMissing,
    /// The shard map does not cover this key.
    #[error("key {key} is outside {interval}, the interval of the shard map; widen the map or fix the key")]
    KeyOutside {
        /// The key of the call.
        key: ShardKey,
        /// The keys that the map covers.
        interval: KeyRange,
    },
    /// No copy of the shard has the role and can be called by this caller.
    #[error("shard {shard} has no serving replica{} that this caller may use; assign one or request another role",
        .role.as_ref().map(|r| format!(" of role '{r}'")).unwrap_or_default())]
    NoReplica {
        /// The shard.
        shard: ShardId,
        /// The requested role.
        role: Option<Role>,
    },
    /// The region table drops a share of these calls, including this one.
    #[error(
        "calls from {region} are more than can be served: {share} of them are dropped, and this is one; retry later"
    )]
    Dropped {
        /// The caller's region.
        region: Region,
        /// The dropped share of calls.
        share: Share,
    },
    /// A route of another tenant's service sends the call here, but the policy does not consent.
    #[error(
        "its policy accepts no routes from {from}, a service of another tenant; its operator can permit them with \
         'acceptRoutesFrom: [{from}]'"
    )]
    RouteNotAccepted {
        /// The service with the route.
        from: ServiceName,
    },
    /// The service is sharded, but has no shard map yet.
    #[error("the service is sharded and has no shard map yet; apply one")]
    NoShardMap,
}
