use std::{
    ops::Range,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use fairmesh_model::arith::mix64;

use crate::{NodeId, OriginId};

/// Number of sets; a power of two.
const SETS: usize = 4_096;
/// Slots of one set. A new trace replaces the oldest one.
const WAYS: usize = 4;
/// Time for which a trace is remembered after its last request, in seconds.
const REMEMBERED_S: u16 = 60;

/// Remembers which calls the programs behind this process are processing, by the trace of each request: at most
/// 16,384 traces, for a minute each.
///
/// A proxy on both sides of a program remembers the trace of each request to the program, and uses the trace to find
/// the parent of the program's own requests. If a trace has requests of several classes to one program, the last
/// request counts.
///
/// Each slot is one word: 32 bits of the trace's hash, the node, and the second. So lookups take no lock and never
/// see half a slot. A lookup confuses two traces once in 2³⁰ lookups. A map behind a lock was rejected, since every
/// request of the process would take the lock.
#[derive(Debug)]
pub struct TraceParents {
    slots: Box<[AtomicU64]>,
    /// Origins of the same slots, each with 16 bits of the trace's hash. With the hash bits, a reader recognises a
    /// slot that is being written and ignores its origin.
    origins: Box<[AtomicU32]>,
    began: Instant,
}

static OF_THIS_PROCESS: OnceLock<TraceParents> = OnceLock::new();

impl TraceParents {
    /// Creates an empty table whose clock starts at `now`.
    pub fn new(now: Instant) -> Self {
        let slots = (0..SETS * WAYS).map(|_| AtomicU64::new(0)).collect();
        let origins = (0..SETS * WAYS).map(|_| AtomicU32::new(0)).collect();
        Self { slots, origins, began: now }
    }

    /// Makes this process remember traces from now on.
    pub fn enable(now: Instant) {
        let _ = OF_THIS_PROCESS.get_or_init(|| Self::new(now));
    }

    /// The table of this process; `None` if no program is behind it.
    #[inline]
    pub fn of_this_process() -> Option<&'static Self> {
        OF_THIS_PROCESS.get()
    }

    /// Records a request with `trace` that is processed as a call to this node, in a chain of calls with this origin.
    pub fn remember(&self, trace: u128, (node, origin): (NodeId, Option<OriginId>), now: Instant) {
        let ((set, tag), now_s) = (place(trace), self.second(now));
        let rank = |slot: &AtomicU64| match Slot(slot.load(Relaxed)) {
            slot if slot.tag() == tag => u32::MAX,
            slot if slot.0 == 0 => u32::MAX - 1,
            slot => slot.age_s(now_s).into(),
        };
        // If two requests take the same slot at the same moment, one is forgotten.
        if let Some(at) = set.max_by_key(|at| rank(&self.slots[*at])) {
            self.slots[at].store(Slot::new(tag, node, now_s).0, Relaxed);
            self.origins[at].store(origin_word(tag, origin), Relaxed);
        }
    }

    /// The node that processes a request with `trace`, and the origin of its chain of calls.
    pub fn find(&self, trace: u128, now: Instant) -> Option<(NodeId, Option<OriginId>)> {
        let ((mut set, tag), now_s) = (place(trace), self.second(now));
        set.find_map(|at| {
            let slot = Slot(self.slots[at].load(Relaxed));
            let is_it = slot.0 != 0 && slot.tag() == tag && slot.age_s(now_s) <= REMEMBERED_S;
            let node = slot.node().filter(|_| is_it)?;
            let word = self.origins[at].load(Relaxed);
            let origin = OriginId::from_bits(word as u16);
            Some((node, origin.filter(|origin| origin_word(tag, Some(*origin)) == word)))
        })
    }

    fn second(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_secs()
    }
}

/// The slots of the set for `trace`, and the hash bits that identify the trace in its set.
fn place(trace: u128) -> (Range<usize>, u32) {
    // Uses both halves, since some programs randomize only one.
    let hash = mix64((trace as u64) ^ mix64((trace >> 64) as u64));
    let set = (hash as usize % SETS) * WAYS;
    (set..set + WAYS, (hash >> 32) as u32)
}

fn origin_word(tag: u32, origin: Option<OriginId>) -> u32 {
    tag << 16 | u32::from(origin.map_or(0, OriginId::bits))
}

/// Hash bits of a trace, its node, and the second of its last request.
#[derive(Clone, Copy)]
struct Slot(u64);

impl Slot {
    fn new(tag: u32, node: NodeId, now_s: u64) -> Self {
        Self(u64::from(tag) << 32 | u64::from(node.bits()) << 16 | (now_s & 0xffff))
    }

    fn tag(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn node(self) -> Option<NodeId> {
        NodeId::from_bits((self.0 >> 16) as u16)
    }

    /// Age in seconds, modulo 18 hours. A request remembered shortly after `now_s` has age 0, since callers read the
    /// clock before this call.
    fn age_s(self, now_s: u64) -> u16 {
        let age_s = (now_s as u16).wrapping_sub(self.0 as u16);
        if age_s >= u16::MAX - REMEMBERED_S { 0 } else { age_s }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parents() -> (TraceParents, impl Fn(u64) -> Instant) {
        #[allow(clippy::disallowed_methods, reason = "only differences to it matter")]
        let start = Instant::now();
        (TraceParents::new(start), move |second| start + Duration::from_secs(second))
    }

    #[test]
    fn remembered_trace_expires_after_minute_and_newer_ones_displace_it() {
        let ((parents, at), node) =
            (parents(), |bits| (NodeId::from_bits(bits).unwrap(), OriginId::from_bits(bits + 1)));
        assert_eq!(parents.find(7, at(0)), None);
        parents.remember(7, node(3), at(100_000));
        assert_eq!(parents.find(7, at(100_060)), Some(node(3)));
        assert_eq!(parents.find(7, at(100_061)), None, "it has expired");
        assert_eq!(parents.find(8, at(100_000)), None);
        assert_eq!(parents.find(7, at(99_990)), Some(node(3)), "a call that began shortly before");
        parents.remember(7, node(4), at(100_050));
        assert_eq!(parents.find(7, at(100_100)), Some(node(4)), "the last request counts");
        for trace in 0..200_000_u128 {
            parents.remember(trace << 64 | 1, node(5), at(100_051));
        }
        assert_eq!(parents.find(7, at(100_051)), None, "the table is bounded");
        let found = (0..200_000_u128).filter(|trace| parents.find(trace << 64 | 1, at(100_051)).is_some());
        assert_eq!(found.count(), SETS * WAYS);
    }

    #[test]
    fn traces_in_flight_have_distinct_parent_calls() {
        let (parents, at) = parents();
        let node = |trace: u128| (NodeId::from_bits((trace % 1_000) as u16 + 1).unwrap(), None);
        for trace in 1..=2_000 {
            parents.remember(trace, node(trace), at(5));
        }
        let wrong = (1..=2_000).filter(|trace| parents.find(*trace, at(6)) != Some(node(*trace)));
        assert!(wrong.count() <= 5, "sets of four rarely overflow at an eighth of the slots");
    }
}
