//! The walk of `bpf/entry/redirect.h` in Rust: `vectors/redirects.json` binds both.

use fairmesh_model::arith::mix64;
use fairmesh_placement::{BUCKETS, CHAIN};

const MOST_HOPS: u32 = 15;
const REPLICAS: u8 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    Nothing,
    /// In TIME_WAIT.
    Ended,
    Open,
}

/// Who passed a packet on: the version of the table, and how many did so before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) version: u8,
    pub(crate) hops: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) chain: [u8; CHAIN],
    pub(crate) unreachable: u64,
    pub(crate) own: Option<u8>,
    pub(crate) version: u8,
    pub(crate) mark: Option<Mark>,
    pub(crate) begins: bool,
    pub(crate) listens: bool,
    pub(crate) holds: Holds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Take,
    PassOn { next: u8, hops: u32 },
    Discard,
}

pub(crate) fn bucket_of(address: u32, port: u16) -> u64 {
    mix64(u64::from(address) << 16 | u64::from(port)) % BUCKETS as u64
}

pub(crate) fn decide(seen: &Seen) -> Verdict {
    let reachable_from = |place: usize| {
        let mut replicas = seen.chain[place.min(CHAIN)..].iter().copied().filter(|one| *one < REPLICAS);
        replicas.find(|one| seen.own == Some(*one) || seen.unreachable >> one & 1 == 0)
    };
    let place = seen.chain.iter().position(|one| seen.own == Some(*one));
    let head = reachable_from(0);
    let continues = seen.mark.is_some_and(|mark| mark.version == seen.version);
    let in_turn = place.filter(|_| continues || head == seen.own);
    if seen.holds == Holds::Open {
        return Verdict::Take;
    }
    if in_turn.is_some() && (seen.holds == Holds::Ended || (seen.begins && seen.listens)) {
        return Verdict::Take;
    }
    let hops = seen.mark.map_or(1, |mark| mark.hops + 1);
    match in_turn.map_or(head, |place| reachable_from(place + 1)) {
        Some(_) if hops > MOST_HOPS => Verdict::Discard,
        Some(next) => Verdict::PassOn { next, hops },
        None if in_turn.is_some() => Verdict::Take,
        None => Verdict::Discard,
    }
}
