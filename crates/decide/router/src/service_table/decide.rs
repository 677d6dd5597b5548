use std::iter::once;

use fairmesh_balancer::{Exclusion, InlineCandidates, PickContext, ScoredEndpoint, pick, rendezvous::Rank};
use fairmesh_model::{
    BalancingPolicy, Role, ServiceName, ShardId,
    arith::{Generator, hash_key},
    counted,
};

use super::{
    CandidateSet, Division, Hashed, Selection, ServiceTable, Sharding, Tier, eligible_copies::EligibleCopies,
};
use crate::{
    EndpointPick, Headers, PickError, PickParams, RequestView, RouteDecision, decision_trace::DecisionTracer,
};

/// Parameters of one attempt for which an endpoint is to be picked.
pub(super) struct AttemptParams<'a> {
    pub(super) params: &'a PickParams<'a>,
    pub(super) context: PickContext<'a>,
    pub(super) random: Generator,
}

/// The best candidate found so far by a search over ascending ranks.
pub(super) struct BestCandidate {
    pub(super) scored: ScoredEndpoint,
    pub(super) rank: u32,
}

impl BestCandidate {
    /// Considers the candidate of a rank. Returns true if the search can stop: the candidate has no exclusion, and was
    /// not picked in panic.
    #[inline]
    pub(super) fn offer(kept: &mut Option<Self>, scored: Option<ScoredEndpoint>, rank: u32) -> bool {
        let Some(scored) = scored else { return false };
        let standing = |scored: &ScoredEndpoint| (scored.exclusion, scored.panic);
        if kept.as_ref().is_none_or(|best| standing(&scored) < standing(&best.scored)) {
            *kept = Some(Self { scored, rank });
        }
        standing(&scored) == (Exclusion::None, false)
    }
}

impl ServiceTable {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `decide`")]
    pub(super) fn decide_route<H: Headers + ?Sized, W: DecisionTracer>(
        &self,
        request: &RequestView<'_, H>,
        seed: u64,
        is_empty: impl Fn(&ServiceName) -> bool,
        tracer: &mut W,
    ) -> RouteDecision<'_> {
        let Some((position, rule)) = self.routes.find(request) else {
            tracer.record_step("route", || match self.routes.len() {
                0 => format!("{} has no routes", self.name),
                n => format!("none of the {} of {} matches", counted(n, "route"), self.name),
            });
            let timeouts = self.timeouts;
            let target = &self.name;
            return RouteDecision {
                target,
                route: None,
                route_backend: 0,
                class: None,
                timeouts,
                idempotent: false,
                actions: None,
            };
        };
        let (target, route_backend) = rule.backend(request, seed, &self.name);
        tracer.record_step("route", || {
            let n = self.routes.len();
            format!("'{}', number {} of {n}, is the first match: to {target}", rule.name, position + 1)
        });
        if W::ENABLED {
            rule.describe_split().into_iter().for_each(|split| tracer.record_step("route", || split));
        }
        let is_empty = |name: &ServiceName| if *name == self.name { self.is_empty() } else { is_empty(name) };
        let redistributed = rule.redistributed(request, seed, target, is_empty);
        if let Some((other, _)) = redistributed {
            tracer.record_step("route", || format!("{target} has no endpoint to call: to {other} instead"));
        }
        let (target, route_backend) = redistributed.unwrap_or((target, route_backend));
        RouteDecision {
            target,
            route: Some(&rule.name),
            route_backend,
            class: rule.class.as_ref(),
            timeouts: rule.timeouts.or(&self.timeouts),
            idempotent: rule.idempotent,
            actions: rule.actions.as_ref(),
        }
    }

    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `PickContext::score_endpoint`, which this calls")]
    pub(super) fn decide<W: DecisionTracer>(
        &self,
        params: &PickParams<'_>,
        now: u64,
        seed: u64,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        if let Some(from) = params.routed_from {
            self.accept_route(from, tracer)?;
        }
        let context = PickContext::new(&self.endpoint_stats, self.pick_config, params.avoid, now);
        let mut attempt = AttemptParams { params, context, random: Generator::new(seed) };
        if let Some(division) = &self.division {
            let picked = self.pick_divided(division, attempt, tracer)?;
            return Ok(picked);
        }
        match self.pick_nearest(&mut attempt, tracer) {
            Ok(picked) => Ok(picked),
            Err(best) => {
                // Unwrapped and wrapped again, so that it shares no memory with the common case.
                let picked = self.pick_slow(best, attempt, tracer)?;
                Ok(picked)
            }
        }
    }

    /// Refuses a call that a route of another tenant's service sends here without the consent of this service's
    /// policy. The target must consent, because otherwise the author of a route could choose what callers do
    /// elsewhere with their identities.
    #[inline(never)]
    fn accept_route<W: DecisionTracer>(
        &self,
        from: &ServiceName,
        tracer: &mut W,
    ) -> Result<(), Box<PickError>> {
        if from.tenant == self.name.tenant {
            return Ok(());
        }
        let is_accepted = self.policy.accepts_routes_from(&self.name, from);
        tracer.record_step("route", || {
            let verb = if is_accepted { "accepts" } else { "does not accept" };
            format!("the policy of {} {verb} routes from {from}, which is of another tenant", self.name)
        });
        self.accept_routes_from(from)?;
        Ok(())
    }

    /// Slow path of a pick: calls are divided among regions or rings.
    #[inline(never)]
    fn pick_divided<W: DecisionTracer>(
        &self,
        division: &Division,
        attempt: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        match division {
            Division::Table(table) => self.pick_by_table(table, attempt, tracer),
            Division::Rings(rings) => self.pick_by_ring_shares(rings, attempt, tracer),
        }
    }

    /// Picks from the nearest rank, which almost always has an endpoint without an exclusion. The error is the best
    /// candidate found there.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `decide`")]
    fn pick_nearest<W: DecisionTracer>(
        &self,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Option<BestCandidate>> {
        let Selection::Replicated { nearest, .. } = &self.selection else { return Err(None) };
        self.trace_regions(tracer);
        self.trace_tier(nearest, tracer);
        match pick(&nearest.candidates.as_candidates(), &attempt.context, &mut attempt.random, tracer) {
            Some(scored) if scored.exclusion == Exclusion::None && !scored.panic => {
                Ok(self.to_pick(&scored, nearest.rank, None, tracer))
            }
            scored => Err(scored.map(|scored| BestCandidate { scored, rank: nearest.rank })),
        }
    }

    /// Picks in all cases that the fast path does not cover. A separate function, since returning a result through
    /// memory here would slow down the common case as well.
    #[inline(never)]
    fn pick_slow<W: DecisionTracer>(
        &self,
        best: Option<BestCandidate>,
        mut attempt: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        if let Selection::Replicated { nearest, further } = &self.selection {
            if best.as_ref().is_some_and(BestCandidate::is_panic)
                && let Some(picked) = self.pick_past_panic(nearest, further, &mut attempt, tracer)
            {
                return Ok(picked);
            }
            return self.pick_from_ranks(further.iter(), best, attempt, tracer);
        }
        self.trace_regions(tracer);
        self.pick_by_rings(best, attempt, tracer)
    }

    /// Searches all ranks; `best` is the best candidate so far.
    pub(super) fn pick_by_rings<W: DecisionTracer>(
        &self,
        best: Option<BestCandidate>,
        attempt: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        match &self.selection {
            Selection::Replicated { nearest, further } => {
                self.pick_from_ranks(once(nearest).chain(further), best, attempt, tracer)
            }
            Selection::Hashed(tiers) => self.pick_by_hash(tiers, best, &attempt, tracer),
            Selection::Sharded(Some(sharding)) => self.pick_by_shard(sharding, best, attempt, tracer),
            Selection::Sharded(None) => Err(PickError::NoShardMap.into()),
        }
    }

    #[cold]
    fn pick_from_ranks<'t, W: DecisionTracer>(
        &self,
        ranks: impl Iterator<Item = &'t Tier<CandidateSet>>,
        mut best: Option<BestCandidate>,
        AttemptParams { context, mut random, .. }: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        for tier in ranks {
            if self.stops_before(&best, tier.rank) {
                break;
            }
            self.trace_tier(tier, tracer);
            let scored = pick(&tier.candidates.as_candidates(), &context, &mut random, tracer);
            if BestCandidate::offer(&mut best, scored, tier.rank) {
                break;
            }
        }
        self.best_pick(best, None, tracer).ok_or_else(|| self.no_endpoint_error.clone().into())
    }

    /// Picks the key's first choice among all endpoints of the lowest rank, or the next one without an exclusion.
    fn pick_by_hash<W: DecisionTracer>(
        &self,
        tiers: &[Tier<Hashed>],
        mut best: Option<BestCandidate>,
        attempt: &AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        if attempt.params.key.is_none() {
            return Err(PickError::KeyMissing.into());
        }
        for tier in tiers {
            if self.stops_before(&best, tier.rank) {
                break;
            }
            self.trace_rank(tier.rank, tracer);
            let first = self.pick_hashed(tier, attempt, tracer);
            if BestCandidate::offer(&mut best, first, tier.rank) {
                break;
            }
        }
        self.best_pick(best, None, tracer).ok_or_else(|| self.no_endpoint_error.clone().into())
    }

    /// Returns the first choice of the call's key, if it has a key.
    pub(super) fn pick_hashed<W: DecisionTracer>(
        &self,
        tier: &Tier<Hashed>,
        AttemptParams { params, context, .. }: &AttemptParams<'_>,
        tracer: &mut W,
    ) -> Option<ScoredEndpoint> {
        let key = params.key?;
        let scored = self.first_choice(&tier.candidates, hash_key(key.0), context)?;
        tracer.record_step("subset", || {
            format!("key {key} hashed over {} of that rank", counted(tier.total as usize, "endpoint"))
        });
        tracer.record_candidate(&scored);
        Some(scored)
    }

    fn pick_by_shard<W: DecisionTracer>(
        &self,
        sharding: &Sharding,
        mut best: Option<BestCandidate>,
        AttemptParams { params, context, mut random }: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        let eligible = self.locate(sharding, params, tracer)?;
        let (mut inline, mut floor) = (InlineCandidates::new(), 0);
        while let Some(rank) = eligible.lowest_rank(sharding, floor) {
            if self.stops_before(&best, rank) {
                break;
            }
            eligible.collect(sharding, &mut inline, |holder| holder.rank == rank);
            self.trace_rank(rank, tracer);
            tracer.record_step("subset", || format!("{} of that rank", counted(inline.len(), "copy")));
            if BestCandidate::offer(
                &mut best,
                pick(&inline.as_candidates(), &context, &mut random, tracer),
                rank,
            ) {
                break;
            }
            floor = rank + 1;
        }
        let shard = (eligible.located.shard, sharding.shards.version());
        self.best_pick(best, Some(shard), tracer).ok_or_else(|| match &self.no_endpoint_error {
            refused @ PickError::PlaintextRefused { .. } => Box::new(refused.clone()),
            _ => Box::new(PickError::NoReplica { shard: shard.0, role: self.wanted_role(params).cloned() }),
        })
    }

    /// The role that a copy must have: the role of the call or its route, or otherwise the role that the policy
    /// names.
    fn wanted_role<'a>(&'a self, params: &PickParams<'a>) -> Option<&'a Role> {
        params.role.or(self.policy.role.as_ref())
    }

    /// Returns the copies of the shard that holds the call's key.
    pub(super) fn locate<W: DecisionTracer>(
        &self,
        sharding: &Sharding,
        params: &PickParams<'_>,
        tracer: &mut W,
    ) -> Result<EligibleCopies, Box<PickError>> {
        let shards = &sharding.shards;
        let key = params.key.ok_or(PickError::KeyMissing)?;
        let located =
            shards.locate(key).ok_or_else(|| PickError::KeyOutside { key, interval: shards.interval() })?;
        tracer.record_step("shard", || {
            let copies = counted(located.copies(), "copy");
            format!("key {key} is in shard {} of map version {}, {copies}", located.shard, shards.version())
        });
        let wanted = self.wanted_role(params);
        if let (None, Some(role)) = (params.role, wanted) {
            tracer.record_step("shard", || format!("the call names no role: '{role}', by the policy"));
        }
        let no_replica = || PickError::NoReplica { shard: located.shard, role: wanted.cloned() };
        let role = match wanted {
            None => None,
            Some(role) => Some(sharding.roles.binary_search(role).map_err(|_| no_replica())? as u32),
        };
        Ok(EligibleCopies { located, role, client_hash: self.client_hash })
    }

    fn trace_tier<W: DecisionTracer>(&self, tier: &Tier<CandidateSet>, tracer: &mut W) {
        self.trace_rank(tier.rank, tracer);
        self.trace_subset(tier, tracer);
    }

    pub(super) fn trace_subset<W: DecisionTracer>(&self, tier: &Tier<CandidateSet>, tracer: &mut W) {
        tracer.record_step("subset", || {
            format!(
                "{} of {} of that rank",
                tier.candidates.as_candidates().len(),
                counted(tier.total as usize, "endpoint")
            )
        });
    }

    /// Whether a search that already has a candidate stops before this rank. Endpoints that calls should avoid are
    /// used only if there is no other.
    #[inline]
    fn stops_before(&self, best: &Option<BestCandidate>, rank: u32) -> bool {
        best.is_some() && rank >= self.last_resort
    }

    fn best_pick<W: DecisionTracer>(
        &self,
        best: Option<BestCandidate>,
        shard: Option<(ShardId, u64)>,
        tracer: &mut W,
    ) -> Option<EndpointPick> {
        best.map(|BestCandidate { scored, rank }| self.to_pick(&scored, rank, shard, tracer))
    }

    #[inline]
    pub(super) fn to_pick<W: DecisionTracer>(
        &self,
        scored: &ScoredEndpoint,
        rank: u32,
        shard: Option<(ShardId, u64)>,
        tracer: &mut W,
    ) -> EndpointPick {
        tracer.record_step("pick", || {
            let target = self.target(scored.index);
            format!("{} at {}", target.instance, target.address)
        });
        EndpointPick {
            index: scored.index,
            shard: shard.map(|(id, _)| id),
            map_version: shard.map_or(0, |(_, version)| version),
            last_resort: rank >= self.last_resort,
            panic: scored.panic,
        }
    }

    /// Returns the node that the key ranks first among the nodes with the least exclusion. With bounded loads, nodes
    /// below their share of this client's calls come first.
    fn first_choice(&self, hashed: &Hashed, key: u64, context: &PickContext<'_>) -> Option<ScoredEndpoint> {
        let bound = self.bound(hashed);
        let mut best: Option<(ScoredEndpoint, bool, Rank)> = None;
        for node in &hashed.nodes {
            let rank = if hashed.equal {
                Rank::unweighted(key, node.hash)
            } else {
                Rank::new(key, node.hash, node.weight)
            };
            // Counters are read only if the rank is the best so far, which happens a few times per thousand nodes.
            if best.as_ref().is_some_and(|(kept, full, first)| {
                kept.exclusion == Exclusion::None && !full && *first < rank
            }) {
                continue;
            }
            let scored = context.score_endpoint(node.index, node.weight);
            let full = bound.is_some_and(|bound| bound.is_full(&scored));
            if best.as_ref().is_none_or(|(kept, kept_full, first)| {
                (scored.exclusion, full, rank) < (kept.exclusion, *kept_full, *first)
            }) {
                best = Some((scored, full, rank));
            }
        }
        best.map(|(scored, ..)| scored)
    }

    fn bound(&self, hashed: &Hashed) -> Option<Bound> {
        (self.pick_config.policy() == BalancingPolicy::BoundedHash).then(|| Bound {
            calls: hashed
                .nodes
                .iter()
                .map(|node| u64::from(self.endpoint_stats.outstanding(node.index)))
                .sum(),
            weight: hashed.nodes.iter().map(|node| u64::from(node.weight)).sum(),
            percent: self.endpoint_stats.config().load_factor().into(),
        })
    }
}

/// Load limit of endpoints by weight: consistent hashing with bounded loads (Mirrokni et al. 2018).
#[derive(Clone, Copy, Debug)]
struct Bound {
    calls: u64,
    weight: u64,
    percent: u64,
}

impl Bound {
    /// Whether a further call would exceed `percent` of the endpoint's share of all calls, rounded up.
    fn is_full(&self, scored: &ScoredEndpoint) -> bool {
        let share = (self.calls + 1) * u64::from(scored.weight) * self.percent;
        u64::from(scored.outstanding) >= share.div_ceil(self.weight.max(1) * 100)
    }
}
