//! Weighted rendezvous hashing (ServiceRouter §3.4.2). Every pair of a chooser (a client or key) and a node has a score
//! independent of all other nodes. The chooser takes the nodes with the lowest scores, so adding or removing a node
//! changes nothing between the others.
//!
//! Specified as: `draw = mix_pair(chooser, node)`; `cost = 2^38 - log2(draw)`, the negative logarithm of a number
//! uniform in (0, 1]; `score = floor(cost * 2^24 / weight)`. A cost divided by the weight is the lowest of all with a
//! probability proportional to the weight. Equal scores are ordered by the greater draw, then the smaller node.

use std::cmp::Reverse;

use fairmesh_model::arith::{LOG_BITS, log2, mix_pair};

/// The rank of a node for a chooser. The lowest rank is the first choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// The score, below 2^62.
    pub score: u64,
    /// The draw; of two equal scores, the greater draw comes first.
    pub draw: Reverse<u64>,
    /// Hash of the node.
    pub node: u64,
}

impl Rank {
    /// Computes the rank of `node` for `chooser`, both already hashed. A weight of 0 counts as 1.
    #[inline]
    pub fn new(chooser: u64, node: u64, weight: u32) -> Self {
        let draw = mix_pair(chooser, node);
        let cost = (64 << LOG_BITS) - log2(draw);
        Self { score: (cost << 24) / u64::from(weight.max(1)), draw: Reverse(draw), node }
    }

    /// Computes a rank without score, for equal weights. It orders by the draw, and is comparable only with ranks of
    /// the same kind.
    #[inline]
    pub fn unweighted(chooser: u64, node: u64) -> Self {
        Self { score: 0, draw: Reverse(mix_pair(chooser, node)), node }
    }
}

/// Returns the positions of the `k` nodes, each `(hash, weight)`, with the lowest ranks for `chooser`, in order; all
/// nodes if `k` is 0.
pub fn subset(chooser: u64, nodes: &[(u64, u32)], k: usize) -> Vec<usize> {
    let mut ranked: Vec<(Rank, usize)> = nodes
        .iter()
        .enumerate()
        .map(|(position, &(node, weight))| (Rank::new(chooser, node, weight), position))
        .collect();
    if k != 0 && k < ranked.len() {
        ranked.select_nth_unstable(k - 1);
        ranked.truncate(k);
    }
    ranked.sort_unstable();
    ranked.into_iter().map(|(_, position)| position).collect()
}

#[cfg(test)]
mod tests;
