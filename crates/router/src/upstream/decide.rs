use std::ops::Range;

use fairmesh_balancer::{Exclusion, InlineCandidates, PickContext, ScoredEndpoint, pick, rendezvous::Rank};
use fairmesh_model::{
    BalancingPolicy, ShardId,
    arith::{Generator, hash_key},
    counted,
};

use super::{CandidateSet, Hashed, Holder, Kind, Sharding, Tier, Upstream};
use crate::{Ask, Headers, Located, Picked, RequestView, Routed, Unroutable, witness::Witness};

/// One try to be decided.
struct Try<'a> {
    ask: &'a Ask<'a>,
    context: PickContext<'a>,
    random: Generator,
}

/// The best found while ranks are tried from the lowest up.
struct Best {
    scored: ScoredEndpoint,
    rank: u32,
}

impl Best {
    /// Takes what a rank offers; says whether nothing speaks against it, so that no further rank needs a look.
    #[inline]
    fn offer(kept: &mut Option<Self>, scored: Option<ScoredEndpoint>, rank: u32) -> bool {
        let Some(scored) = scored else { return false };
        if kept.as_ref().is_none_or(|best| scored.exclusion < best.scored.exclusion) {
            *kept = Some(Self { scored, rank });
        }
        scored.exclusion == Exclusion::None
    }
}

impl Upstream {
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `decide`")]
    pub(super) fn decide_route<H: Headers + ?Sized, W: Witness>(
        &self,
        request: &RequestView<'_, H>,
        seed: u64,
        witness: &mut W,
    ) -> Routed<'_> {
        let Some((position, rule)) = self.routes.find(request) else {
            witness.note("route", || match self.routes.len() {
                0 => format!("{} has no routes", self.name),
                n => format!("none of {} of {} matches", counted(n, "route"), self.name),
            });
            let timeouts = self.timeouts;
            let target = &self.name;
            return Routed { target, route: None, class: None, timeouts, idempotent: false, treatment: None };
        };
        let target = rule.arm(seed).unwrap_or(&self.name);
        witness.note("route", || {
            let n = self.routes.len();
            format!("'{}', number {} of {n}, is the first that matches: to {target}", rule.name, position + 1)
        });
        Routed {
            target,
            route: Some(&rule.name),
            class: rule.class.as_ref(),
            timeouts: rule.timeouts.or(&self.timeouts),
            idempotent: rule.idempotent,
            treatment: rule.treatment.as_ref(),
        }
    }

    #[inline(always)]
    #[allow(
        clippy::inline_always,
        reason = "as for `PickContext::score_endpoint`, which all of this leads to"
    )]
    pub(super) fn decide<W: Witness>(
        &self,
        ask: &Ask<'_>,
        now: u64,
        seed: u64,
        witness: &mut W,
    ) -> Result<Picked, Box<Unroutable>> {
        let context = PickContext::new(&self.endpoint_stats, self.pick_config, ask.avoid, now);
        let mut this = Try { ask, context, random: Generator::new(seed) };
        match self.pick_near(&mut this, witness) {
            Ok(picked) => Ok(picked),
            Err(best) => {
                // Unpacked and packed again, so that it does not share its memory with what is usual.
                let picked = self.pick_otherwise(best, this, witness)?;
                Ok(picked)
            }
        }
    }

    /// Of the nearest rank, where any endpoint will do: nearly always there is one that nothing speaks against. The error is
    /// what was found there all the same.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "as for `decide`")]
    fn pick_near<W: Witness>(&self, this: &mut Try<'_>, witness: &mut W) -> Result<Picked, Option<Best>> {
        let Kind::Replicated { nearest, .. } = &self.kind else { return Err(None) };
        self.note_regions(witness);
        self.note_tier(nearest, witness);
        match pick(&nearest.candidates.as_candidates(), &this.context, &mut this.random, witness) {
            Some(scored) if scored.exclusion == Exclusion::None => {
                Ok(self.chosen(&scored, nearest.rank, None, witness))
            }
            scored => Err(scored.map(|scored| Best { scored, rank: nearest.rank })),
        }
    }

    /// All else, apart from that: a choice that comes back through memory here would have to there as well.
    #[inline(never)]
    fn pick_otherwise<W: Witness>(
        &self,
        best: Option<Best>,
        this: Try<'_>,
        witness: &mut W,
    ) -> Result<Picked, Box<Unroutable>> {
        match &self.kind {
            Kind::Replicated { further, .. } => self.pick_further(further, best, this, witness),
            Kind::Hashed(tiers) => self.pick_by_hash(tiers, &this, witness),
            Kind::Sharded(Some(sharding)) => self.pick_by_shard(sharding, this, witness),
            Kind::Sharded(None) => Err(Unroutable::NoShardMap.into()),
        }
    }

    #[cold]
    fn pick_further<W: Witness>(
        &self,
        further: &[Tier<CandidateSet>],
        mut best: Option<Best>,
        Try { context, mut random, .. }: Try<'_>,
        witness: &mut W,
    ) -> Result<Picked, Box<Unroutable>> {
        for tier in further {
            if self.ends_before(&best, tier.rank) {
                break;
            }
            self.note_tier(tier, witness);
            let scored = pick(&tier.candidates.as_candidates(), &context, &mut random, witness);
            if Best::offer(&mut best, scored, tier.rank) {
                break;
            }
        }
        self.picked(best, None, witness).ok_or_else(|| self.nothing.clone().into())
    }

    /// The key's first choice among all endpoints of the lowest rank, or the next that nothing speaks against.
    fn pick_by_hash<W: Witness>(
        &self,
        tiers: &[Tier<Hashed>],
        Try { ask, context, .. }: &Try<'_>,
        witness: &mut W,
    ) -> Result<Picked, Box<Unroutable>> {
        let key = ask.key.ok_or(Unroutable::KeyMissing)?;
        let hash = hash_key(key.0);
        self.note_regions(witness);
        let mut best = None;
        for tier in tiers {
            if self.ends_before(&best, tier.rank) {
                break;
            }
            self.note_rank(tier.rank, witness);
            let first = self.first_choice(&tier.candidates, hash, context);
            if let Some(scored) = &first {
                witness.note("subset", || {
                    format!("key {key} hashed over {} there", counted(tier.of as usize, "endpoint"))
                });
                witness.record_candidate(scored);
            }
            if Best::offer(&mut best, first, tier.rank) {
                break;
            }
        }
        self.picked(best, None, witness).ok_or_else(|| self.nothing.clone().into())
    }

    fn pick_by_shard<W: Witness>(
        &self,
        sharding: &Sharding,
        Try { ask, context, mut random }: Try<'_>,
        witness: &mut W,
    ) -> Result<Picked, Box<Unroutable>> {
        let shards = &sharding.shards;
        let key = ask.key.ok_or(Unroutable::KeyMissing)?;
        let located =
            shards.locate(key).ok_or_else(|| Unroutable::KeyOutside { key, interval: shards.interval() })?;
        witness.note("shard", || {
            let copies = counted(located.copies(), "copy");
            format!("key {key} is in shard {} of map version {}, {copies}", located.shard, shards.version())
        });
        self.note_regions(witness);
        let nobody = || Box::new(Unroutable::NoReplica { shard: located.shard, role: ask.role.cloned() });
        let role = match ask.role {
            None => None,
            Some(role) => Some(sharding.roles.binary_search(role).map_err(|_| nobody())? as u32),
        };
        let wanted = Wanted { located, role, chooser: self.chooser };
        let (mut best, mut inline, mut floor) = (None, InlineCandidates::new(), 0);
        while let Some(rank) = wanted.lowest_rank(sharding, floor) {
            if self.ends_before(&best, rank) {
                break;
            }
            wanted.gather(sharding, rank, &mut inline);
            self.note_rank(rank, witness);
            witness.note("subset", || format!("{} there", counted(inline.len(), "copy")));
            if Best::offer(&mut best, pick(&inline.as_candidates(), &context, &mut random, witness), rank) {
                break;
            }
            floor = rank + 1;
        }
        self.picked(best, Some((located.shard, shards.version())), witness).ok_or_else(nobody)
    }

    fn note_tier<W: Witness>(&self, tier: &Tier<CandidateSet>, witness: &mut W) {
        self.note_rank(tier.rank, witness);
        witness.note("subset", || {
            format!(
                "{} of {} there",
                tier.candidates.as_candidates().len(),
                counted(tier.of as usize, "endpoint")
            )
        });
    }

    /// Whether a search that found something stops before this rank: what should not be called is for those who found
    /// nothing at all.
    #[inline]
    fn ends_before(&self, best: &Option<Best>, rank: u32) -> bool {
        best.is_some() && rank >= self.last_resort
    }

    fn picked<W: Witness>(
        &self,
        best: Option<Best>,
        shard: Option<(ShardId, u64)>,
        witness: &mut W,
    ) -> Option<Picked> {
        best.map(|Best { scored, rank }| self.chosen(&scored, rank, shard, witness))
    }

    #[inline]
    fn chosen<W: Witness>(
        &self,
        scored: &ScoredEndpoint,
        rank: u32,
        shard: Option<(ShardId, u64)>,
        witness: &mut W,
    ) -> Picked {
        witness.note("pick", || {
            let target = self.target(scored.index);
            format!("{} at {}", target.instance, target.address)
        });
        Picked {
            index: scored.index,
            shard: shard.map(|(id, _)| id),
            map_version: shard.map_or(0, |(_, version)| version),
            last_resort: rank >= self.last_resort,
            panic: scored.panic,
        }
    }

    /// The node that the key ranks first among those with the least against them; with bounded load, before those that
    /// have more than their share of this client's calls.
    fn first_choice(&self, hashed: &Hashed, key: u64, context: &PickContext<'_>) -> Option<ScoredEndpoint> {
        let bound = self.bound(hashed);
        let mut best: Option<(ScoredEndpoint, bool, Rank)> = None;
        for node in &hashed.nodes {
            let rank = if hashed.equal {
                Rank::unweighted(key, node.hash)
            } else {
                Rank::new(key, node.hash, node.weight)
            };
            // Counts are looked up only where the rank leads, so a few times in a thousand nodes.
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

/// How much load one endpoint may have: consistent hashing with bounded loads (Mirrokni et al. 2018), by weight.
#[derive(Clone, Copy, Debug)]
struct Bound {
    calls: u64,
    weight: u64,
    percent: u64,
}

impl Bound {
    /// Whether the call to come would be above `percent` of the endpoint's share of all calls, rounded up.
    fn is_full(&self, scored: &ScoredEndpoint) -> bool {
        let share = (self.calls + 1) * u64::from(scored.weight) * self.percent;
        u64::from(scored.outstanding) >= share.div_ceil(self.weight.max(1) * 100)
    }
}

/// The copies that a call may use.
struct Wanted {
    located: Located,
    role: Option<u32>,
    chooser: u64,
}

impl Wanted {
    /// The lowest rank from `floor` up that has a copy.
    #[inline]
    fn lowest_rank(&self, sharding: &Sharding, floor: u32) -> Option<u32> {
        self.holders(sharding, 0..self.located.copies())
            .map(|holder| holder.rank)
            .filter(|&rank| rank >= floor)
            .min()
    }

    /// Collects the copies of this rank. Of more than fit, those from a place of this client's own on: a subset that
    /// stays the same while the map does.
    #[inline]
    fn gather(&self, sharding: &Sharding, rank: u32, inline: &mut InlineCandidates) {
        inline.clear();
        let copies = self.located.copies();
        let skip =
            if copies > InlineCandidates::CAPACITY { (self.chooser % copies as u64) as usize } else { 0 };
        let turned = self.holders(sharding, skip..copies).chain(self.holders(sharding, 0..skip));
        for holder in turned.filter(|holder| holder.rank == rank) {
            inline.push(holder.index, holder.weight);
        }
    }

    #[inline]
    fn holders<'a>(
        &'a self,
        sharding: &'a Sharding,
        copies: Range<usize>,
    ) -> impl Iterator<Item = Holder> + 'a {
        let holders = copies.map(|i| sharding.holders[sharding.shards.copy(&self.located, i) as usize]);
        holders
            .filter(|holder| holder.rank != u32::MAX)
            .filter(move |holder| self.role.is_none_or(|role| holder.role == role))
    }
}
