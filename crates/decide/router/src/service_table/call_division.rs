//! Divides calls before endpoints are picked: by a region table, or among rings according to their capacity.

use std::iter::once;

use fairmesh_balancer::{InlineCandidates, pick};
use fairmesh_model::{
    ALL_CALLS,
    arith::{Generator, hash_key, mix_pair},
};

use super::{
    Selection, ServiceTable, Sharding, Tier,
    decide::{AttemptParams, BestCandidate},
    region_table::{CallDraws, CompiledTable},
};
use crate::{EndpointPick, PickError, decision_trace::DecisionTracer};

/// Salt that makes the ring of a key independent of its endpoint: the bytes of `rings`.
const KEY_SALT: u64 = 0x0072_696e_6773;

/// How calls are divided.
#[derive(Debug)]
pub(super) enum Division {
    /// Calls are divided by the table for the caller's region.
    Table(CompiledTable),
    /// Calls are divided among rings, because the nearest ring cannot carry all calls (Envoy: priority levels).
    Rings(RingShares),
}

/// The shares of calls by ring.
#[derive(Debug)]
pub(super) struct RingShares {
    /// The rank of each ring that gets calls.
    pub(super) ranks: Box<[u32]>,
    /// For each ring, its position in `ranks` and its share in thousandths.
    pub(super) shares: Box<[(u8, u32)]>,
}

impl RingShares {
    /// Computes the shares of these levels; `None` if the nearest level with endpoints gets all calls.
    pub(super) fn new(levels: &[(u32, u32)]) -> Option<Self> {
        let used: Vec<(u32, u32)> = levels.iter().copied().filter(|(_, share)| *share > 0).collect();
        // There are at most 64 rings, each at most twice.
        let shares = (0_u8..).zip(&used).map(|(position, (_, share))| (position, *share)).collect();
        (used.len() > 1).then(|| Self { ranks: used.iter().map(|(rank, _)| *rank).collect(), shares })
    }

    /// Returns the rank of a key. Higher hashes map to rings further out, so that a changed share moves no other keys.
    fn rank_of_key(&self, hash: u64) -> Option<u32> {
        let mut point = Generator::new(mix_pair(hash, KEY_SALT)).below(ALL_CALLS.into());
        let found = self.shares.iter().find(|(_, share)| {
            let is_below = point < u64::from(*share);
            point = point.saturating_sub(u64::from(*share));
            is_below
        });
        found.and_then(|(position, _)| self.ranks.get(usize::from(*position)).copied())
    }

    fn draw(&self, call_seed: u64) -> Option<u32> {
        let position = CallDraws::new(call_seed).position(&self.shares, |_| true)?;
        self.ranks.get(usize::from(position)).copied()
    }
}

impl ServiceTable {
    /// Draws the ring of the call and picks there. If no endpoint of that ring can serve, uses the nearest ring that
    /// has one.
    #[cold]
    pub(super) fn pick_by_ring_shares<W: DecisionTracer>(
        &self,
        rings: &RingShares,
        mut attempt: AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<EndpointPick, Box<PickError>> {
        self.trace_regions(tracer);
        let rank = match (&self.selection, attempt.params.key) {
            (Selection::Hashed(_), Some(key)) => rings.rank_of_key(hash_key(key.0)),
            _ => rings.draw(attempt.params.call_seed),
        };
        tracer.record_step("draw", || self.describe_rings(rings, rank));
        let best = match rank {
            None => None,
            Some(rank) => match self.pick_at_rank(rank, &mut attempt, tracer)? {
                Ok(picked) => return Ok(picked),
                Err(best) => best,
            },
        };
        self.pick_by_rings(best, attempt, tracer)
    }

    /// Picks an endpoint without an exclusion at a rank. Otherwise returns the best candidate of the rank.
    fn pick_at_rank<W: DecisionTracer>(
        &self,
        rank: u32,
        attempt: &mut AttemptParams<'_>,
        tracer: &mut W,
    ) -> Result<Result<EndpointPick, Option<BestCandidate>>, Box<PickError>> {
        let mut shard = None;
        let scored = match &self.selection {
            Selection::Replicated { nearest, further } => {
                let tier = once(nearest).chain(further).find(|tier| tier.rank == rank);
                tier.and_then(|tier| {
                    self.trace_subset(tier, tracer);
                    pick(&tier.candidates.as_candidates(), &attempt.context, &mut attempt.random, tracer)
                })
            }
            Selection::Hashed(tiers) => {
                let tier: Option<&Tier<_>> = tiers.iter().find(|tier| tier.rank == rank);
                tier.and_then(|tier| self.pick_hashed(tier, attempt, tracer))
            }
            Selection::Sharded(None) => return Err(PickError::NoShardMap.into()),
            Selection::Sharded(Some(sharding)) => {
                let Sharding { shards, .. } = sharding;
                let copies = self.locate(sharding, attempt.params, tracer)?;
                shard = Some((copies.shard(), shards.version()));
                let mut inline = InlineCandidates::new();
                copies.collect(sharding, &mut inline, |holder| holder.rank == rank);
                pick(&inline.as_candidates(), &attempt.context, &mut attempt.random, tracer)
            }
        };
        let mut best = None;
        Ok(match (BestCandidate::offer(&mut best, scored, rank), &best) {
            (true, Some(found)) => Ok(self.to_pick(&found.scored, found.rank, shard, tracer)),
            _ => Err(best),
        })
    }

    /// Describes shares of rings: `ring 0 (the caller's region) 46.6%, ring 1 (any distance) 53.4%, by what they can
    /// carry: to ring 1 (any distance)`.
    fn describe_rings(&self, rings: &RingShares, drawn: Option<u32>) -> String {
        let share = |(rank, (_, share)): (&u32, &(u8, u32))| {
            format!("{} {}.{}%", self.locality.describe(*rank), share / 10, share % 10)
        };
        let shares: Vec<String> = rings.ranks.iter().zip(&rings.shares).map(share).collect();
        let to = drawn.map_or_else(|| "none".to_owned(), |rank| self.locality.describe(rank));
        format!("{}, by what they can carry: to {to}", shares.join(", "))
    }
}
