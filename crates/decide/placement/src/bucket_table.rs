//! Which replicas of a backend get the connections to the address that they share (Canal Mesh, section 4.4; Beamer, NSDI 2018).
//!
//! Connections are divided into buckets by the address and port of the client. Each bucket has a chain of replicas: new
//! connections go to its head, and packets of open ones to the first replica of the chain that holds their connection.
//! `bpf/entry/redirect.h` walks the chain.
//!
//! The chain of a bucket is the order of its scores by rendezvous hash. Each replica computes the same table from the same record,
//! and needs no history: one that is added becomes the head of its fair share of the buckets, with their earlier heads right behind
//! it, and one that is removed leaves the order of the others as it was. Rejected: a table that a controller changes step by
//! step. It needs a record of its own, and replicas that start would have to wait for it.

use std::{cmp::Reverse, collections::BTreeSet, net::SocketAddrV4};

use fairmesh_model::arith::{hash_text, mix_pair};

/// Number of buckets.
pub const BUCKETS: usize = 4096;
/// Number of replicas in a chain: how many may be added, one after the other, while a connection stays open.
pub const CHAIN: usize = 8;
/// Number of table versions that packets distinguish.
const VERSIONS: u64 = 32;
/// Place of a chain that has no replica.
const NO_REPLICA: u8 = u8::MAX;

/// The chains of all buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketTable {
    replicas: Vec<SocketAddrV4>,
    chains: Vec<[u8; CHAIN]>,
    version: u8,
}

impl BucketTable {
    /// The table of a backend with these replicas; at most 64, further ones get no connections.
    pub fn new(replicas: &BTreeSet<SocketAddrV4>) -> Self {
        let replicas: Vec<SocketAddrV4> = replicas.iter().copied().take(64).collect();
        let hashes: Vec<u64> = replicas.iter().map(|replica| hash_text(&replica.to_string())).collect();
        let chain = |bucket: u64| {
            let scores = (0_u8..).zip(&hashes).map(|(replica, hash)| (mix_pair(*hash, bucket), replica));
            let mut scores: Vec<_> = scores.collect();
            scores.sort_unstable_by_key(|score| Reverse(*score));
            let mut chain = [NO_REPLICA; CHAIN];
            chain.iter_mut().zip(scores).for_each(|(place, (_, replica))| *place = replica);
            chain
        };
        let version = hashes.iter().fold(0, |mixed, hash| mix_pair(mixed, *hash)) % VERSIONS;
        Self {
            chains: (0..BUCKETS as u64).map(chain).collect(),
            replicas,
            // Less than `VERSIONS`.
            version: version as u8,
        }
    }

    /// The replicas. Chains name them by their positions in this list.
    pub fn replicas(&self) -> &[SocketAddrV4] {
        &self.replicas
    }

    /// The chain of each bucket: positions of replicas, the head first, then 255.
    pub fn chains(&self) -> &[[u8; CHAIN]] {
        &self.chains
    }

    /// The position of a replica.
    pub fn position(&self, replica: SocketAddrV4) -> Option<u8> {
        self.replicas.binary_search(&replica).ok().and_then(|position| u8::try_from(position).ok())
    }

    /// Number of buckets whose new connections go to a replica.
    pub fn heads(&self, position: u8) -> usize {
        self.chains.iter().filter(|chain| chain[0] == position).count()
    }

    /// A number below 32 that another set of replicas has with a probability of 1/32. Packets carry it, so that replicas with
    /// different tables notice.
    pub fn version(&self) -> u8 {
        self.version
    }
}
