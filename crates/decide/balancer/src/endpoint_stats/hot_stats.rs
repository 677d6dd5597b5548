use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use crate::config::TICK_BITS;

/// Bits of [`HotStats::counts`] for calls. The bits above count streams.
const CALLS_BITS: u32 = 20;
const STREAM: u32 = 1 << CALLS_BITS;
const MAX_STREAMS: u32 = u32::MAX >> CALLS_BITS;

/// How far in the future a report may be dated: one half-life, in ticks.
const MAX_SKEW: u32 = 1 << 8;

/// The data of one endpoint that a pick reads: 16 bytes, so that four endpoints share a cache line.
#[derive(Debug)]
#[repr(C, align(16))]
pub(crate) struct HotStats {
    /// This client's calls (low 20 bits) and streams (high 12) in flight.
    counts: AtomicU32,
    /// The tick of the last report; 0 until a pick first considers the endpoint.
    updated_tick: AtomicU32,
    /// A [`LoadEstimate`], packed.
    load: AtomicU64,
}

/// Estimate of an endpoint's load, excluding this client's own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadEstimate {
    /// Other callers' requests beyond the amount that is usual for the endpoint's capacity. The unit is 1/256 of a
    /// request on an ordinary endpoint of the service; if the mean exceeds 16 requests, 1/256 of 1/16 of the mean.
    pub(crate) excess: i32,
    /// The cost of a call relative to the mean, from reported utilisation, in 1/1024. It is the reciprocal of capacity.
    pub(crate) cost: u16,
    /// The mean weight divided by the endpoint's weight, in 1/256.
    pub(crate) weight_ratio: u16,
    /// Whether the outlier state is not neutral and must be consulted.
    pub(crate) suspect: bool,
}

impl LoadEstimate {
    /// The estimate without any reports.
    pub(crate) const NEUTRAL: Self = Self {
        excess: 0,
        cost: 1 << Self::COST_BITS,
        weight_ratio: 1 << Self::WEIGHT_RATIO_BITS,
        suspect: false,
    };
    /// Fractional bits of a cost.
    pub(crate) const COST_BITS: u32 = 10;
    const COST_MASK: u64 = (1 << 15) - 1;
    /// Fractional bits of a weight ratio.
    pub(crate) const WEIGHT_RATIO_BITS: u32 = 8;
    /// Fractional bits of a load.
    pub(crate) const BITS: u32 = 8;

    #[inline]
    const fn pack(self) -> u64 {
        // A cost is at most 8, which fits 14 bits.
        let cost = self.cost as u64 & Self::COST_MASK | (self.suspect as u64) << 15;
        (self.excess as u32 as u64) << 32 | cost << 16 | self.weight_ratio as u64
    }

    #[inline]
    const fn unpack(word: u64) -> Self {
        Self {
            excess: (word >> 32) as u32 as i32,
            cost: (word >> 16 & Self::COST_MASK) as u16,
            weight_ratio: word as u16,
            suspect: word >> 31 & 1 != 0,
        }
    }
}

impl Default for HotStats {
    fn default() -> Self {
        Self {
            counts: AtomicU32::new(0),
            updated_tick: AtomicU32::new(0),
            load: AtomicU64::new(LoadEstimate::NEUTRAL.pack()),
        }
    }
}

impl HotStats {
    /// Copies another endpoint's state. Returns its counts.
    pub(super) fn copy(&self, from: &Self) -> u32 {
        let counts = from.counts.load(Relaxed);
        self.counts.store(counts, Relaxed);
        self.load.store(from.load.load(Relaxed), Relaxed);
        self.updated_tick.store(from.updated_tick.load(Acquire), Release);
        counts
    }

    /// Adds the difference between the other endpoint's present counts and the copied `counts`.
    pub(super) fn add_missed(&self, from: &Self, counts: u32) {
        self.counts.fetch_add(from.counts.load(Relaxed).wrapping_sub(counts), Relaxed);
    }

    #[inline]
    pub(crate) fn begin(&self) {
        self.counts.fetch_add(1, Relaxed);
    }

    /// Ends a call. Checks the count first, so that finishing a call twice does not make the endpoint look busy for
    /// ever.
    #[inline]
    pub(crate) fn finish(&self) {
        if self.calls() != 0 {
            self.counts.fetch_sub(1, Relaxed);
        }
    }

    /// Counts a call as a stream from now on. If this returns true, end the stream with
    /// [`finish_stream`](Self::finish_stream).
    pub(crate) fn convert_to_stream(&self) -> bool {
        let convert = |counts: u32| {
            let fits = counts & (STREAM - 1) != 0 && counts >> CALLS_BITS < MAX_STREAMS;
            fits.then(|| counts - 1 + STREAM)
        };
        self.counts.fetch_update(Relaxed, Relaxed, convert).is_ok()
    }

    pub(crate) fn finish_stream(&self) {
        let _ = self.counts.fetch_update(Relaxed, Relaxed, |counts| counts.checked_sub(STREAM));
    }

    #[inline]
    pub(crate) fn calls(&self) -> u32 {
        self.counts.load(Relaxed) & (STREAM - 1)
    }

    pub(crate) fn streams(&self) -> u32 {
        self.counts.load(Relaxed) >> CALLS_BITS
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.counts.load(Relaxed) == 0
    }

    /// This client's own load in 1/256 calls. A stream mostly waits and counts as 1/16 of a call (Uber, assisted
    /// balancing).
    #[inline]
    pub(crate) fn own_load(&self) -> u64 {
        let counts = self.counts.load(Relaxed);
        (u64::from(counts & (STREAM - 1)) << LoadEstimate::BITS)
            + (u64::from(counts >> CALLS_BITS) << (LoadEstimate::BITS - 4))
    }

    #[inline]
    pub(crate) fn updated_tick(&self) -> u32 {
        self.updated_tick.load(Acquire)
    }

    /// Ticks since the last report, or since a pick first considered the endpoint, which may be this pick.
    #[inline]
    pub(crate) fn age(&self, tick: u32) -> u32 {
        let at = self.updated_tick();
        if at == 0 {
            // Compilation knows no time, so the initial load of a new endpoint is dated by the first pick.
            self.updated_tick.store(tick, Release);
            return 0;
        }
        let age = tick.wrapping_sub(at);
        // Another thread may have read its clock slightly later.
        if age > u32::MAX - MAX_SKEW { 0 } else { age }
    }

    #[inline]
    pub(crate) fn load(&self) -> LoadEstimate {
        LoadEstimate::unpack(self.load.load(Relaxed))
    }

    /// Changes the load estimate, dated `tick`.
    pub(crate) fn update_load(&self, tick: u32, change: impl Fn(LoadEstimate) -> LoadEstimate) {
        let _ =
            self.load.fetch_update(Relaxed, Relaxed, |word| Some(change(LoadEstimate::unpack(word)).pack()));
        if tick != 0 {
            self.updated_tick.store(tick, Release);
        }
    }

    /// Sets whether the outlier state must be consulted. Returns whether the value changed.
    pub(crate) fn set_suspect(&self, suspect: bool) -> bool {
        let change = |word| Some(LoadEstimate { suspect, ..LoadEstimate::unpack(word) }.pack());
        self.load
            .fetch_update(Relaxed, Relaxed, change)
            .is_ok_and(|before| LoadEstimate::unpack(before).suspect != suspect)
    }

    /// Resets the load estimate, but not the failures.
    pub(crate) fn reset_load(&self) {
        self.update_load(0, |load| LoadEstimate { suspect: load.suspect, ..LoadEstimate::NEUTRAL });
    }

    pub(crate) fn reset(&self) {
        self.load.store(LoadEstimate::NEUTRAL.pack(), Relaxed);
        self.updated_tick.store(0, Release);
    }
}

/// Returns a value decayed for `age` ticks: halved every 256 ticks, linear in between (Uber, assisted balancing). With
/// `h = age >> 8` and `r = age & 255`: `(value * (512 - r)) >> (9 + h)`, shifts rounding down; 0 from `h = 32` on.
#[inline]
pub(crate) fn decay(value: i64, age: u32) -> i64 {
    let (halvings, rest) = (age >> TICK_BITS, age & ((1 << TICK_BITS) - 1));
    if halvings >= 32 {
        return 0;
    }
    (value * i64::from((2 << TICK_BITS) - rest)) >> (TICK_BITS + 1 + halvings)
}
