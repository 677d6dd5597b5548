use std::ops::Range;

use fairmesh_balancer::InlineCandidates;
use fairmesh_model::ShardId;

use super::{Holder, Sharding};
use crate::ShardLocation;

/// The copies that a call may use.
pub(super) struct EligibleCopies {
    pub(super) located: ShardLocation,
    pub(super) role: Option<u32>,
    pub(super) client_hash: u64,
}

impl EligibleCopies {
    /// Returns the lowest rank that has a copy, beginning at `floor`.
    #[inline]
    pub(super) fn lowest_rank(&self, sharding: &Sharding, floor: u32) -> Option<u32> {
        self.holders(sharding, 0..self.located.copies())
            .map(|holder| holder.rank)
            .filter(|&rank| rank >= floor)
            .min()
    }

    /// The shard.
    pub(super) fn shard(&self) -> ShardId {
        self.located.shard
    }

    /// Calls `visit` with each eligible copy.
    #[inline]
    pub(super) fn visit(&self, sharding: &Sharding, visit: impl FnMut(Holder)) {
        self.holders(sharding, 0..self.located.copies()).for_each(visit);
    }

    /// Collects eligible copies. If there are too many, takes a subset that begins at a client-specific position; it is
    /// stable while the map is unchanged.
    #[inline]
    pub(super) fn collect(
        &self,
        sharding: &Sharding,
        inline: &mut InlineCandidates,
        keep: impl Fn(&Holder) -> bool,
    ) {
        inline.clear();
        let copies = self.located.copies();
        let skip =
            if copies > InlineCandidates::CAPACITY { (self.client_hash % copies as u64) as usize } else { 0 };
        let rotated = self.holders(sharding, skip..copies).chain(self.holders(sharding, 0..skip));
        for holder in rotated.filter(keep) {
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
