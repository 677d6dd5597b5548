use std::{sync::Arc, time::Duration};

use fairmesh_balancer::{CandidateSet, EndpointStats, IndexPin, Outcome, PickConfig};
use fairmesh_model::{
    BalancingPolicy, CallerId, DefaultAuthorization, InstanceId, KeyRange, Label, Policy, Protocol, Region,
    Role, Scope, ServiceName, ShardKey, Standing, Timeouts, Verdict,
};

use crate::{
    AuthorizationDecision, AuthorizationRequest, AuthorizationTable, Candidate, CompileInput, DirectResponse,
    EndpointPick, EndpointTarget, Headers, LoadReport, PickError, PickParams, ReceivedReport, RegionDistance,
    RequestView, RouteDecision, ShardTable, Step, TokenRefusal, TokenVerifier, UserToken,
    locality::RegionRanks, request_key, routes::Routes, token_bucket::TokenBucket,
};

mod call_division;
mod compile;
mod decide;
mod eligible_copies;
mod endpoint_ref;
mod explain;
mod pick_by_table;
mod pick_past_panic;
mod region_table;
mod service_numbers;
mod zones;

use call_division::Division;
pub use endpoint_ref::EndpointRef;
use region_table::CompiledTable;
pub use service_numbers::{CandidateNumbers, ServiceNumbers};

/// The compiled routing table of one service for one caller. Immutable except for the counters.
///
/// Fields that every call reads come first, in this order, so that they occupy few cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ServiceTable {
    endpoint_stats: Arc<EndpointStats>,
    pick_config: PickConfig,
    routes: Routes,
    /// The rate limit of the service.
    bucket: Option<Arc<TokenBucket>>,
    timeouts: Timeouts,
    /// Lowest rank of endpoints that calls should avoid.
    last_resort: u32,
    /// The division of calls among regions or rings, if any.
    division: Option<Box<Division>>,
    selection: Selection,
    name: ServiceName,
    /// Hash of the caller, salted with the service.
    client_hash: u64,
    /// Endpoint targets by index. Gaps are the indices of removed instances.
    targets: Box<[Option<Arc<EndpointTarget>>]>,
    /// Endpoint statuses, parallel to `targets`.
    statuses: Box<[EndpointStatus]>,
    policy: Policy,
    /// The authorization rules, if this process authorizes calls instead of servers.
    authorization: Option<Arc<AuthorizationTable>>,
    protocol: Protocol,
    locality: RegionRanks,
    /// Endpoints that are refused because they speak plaintext in a strict mesh.
    refused: Box<[InstanceId]>,
    /// Regions in which verdicts and expired leases affect more than half of the power.
    contested: Box<[(Region, Standing)]>,
    /// The error if no endpoint can be called.
    no_endpoint_error: PickError,
    _index_pin: IndexPin,
}

/// How the candidates of a call are selected.
#[derive(Debug)]
enum Selection {
    /// A call may go to any endpoint, by rank.
    Replicated {
        /// Candidates of the lowest rank, if any.
        nearest: Tier<CandidateSet>,
        /// Candidates of the other ranks.
        further: Box<[Tier<CandidateSet>]>,
    },
    /// Rendezvous hashing chooses by the call's key, among the endpoints of each rank.
    Hashed(Box<[Tier<Hashed>]>),
    /// The call goes to a holder of its key's shard; `None` until there is a shard map.
    Sharded(Option<Sharding>),
}

/// The candidates of one rank.
#[derive(Debug)]
#[repr(C)]
struct Tier<T> {
    rank: u32,
    /// Number of endpoints with this rank before subsetting.
    total: u32,
    candidates: T,
}

/// Endpoints for consistent hashing.
#[derive(Debug)]
struct Hashed {
    nodes: Box<[Node]>,
    /// Whether all endpoints have equal weights.
    equal: bool,
}

/// An endpoint for consistent hashing.
#[derive(Clone, Copy, Debug)]
struct Node {
    hash: u64,
    weight: u32,
    index: u32,
}

/// The shard map, with its holdings resolved for this caller.
#[derive(Debug)]
struct Sharding {
    shards: Arc<ShardTable>,
    /// Holders by the index of their holding.
    holders: Box<[Holder]>,
    roles: Box<[Role]>,
    /// Indices of the endpoints with the lowest rank.
    nearest: Box<[u32]>,
}

/// A holding resolved for this caller; [`Holder::UNAVAILABLE`] if it cannot be called.
#[derive(Clone, Copy, Debug)]
struct Holder {
    rank: u32,
    role: u32,
    index: u32,
    weight: u32,
}

/// State of an endpoint as seen by this caller.
#[derive(Clone, Debug)]
struct EndpointStatus {
    distance: RegionDistance,
    in_subset: bool,
    verdict: Option<Verdict>,
}

/// Explains why a call goes to its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Steps that led to the endpoint, in the order of the decision.
    pub steps: Vec<Step>,
    /// The service that receives the call.
    pub target: ServiceName,
    /// The call's key: given by the caller, or read from the request as the policy says.
    pub key: Option<ShardKey>,
    /// The replica role: the role requested by the call, or otherwise the role of its route.
    pub role: Option<Role>,
    /// The traffic class of the call, if its route sets one.
    pub class: Option<Label>,
    /// The direct response, if it replaces a pick.
    pub direct_response: Option<DirectResponse>,
    /// The pick or its error. `None` for a [direct response](Self::direct_response), or if the call goes to another
    /// service, whose snapshot explains the pick ([`ServiceTable::explain_pick`]).
    pub picked: Option<Result<EndpointPick, Box<PickError>>>,
}

impl ServiceTable {
    /// Compiles the records. `endpoint_stats` contain the state of the endpoints across snapshots. Parts that are
    /// unchanged since the previous snapshot are shared with it.
    pub fn compile(
        input: &CompileInput<'_>,
        endpoint_stats: &Arc<EndpointStats>,
        previous: Option<&Self>,
    ) -> Self {
        let before = previous.map(|previous| &previous.routes);
        let routes = Routes::compile(&input.policy.routes, input.client_id, before);
        let authorization = compile::authorization(input);
        compile::compile(input, endpoint_stats, previous, (routes, authorization))
    }

    /// Like [`compile`](Self::compile), after changes of records other than the policy: shares the compiled routes and
    /// rules of `previous`. `input.policy` must be the policy of that snapshot; its routes and rules are not read, so
    /// [`policy`](Self::policy) suffices.
    pub fn recompile(input: &CompileInput<'_>, endpoint_stats: &Arc<EndpointStats>, previous: &Self) -> Self {
        let compiled = (previous.routes.clone(), previous.authorization.clone());
        compile::compile(input, endpoint_stats, Some(previous), compiled)
    }

    /// Name of the service.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// The caller's region for which the table was compiled.
    pub fn home(&self) -> &Region {
        self.locality.home()
    }

    /// The policy without its routes, authorization rules and region shares, which are compiled.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The application protocol of the endpoints.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The shard map in use.
    pub fn shards(&self) -> Option<&Arc<ShardTable>> {
        match &self.selection {
            Selection::Sharded(Some(sharding)) => Some(&sharding.shards),
            _ => None,
        }
    }

    /// Returns the range of keys that are routed like this one: the endpoint may receive calls for all of them.
    pub fn equivalent_keys(&self, key: ShardKey) -> KeyRange {
        let alone = KeyRange { first: key, last: key };
        match &self.selection {
            Selection::Replicated { .. } => KeyRange::ALL,
            Selection::Hashed(_) | Selection::Sharded(None) => alone,
            Selection::Sharded(Some(Sharding { shards, .. })) => {
                shards.locate(key).map_or(alone, |located| shards.range(&located))
            }
        }
    }

    /// Returns the service that receives the call, and its settings. The first matching route wins, as in Envoy. No
    /// other service counts as [empty](Self::route_past_empty).
    #[inline]
    pub fn route<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>, seed: u64) -> RouteDecision<'_> {
        self.route_past_empty(request, seed, |_| false)
    }

    /// Like [`route`](Self::route), for routes that redistribute the calls of empty backends. `is_empty` tells whether
    /// another service has [no endpoint](Self::is_empty).
    #[inline]
    pub fn route_past_empty<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        seed: u64,
        is_empty: impl Fn(&ServiceName) -> bool,
    ) -> RouteDecision<'_> {
        self.decide_route(request, seed, is_empty, &mut ())
    }

    /// Whether calls have no endpoint that they should use: either this caller may use none, or all that it may use
    /// are draining or lost.
    pub fn is_empty(&self) -> bool {
        let first = match &self.selection {
            Selection::Replicated { nearest, .. } => (nearest.total > 0).then_some(nearest.rank),
            Selection::Hashed(tiers) => tiers.first().map(|tier| tier.rank),
            Selection::Sharded(Some(sharding)) => sharding.holders.iter().map(|holder| holder.rank).min(),
            Selection::Sharded(None) => None,
        };
        first.is_none_or(|rank| rank >= self.last_resort)
    }

    /// All routes with each of their backends, in the order of positions in decisions.
    pub fn route_backends(&self) -> impl Iterator<Item = (&Label, &ServiceName)> {
        self.routes.route_backends(&self.name)
    }

    /// The other services in splits whose routes redistribute the calls of empty backends.
    pub fn redistributed_backends(&self) -> impl Iterator<Item = &ServiceName> {
        self.routes.redistributed_backends().filter(|name| **name != self.name)
    }

    /// Whether the matching route names the method CONNECT, which allows tunnels. A route for any method does not
    /// count.
    pub fn names_connect<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> bool {
        self.routes.find(request).is_some_and(|(_, rule)| rule.names_connect())
    }

    /// Whether the conditions of a route name this host, which is given without port and trailing dot.
    pub fn names_host(&self, host: &str) -> bool {
        self.routes.names_host(host)
    }

    /// Admits a call at `now` if the rate limits of the service and the route allow it, and counts the call.
    /// Otherwise the error is the time until the limits would admit it.
    #[inline]
    pub fn admit(&self, routed: &RouteDecision<'_>, now: u64) -> Result<(), Duration> {
        match (&self.bucket, routed.actions) {
            (None, None) => Ok(()),
            (bucket, actions) => {
                let route = actions.and_then(|actions| actions.bucket());
                route.map_or(Ok(()), |route| route.try_acquire(now))?;
                let admitted = bucket.as_ref().map_or(Ok(()), |bucket| bucket.try_acquire(now));
                if let (Err(_), Some(route)) = (&admitted, route) {
                    route.refund();
                }
                admitted
            }
        }
    }

    /// Mesh-wide limits with the names of their routes. The limit of the service itself has an empty name.
    pub fn mesh_limits(&self) -> impl Iterator<Item = (&str, &Arc<TokenBucket>)> {
        let own = self.bucket.iter().map(|bucket| ("", bucket));
        own.chain(self.routes.buckets()).filter(|(_, bucket)| bucket.limit().scope == Scope::Mesh)
    }

    /// The key of a call without an explicit key, if the service is called by key and its policy names key sources.
    #[inline]
    pub fn key<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<ShardKey> {
        match &self.selection {
            Selection::Replicated { .. } => None,
            Selection::Hashed(_) | Selection::Sharded(_) => {
                request_key::read_first(&self.policy.key, request)
            }
        }
    }

    /// Whether the policy allows a caller to make this call. `default` decides if no rule does. A table compiled
    /// without [rules](CompileInput::authorizes_callers) allows none.
    pub fn authorize(
        &self,
        request: &AuthorizationRequest<'_>,
        default: DefaultAuthorization,
    ) -> AuthorizationDecision<'_> {
        let Some(table) = &self.authorization else {
            return AuthorizationDecision::by_default(DefaultAuthorization::Deny);
        };
        table.decide(request).or_default(default)
    }

    /// Returns the token of a request, if the policy accepts tokens; see [`AuthorizationTable::read_token`].
    ///
    /// # Errors
    /// [`TokenRefusal`].
    pub fn read_token(
        &self,
        headers: &dyn Headers,
        verifier: &dyn TokenVerifier,
    ) -> Result<Option<UserToken>, TokenRefusal> {
        self.authorization.as_ref().map_or(Ok(None), |table| table.read_token(headers, verifier))
    }

    /// Like [`authorize`](Self::authorize), for all calls of a connection whose requests are not parsed.
    pub fn authorize_connection(
        &self,
        caller: &CallerId,
        default: DefaultAuthorization,
    ) -> AuthorizationDecision<'_> {
        let Some(table) = &self.authorization else {
            return AuthorizationDecision::by_default(DefaultAuthorization::Deny);
        };
        table.decide_connection(Some(caller)).or_default(default)
    }

    /// Checks that routes of the service `from` may send calls here. Services of other tenants need the consent of this
    /// service's policy.
    ///
    /// # Errors
    /// [`PickError::RouteNotAccepted`].
    pub fn accept_routes_from(&self, from: &ServiceName) -> Result<(), PickError> {
        match self.policy.accepts_routes_from(&self.name, from) {
            true => Ok(()),
            false => Err(PickError::RouteNotAccepted { from: from.clone() }),
        }
    }

    /// Picks the endpoint of one attempt. `now` is in nanoseconds of any monotonic clock, which must be the clock
    /// passed to `finish`.
    ///
    /// # Errors
    /// No endpoint can be called. The error is boxed, so that the pick is returned in registers.
    #[inline]
    pub fn pick(&self, params: &PickParams<'_>, now: u64, seed: u64) -> Result<EndpointPick, Box<PickError>> {
        self.decide(params, now, seed, &mut ())
    }

    /// Counts an attempt that begins at `index`. Each attempt needs one [`finish`](Self::finish), on this or any later
    /// snapshot of the service.
    #[inline]
    pub fn begin(&self, index: u32) {
        self.endpoint_stats.begin(index);
        if self.pick_config.policy() == BalancingPolicy::RoundRobin {
            self.endpoint_stats.advance_round_robin();
        }
    }

    /// Counts the end of an attempt and records its outcome.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish(index, outcome, now);
    }

    /// Records a load report that arrived at `now` in a successful response.
    #[inline]
    pub fn record_report(&self, index: u32, load: LoadReport, now: u64) {
        self.endpoint_stats.record_report(index, load, now);
    }

    /// Like [`record_report`](Self::record_report), for a failed response, which earns no reward.
    pub fn record_unrewarded_report(&self, index: u32, load: LoadReport, now: u64) {
        self.endpoint_stats.record_unrewarded_report(index, load, now);
    }

    /// Records the latency of a response that arrived at `now`, both in nanoseconds, for policies that use it
    /// ([`EndpointTarget::by_latency`]).
    pub fn record_latency(&self, index: u32, latency: u64, now: u64) {
        self.endpoint_stats.record_latency(index, latency, now);
    }

    /// The last load report of the endpoint at `index`.
    #[inline]
    pub fn last_report(&self, index: u32) -> Option<ReceivedReport> {
        self.endpoint_stats.last_report(index)
    }

    /// Returns the endpoint at an index that this snapshot picked.
    ///
    /// # Panics
    /// This snapshot has no endpoint with that index.
    #[inline]
    pub fn target(&self, index: u32) -> &Arc<EndpointTarget> {
        match self.find_target(index) {
            Some(target) => target,
            None => panic!("index {index} was not picked from this snapshot"),
        }
    }

    /// Returns the endpoint at an index picked by any snapshot of the service; `None` if it was removed.
    #[inline]
    pub fn find_target(&self, index: u32) -> Option<&Arc<EndpointTarget>> {
        self.targets.get(index as usize)?.as_ref()
    }

    /// Indices of the endpoints that share calls by load while all are healthy: those of the lowest rank, or of the
    /// region table's regions. Empty if only the key decides.
    pub fn nearest(&self) -> &[u32] {
        if let Some(table) = self.region_table() {
            return &table.members;
        }
        match &self.selection {
            Selection::Replicated { nearest, .. } => nearest.candidates.as_candidates().indices(),
            Selection::Sharded(Some(sharding)) => &sharding.nearest,
            Selection::Hashed(_) | Selection::Sharded(None) => &[],
        }
    }

    /// Whether a region table divides calls among regions.
    pub fn has_region_table(&self) -> bool {
        self.region_table().is_some()
    }

    fn region_table(&self) -> Option<&CompiledTable> {
        match self.division.as_deref() {
            Some(Division::Table(table)) => Some(table),
            Some(Division::Rings(_)) | None => None,
        }
    }

    /// Regions in which verdicts and expired leases affect more than half of the power, and how this caller treats
    /// them.
    pub fn contested_regions(&self) -> &[(Region, Standing)] {
        &self.contested
    }

    /// The regions in which verdicts and expired leases are ignored.
    pub fn panicking_regions(&self) -> impl Iterator<Item = &Region> {
        let ignored = self.contested.iter().filter(|(_, standing)| *standing != Standing::Believed);
        ignored.map(|(region, _)| region)
    }

    /// Whether [`compile`](Self::compile) would now judge a contested region differently, because of this caller's own
    /// calls there. Callers with contested regions check this every second.
    pub fn is_evidence_outdated(&self, input: &CompileInput<'_>) -> bool {
        !self.contested.is_empty()
            && *self.contested != *compile::judge(input, &self.endpoint_stats).contested
    }

    /// Refused endpoints: they speak plaintext in a mesh with a trust domain, and the policy does not set `mtls:
    /// permissive`.
    pub fn refused(&self) -> &[InstanceId] {
        &self.refused
    }

    /// All endpoints by index, including endpoints that may not be called.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        (0..).zip(self.targets.iter().zip(&self.statuses)).filter_map(|(index, (target, status))| {
            Some(Candidate {
                index,
                target: target.as_ref()?,
                distance: &status.distance,
                in_subset: status.in_subset,
                verdict: status.verdict.as_ref(),
                outstanding: self.endpoint_stats.outstanding(index),
                streams: self.endpoint_stats.streams(index),
                consecutive_failures: self.endpoint_stats.consecutive_failures(index),
                ejected_until: self.endpoint_stats.ejected_until(index),
                report: self.endpoint_stats.last_report(index),
            })
        })
    }

    /// Start and end of the current ejection of the endpoint at `index`, by the clock of `now`.
    pub fn ejection(&self, index: u32, now: u64) -> Option<(u64, u64)> {
        self.endpoint_stats.ejection(index, now)
    }

    /// Number of endpoints that are ejected at `now`.
    pub fn ejected(&self, now: u64) -> usize {
        // Most services have no suspects, and some have many endpoints, so this check avoids a scan.
        if self.endpoint_stats.suspects() == 0 {
            return 0;
        }
        let known = (0..).zip(self.targets.iter()).filter(|(_, target)| target.is_some());
        known.filter(|(index, _)| self.ejection(*index, now).is_some()).count()
    }

    /// Decides like [`route`](Self::route) and [`pick`](Self::pick), and records the reasons.
    pub fn explain<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        params: &PickParams<'_>,
        now: u64,
        seed: u64,
    ) -> Explanation {
        self.explain_past_empty(request, params, (now, seed), &[])
    }

    /// Like [`explain`](Self::explain), with [`route_past_empty`](Self::route_past_empty). `empty` are the services
    /// among [`redistributed_backends`](Self::redistributed_backends) without endpoints. `at` is the time and the seed.
    pub fn explain_past_empty<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        params: &PickParams<'_>,
        at: (u64, u64),
        empty: &[ServiceName],
    ) -> Explanation {
        explain::explain(self, request, params, at, empty)
    }

    /// Decides like [`route_past_empty`](Self::route_past_empty) and records the reasons, without a pick.
    pub fn explain_route<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        params: &PickParams<'_>,
        at: (u64, u64),
        empty: &[ServiceName],
    ) -> Explanation {
        explain::explain_route(self, request, params, at, empty)
    }

    /// Decides like [`pick`](Self::pick) and records the reasons, for a call sent here by another service's route.
    pub fn explain_pick(&self, params: &PickParams<'_>, now: u64, seed: u64) -> Explanation {
        explain::explain_pick(self, params, now, seed)
    }
}

#[cfg(test)]
mod tests;
