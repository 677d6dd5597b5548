use std::{sync::Arc, time::Duration};

use fairmesh_balancer::{CandidateSet, EndpointStats, IndexPin, Outcome, PickConfig};
use fairmesh_model::{
    BalancingPolicy, KeyRange, Policy, Protocol, Region, Role, Scope, ServiceName, ShardKey, Timeouts,
    Verdict,
};

use crate::{
    Ask, Candidate, EndpointTarget, Facts, Headers, Instead, LoadReport, Picked, Reach, ReceivedReport,
    RequestView, Routed, Shards, Step, Unroutable, bucket::Bucket, horizon::Horizon, key, routes::Routes,
};

mod compile;
mod decide;
mod explain;
mod held;

pub use held::Held;

/// Everything that this client needs to decide about calls to one service: immutable but for the counts.
///
/// What a call needs comes first and in this order, so that it lies in few cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Upstream {
    endpoint_stats: Arc<EndpointStats>,
    pick_config: PickConfig,
    routes: Routes,
    /// Counts calls against the limit of the service.
    bucket: Option<Arc<Bucket>>,
    timeouts: Timeouts,
    /// Ranks from here on should rather not be called.
    last_resort: u32,
    kind: Kind,
    name: ServiceName,
    /// The caller's hash, salted with the service.
    chooser: u64,
    /// By index; gaps are indices of instances that are gone.
    targets: Box<[Option<Arc<EndpointTarget>>]>,
    /// Parallel to `targets`.
    standings: Box<[Standing]>,
    policy: Policy,
    protocol: Protocol,
    horizon: Horizon,
    /// The regions whose verdicts are ignored.
    panics: Box<[Region]>,
    /// What to say when no endpoint can be called at all.
    nothing: Unroutable,
    _index_pin: IndexPin,
}

/// How candidates are found.
#[derive(Debug)]
enum Kind {
    /// Any of the endpoints, by rank.
    Replicated {
        /// The lowest rank, where there is any.
        nearest: Tier<CandidateSet>,
        /// The others.
        further: Box<[Tier<CandidateSet>]>,
    },
    /// The endpoint that the key's hash ranks first, by rank.
    Hashed(Box<[Tier<Hashed>]>),
    /// Those that hold the key's shard; `None` while nobody has created the map.
    Sharded(Option<Sharding>),
}

/// The candidates of one rank.
#[derive(Debug)]
#[repr(C)]
struct Tier<T> {
    rank: u32,
    /// How many there were before the subset was taken.
    of: u32,
    candidates: T,
}

/// Endpoints for consistent hashing.
#[derive(Debug)]
struct Hashed {
    nodes: Box<[Node]>,
    /// Whether all weights are equal.
    equal: bool,
}

/// An endpoint for consistent hashing.
#[derive(Clone, Copy, Debug)]
struct Node {
    hash: u64,
    weight: u32,
    index: u32,
}

/// The shard map, and what its holdings mean to this caller.
#[derive(Debug)]
struct Sharding {
    shards: Arc<Shards>,
    /// By holding.
    holders: Box<[Holder]>,
    roles: Box<[Role]>,
    /// The endpoints of the lowest rank.
    nearest: Box<[u32]>,
}

/// One holding: [`Holder::NOBODY`] where it cannot be called.
#[derive(Clone, Copy, Debug)]
struct Holder {
    rank: u32,
    role: u32,
    index: u32,
    weight: u32,
}

/// How one endpoint stands to this caller.
#[derive(Clone, Debug)]
struct Standing {
    reach: Reach,
    in_subset: bool,
    verdict: Option<Verdict>,
}

/// Why a call goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reasons, in the order of the decision.
    pub steps: Vec<Step>,
    /// The service that gets the call.
    pub target: ServiceName,
    /// The key of the call: the one given, or what the policy reads in the request.
    pub key: Option<ShardKey>,
    /// What the caller gets although nothing is chosen.
    pub instead: Option<Instead>,
    /// The choice, or why there is none; `None` when the caller gets something [`instead`](Self::instead), and when the call
    /// goes to another service, whose snapshot then explains ([`Upstream::explain_pick`]).
    pub picked: Option<Result<Picked, Box<Unroutable>>>,
}

impl Upstream {
    /// Compiles the records. `endpoint_stats` hold what is known of the service's endpoints, for all its snapshots; what stayed as
    /// it was in `previous`, the snapshot before, is shared with it.
    pub fn compile(facts: &Facts<'_>, endpoint_stats: &Arc<EndpointStats>, previous: Option<&Self>) -> Self {
        compile::compile(facts, endpoint_stats, previous)
    }

    /// The service.
    pub fn name(&self) -> &ServiceName {
        &self.name
    }

    /// The region of the caller for whom it was compiled.
    pub fn home(&self) -> &Region {
        self.horizon.home()
    }

    /// Its policy, but for the routes.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// What its endpoints speak.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The shard map in use.
    pub fn shards(&self) -> Option<&Arc<Shards>> {
        match &self.kind {
            Kind::Sharded(Some(sharding)) => Some(&sharding.shards),
            _ => None,
        }
    }

    /// The keys that are as good as this one: what is picked by it may get the calls of all of them.
    pub fn alike(&self, key: ShardKey) -> KeyRange {
        let alone = KeyRange { first: key, last: key };
        match &self.kind {
            Kind::Replicated { .. } => KeyRange::ALL,
            Kind::Hashed(_) | Kind::Sharded(None) => alone,
            Kind::Sharded(Some(Sharding { shards, .. })) => {
                shards.locate(key).map_or(alone, |located| shards.range(&located))
            }
        }
    }

    /// Which service gets the call and under which rules; the first matching route wins, as in Envoy.
    #[inline]
    pub fn route<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>, seed: u64) -> Routed<'_> {
        self.decide_route(request, seed, &mut ())
    }

    /// Whether the route of a request names the method CONNECT, which allows tunnels where nothing else does; a route for any method
    /// does not.
    pub fn names_connect<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> bool {
        self.routes.find(request).is_some_and(|(_, rule)| rule.names_connect())
    }

    /// Whether a route names this host, which has neither a port nor a dot at its end, among those that it matches.
    pub fn names_host(&self, host: &str) -> bool {
        self.routes.name_host(host)
    }

    /// Whether the limits of the service and of the route let a call through at `now`, which then counts; the error is how
    /// long until they would.
    #[inline]
    pub fn admit(&self, routed: &Routed<'_>, now: u64) -> Result<(), Duration> {
        match (&self.bucket, routed.treatment) {
            (None, None) => Ok(()),
            (bucket, treatment) => {
                let route = treatment.and_then(|treatment| treatment.bucket());
                route.map_or(Ok(()), |route| route.take(now))?;
                let admitted = bucket.as_ref().map_or(Ok(()), |bucket| bucket.take(now));
                if let (Err(_), Some(route)) = (&admitted, route) {
                    route.give_back();
                }
                admitted
            }
        }
    }

    /// The limits that hold for the whole mesh, with the routes that they are of; that of the service has no name.
    pub fn mesh_limits(&self) -> impl Iterator<Item = (&str, &Arc<Bucket>)> {
        let own = self.bucket.iter().map(|bucket| ("", bucket));
        own.chain(self.routes.buckets()).filter(|(_, bucket)| bucket.limit().scope == Scope::Mesh)
    }

    /// The key of a call that names none, where the service is called by key and its policy says where to read it.
    #[inline]
    pub fn key<H: Headers + ?Sized>(&self, request: &RequestView<'_, H>) -> Option<ShardKey> {
        match &self.kind {
            Kind::Replicated { .. } => None,
            Kind::Hashed(_) | Kind::Sharded(_) => key::read(self.policy.key.as_ref()?, request),
        }
    }

    /// The endpoint for one try. `now` is nanoseconds of any monotonic clock, the one that `finish` gets too.
    ///
    /// # Errors
    /// When nothing can be called; boxed, so that a choice comes back in registers.
    #[inline]
    pub fn pick(&self, ask: &Ask<'_>, now: u64, seed: u64) -> Result<Picked, Box<Unroutable>> {
        self.decide(ask, now, seed, &mut ())
    }

    /// Counts a try that begins at `index`. Every call is followed by one of [`finish`](Self::finish), on this
    /// snapshot or any later one of the service.
    #[inline]
    pub fn begin(&self, index: u32) {
        self.endpoint_stats.begin(index);
        if self.pick_config.policy() == BalancingPolicy::RoundRobin {
            self.endpoint_stats.advance_round_robin();
        }
    }

    /// Counts the end of a try and learns from its outcome.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        self.endpoint_stats.finish(index, outcome, now);
    }

    /// Keeps what the endpoint at `index` said of its load in a good answer that came at `now`.
    #[inline]
    pub fn report(&self, index: u32, load: LoadReport, now: u64) {
        self.endpoint_stats.record_report(index, load, now);
    }

    /// As [`report`](Self::report), in an answer that is a failure of the server's: it finished no request.
    pub fn report_unearned(&self, index: u32, load: LoadReport, now: u64) {
        self.endpoint_stats.record_unrewarded_report(index, load, now);
    }

    /// Keeps how long the endpoint at `index` took for an answer that came at `now`, both in nanoseconds, for policies that go
    /// by it ([`EndpointTarget::by_latency`]).
    pub fn observe(&self, index: u32, latency: u64, now: u64) {
        self.endpoint_stats.record_latency(index, latency, now);
    }

    /// What the endpoint at `index` last said of its load, and when.
    #[inline]
    pub fn reported(&self, index: u32) -> Option<ReceivedReport> {
        self.endpoint_stats.last_report(index)
    }

    /// The endpoint at an index that this snapshot picked.
    ///
    /// # Panics
    /// When this snapshot knows no endpoint of that index.
    #[inline]
    pub fn target(&self, index: u32) -> &Arc<EndpointTarget> {
        match self.known(index) {
            Some(target) => target,
            None => panic!("index {index} was not picked from this snapshot"),
        }
    }

    /// The endpoint at an index that any snapshot of the service picked, or `None` when it is gone since.
    #[inline]
    pub fn known(&self, index: u32) -> Option<&Arc<EndpointTarget>> {
        self.targets.get(index as usize)?.as_ref()
    }

    /// The endpoints that share calls by their load while nothing speaks against them, by index: those of the lowest rank;
    /// none where the key alone decides.
    pub fn nearest(&self) -> &[u32] {
        match &self.kind {
            Kind::Replicated { nearest, .. } => nearest.candidates.as_candidates().indices(),
            Kind::Sharded(Some(sharding)) => &sharding.nearest,
            Kind::Hashed(_) | Kind::Sharded(None) => &[],
        }
    }

    /// The regions in which what active checks found is ignored, since it speaks against more than half of what serves there.
    pub fn panics(&self) -> &[Region] {
        &self.panics
    }

    /// Every endpoint known, those that may not be called included, by index.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate<'_>> {
        (0..).zip(self.targets.iter().zip(&self.standings)).filter_map(|(index, (target, standing))| {
            Some(Candidate {
                index,
                target: target.as_ref()?,
                reach: &standing.reach,
                in_subset: standing.in_subset,
                verdict: standing.verdict.as_ref(),
                outstanding: self.endpoint_stats.outstanding(index),
                streams: self.endpoint_stats.streams(index),
                failures: self.endpoint_stats.consecutive_failures(index),
                penalised_until: self.endpoint_stats.ejected_until(index),
                report: self.endpoint_stats.last_report(index),
            })
        })
    }

    /// Decides as [`route`](Self::route) and [`pick`](Self::pick) do, and says why.
    pub fn explain<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        ask: &Ask<'_>,
        now: u64,
        seed: u64,
    ) -> Explanation {
        explain::explain(self, request, ask, now, seed)
    }

    /// Decides as [`route`](Self::route) does, and says why; nothing is picked.
    pub fn explain_route<H: Headers + ?Sized>(
        &self,
        request: &RequestView<'_, H>,
        ask: &Ask<'_>,
        now: u64,
        seed: u64,
    ) -> Explanation {
        explain::explain_route(self, request, ask, now, seed)
    }

    /// Decides as [`pick`](Self::pick) does, and says why: for a call that another service's route sent here.
    pub fn explain_pick(&self, ask: &Ask<'_>, now: u64, seed: u64) -> Explanation {
        explain::explain_pick(self, ask, now, seed)
    }
}

#[cfg(test)]
mod tests;
