//! Divides a mesh-wide rate limit among callers according to their demand. The limit is divided among identities
//! first, and then among the programs of each identity. A program therefore gains nothing by claiming under many
//! numbers.
//!
//! A caller periodically claims its demand, and is granted a part of the limit until its next claim. Claims may be
//! false, so three rules bound them. The sum of parts is bounded by *granted* parts, not by claims. A caller whose
//! demand is at most an equal part is granted its demand, regardless of the claims of others. No demand counts for
//! more than the whole limit. Counting every call at a central place was rejected, because every call would wait for
//! and depend on that place.

use std::collections::BTreeMap;

mod division;

use division::Division;

/// The whole limit, in parts.
pub const ALL_PARTS: u32 = 1_000_000_000;

/// The part that a caller uses before its first grant: a tenth of the limit.
pub const DEFAULT_PARTS: u32 = ALL_PARTS / 10;

/// Parts reserved for new callers, which have not claimed yet.
const RESERVED: u64 = ALL_PARTS as u64 / 25;
/// Half-life of the smoothed demand, in milliseconds.
const DEMAND_HALF_LIFE: u64 = 1_000;
/// Time without a claim after which a caller expires, in milliseconds. At least three times the caller's own claim
/// period.
const EXPIRY: u64 = 7_000;
/// Time after which a caller with only one claim expires, in milliseconds. The claim period is still unknown, but at
/// most ten seconds.
const FIRST_EXPIRY: u64 = 12_000;
/// Minimum time between searches for expired callers, in milliseconds.
const SWEEP_INTERVAL: u64 = 500;
/// A grant grows only by at least 1/20; smaller increases are skipped.
const MIN_GROWTH: u32 = 20;
/// Maximum number of callers that share one limit. A further caller replaces a caller of the identity with the most
/// callers. If that is impossible, the further caller keeps its present part.
pub const MAX_CALLERS: usize = 10_000;

/// State of one limit: its callers and their parts.
#[derive(Debug, Default)]
pub struct Quota {
    callers: BTreeMap<u64, Caller>,
    /// Callers by identity, as of the last division.
    identities: BTreeMap<u64, Programs>,
    /// The identity with the most callers and its number of callers, as of the last division.
    largest: Option<(u64, u64)>,
    /// Sum over all callers of their granted parts. Sums are stored so that a claim need not iterate over callers.
    granted: u64,
    taken: u64,
    division: Division,
    /// Number of claims since the division was computed.
    stale: usize,
    /// Whether some callers hold parts that an earlier process granted and this process has not yet confirmed.
    unsettled: bool,
    /// Time of the last search for expired callers, in milliseconds.
    swept: u64,
}

/// The callers of one identity.
#[derive(Debug, Default)]
struct Programs {
    callers: u64,
    /// Sum of the callers' demands.
    demand: u64,
    /// How the identity's part is divided among its callers.
    division: Division,
}

#[derive(Clone, Copy, Debug, Default)]
struct Caller {
    /// Number that stands for the caller's identity.
    identity: u64,
    /// Smoothed demand, in thousandths of calls per second.
    demand: u64,
    parts: u32,
    /// Part that the caller used at its last claim, bounded by its grants. The response that reduced the part may
    /// have been lost. Until the caller claims less or its time to return the excess is over, the excess is not free.
    held: u32,
    /// Time in milliseconds since which the caller has claimed to hold more than its part; `None` if it does not.
    excess_since: Option<u64>,
    last_claim: u64,
    period: u64,
}

/// A caller's report of its demand.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Random number that identifies the caller, drawn by the caller itself.
    pub caller: u64,
    /// Number that stands for the caller's authenticated identity; equal to `caller` if the caller has none.
    pub identity: u64,
    /// Calls requested since the last claim, whether admitted or rejected, in thousandths of calls per second.
    pub demand: u64,
    /// The part that the caller uses now; `None` before its first grant.
    pub held: Option<u32>,
}

impl Quota {
    /// Grants a part to the caller of `claim`, in units of 1/[`ALL_PARTS`]. `whole` is the limit in thousandths of
    /// calls per second, and `now` is in milliseconds. Returns `None` if the limit has too many callers and no other
    /// identity can make room.
    pub fn claim(&mut self, claim: Claim, whole: u64, now: u64) -> Option<u32> {
        if self.unsettled {
            self.settle();
        }
        let mut caller = self.caller_of(claim, now)?;
        let before = caller.parts;
        caller.update_demand(claim.demand, now);
        caller.set_held(claim.held.unwrap_or(DEFAULT_PARTS), now);
        self.put(claim.caller, caller);
        self.redivide(whole);
        // At most the whole limit, because it is at most the free part.
        let free = u64::from(ALL_PARTS).saturating_sub(self.taken - caller.taken());
        let parts = (self.share(&caller) + self.room(&caller)).min(free) as u32;
        // A reduction always takes effect: small excesses of many callers would leave nothing for new ones.
        let changes = parts < before || parts - before > before / MIN_GROWTH;
        caller.parts = if changes { parts } else { before };
        self.put(claim.caller, caller);
        Some(caller.parts)
    }

    /// Records a claim without a grant, for example after a restart while held parts are still unknown. Callers keep
    /// what they hold. The first [`Quota::claim`] then accepts held parts, smallest first, as far as they fit into
    /// the limit.
    pub fn record(&mut self, claim: Claim, now: u64) {
        let Some(mut caller) = self.caller_of(claim, now) else { return };
        caller.update_demand(claim.demand, now);
        caller.held = claim.held.unwrap_or(0).min(ALL_PARTS);
        caller.parts = caller.held;
        self.put(claim.caller, caller);
        self.unsettled = true;
    }

    /// Removes expired callers. Returns whether any callers are left.
    pub fn expire(&mut self, now: u64) -> bool {
        self.callers.retain(|_, caller| now.saturating_sub(caller.last_claim) <= caller.expiry());
        self.sum();
        self.stale = usize::MAX;
        self.swept = now;
        !self.callers.is_empty()
    }

    /// Whether [`expire`](Self::expire) would remove a caller or leave none.
    pub fn has_expired(&self, now: u64) -> bool {
        let is_expired = |caller: &Caller| now.saturating_sub(caller.last_claim) > caller.expiry();
        self.callers.is_empty() || self.callers.values().any(is_expired)
    }

    /// Returns the part that a caller was granted last.
    pub fn part_of(&self, caller: u64) -> Option<u32> {
        self.callers.get(&caller).map(|known| known.parts)
    }

    /// Whether `caller` is one of the callers that share the limit.
    pub fn contains(&self, caller: u64) -> bool {
        self.callers.contains_key(&caller)
    }

    /// Number of callers.
    pub fn callers(&self) -> usize {
        self.callers.len()
    }

    /// Sum of the granted parts.
    pub fn granted(&self) -> u64 {
        self.granted
    }

    /// Returns the state of the caller of `claim`. A new caller gets a new state if there is room; otherwise `None`.
    fn caller_of(&mut self, claim: Claim, now: u64) -> Option<Caller> {
        if now.saturating_sub(self.swept) >= SWEEP_INTERVAL {
            self.expire(now);
        }
        if let Some(caller) = self.callers.get(&claim.caller) {
            return Some(*caller);
        }
        if self.callers.len() >= MAX_CALLERS && !self.make_room(claim.identity) {
            return None;
        }
        let Claim { identity, demand, .. } = claim;
        Some(Caller { identity, demand, last_claim: now, ..Caller::default() })
    }

    /// Removes the caller that was silent longest from the identity with most callers. Requires that this identity
    /// had at least two more callers than `identity` at the last division. Identities decide, because they are
    /// authenticated while caller numbers are not. The removed caller keeps using its part until it finds a place
    /// again, so the limit may be exceeded by that part.
    pub fn make_room(&mut self, identity: u64) -> bool {
        let own = self.identities.get(&identity).map_or(0, |programs| programs.callers);
        let Some((largest, _)) = self.largest.filter(|(_, callers)| *callers > own + 1) else { return false };
        let theirs = self.callers.iter().filter(|(_, caller)| caller.identity == largest);
        let oldest = theirs.min_by_key(|(_, caller)| caller.last_claim).map(|(number, _)| *number);
        let Some(number) = oldest else { return false };
        let gone = self.callers.remove(&number).unwrap_or_default();
        self.granted -= u64::from(gone.parts);
        self.taken -= gone.taken();
        true
    }

    fn put(&mut self, number: u64, caller: Caller) {
        let before = self.callers.insert(number, caller).unwrap_or_default();
        self.granted = self.granted - u64::from(before.parts) + u64::from(caller.parts);
        self.taken = self.taken - before.taken() + caller.taken();
    }

    fn sum(&mut self) {
        self.granted = self.callers.values().map(|caller| u64::from(caller.parts)).sum();
        self.taken = self.callers.values().map(Caller::taken).sum();
    }

    /// Recomputes the division once more claims than a sixteenth of the callers have arrived since the last division.
    /// A claim therefore costs sixteen steps on average.
    fn redivide(&mut self, whole: u64) {
        self.stale = self.stale.saturating_add(1);
        if self.stale <= self.callers.len() / 16 && self.division.whole() == whole {
            return;
        }
        let mut by_identity: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for caller in self.callers.values() {
            by_identity.entry(caller.identity).or_default().push(caller.demand);
        }
        let sum = |demands: &Vec<u64>| demands.iter().fold(0, |sum: u64, demand| sum.saturating_add(*demand));
        self.division = Division::of(by_identity.values().map(sum), whole);
        let programs = by_identity.into_iter().map(|(identity, demands)| {
            let (callers, demand) = (demands.len() as u64, sum(&demands));
            // The identity's part in calls, which is at most the limit.
            let own = u128::from(whole) * u128::from(self.division.share(demand)) / u128::from(ALL_PARTS);
            let division = Division::of(demands.into_iter(), own as u64);
            (identity, Programs { callers, demand, division })
        });
        self.identities = programs.collect();
        self.largest = self
            .identities
            .iter()
            .map(|(identity, programs)| (*identity, programs.callers))
            .max_by_key(|(_, callers)| *callers);
        self.stale = 0;
    }

    /// The part of a caller within its identity's part.
    fn share(&self, caller: &Caller) -> u64 {
        match self.identities.get(&caller.identity) {
            Some(programs) if programs.callers > 1 => {
                let of_identity = self.division.share(programs.demand);
                programs.division.share_of(caller.demand, of_identity)
            }
            _ => self.division.share(caller.demand),
        }
    }

    /// Additional part that a caller may take from the reserved parts.
    fn room(&self, caller: &Caller) -> u64 {
        let programs = self.identities.get(&caller.identity).map_or(1, |programs| programs.callers);
        RESERVED / (self.identities.len() as u64 + 1) / programs.max(1)
    }

    /// Reduces claimed parts until their sum could have been granted. The largest parts are reduced first, so that
    /// false claims hurt their own authors.
    fn settle(&mut self) {
        let mut held: Vec<u64> = self.callers.values().map(|caller| caller.held.into()).collect();
        held.sort_unstable();
        let (mut left, mut level) = (u64::from(ALL_PARTS), u64::from(ALL_PARTS));
        for (i, part) in held.iter().enumerate() {
            let even = left / (held.len() - i) as u64;
            if *part > even {
                level = even;
                break;
            }
            left -= part;
        }
        for caller in self.callers.values_mut() {
            // At most `ALL_PARTS`.
            caller.held = u64::from(caller.held).min(level) as u32;
            caller.parts = caller.held;
        }
        self.sum();
        self.unsettled = false;
    }
}

impl Caller {
    /// Sum of parts that are not available to other callers.
    fn taken(&self) -> u64 {
        self.parts.max(self.held).into()
    }

    /// Time after the last claim at which the caller expires, which is also the time allowed for returning an excess.
    fn expiry(&self) -> u64 {
        match self.period {
            0 => FIRST_EXPIRY,
            period => EXPIRY.max(period.saturating_mul(3)),
        }
    }

    /// Accepts the part that the caller claims to hold, bounded by its grants. An excess over the present part is
    /// accepted only as long as a lost response may explain it.
    fn set_held(&mut self, held: u32, now: u64) {
        self.held = held.min(self.held.max(self.parts));
        if self.held <= self.parts {
            self.excess_since = None;
        } else if now.saturating_sub(*self.excess_since.get_or_insert(now)) > self.expiry() {
            self.held = self.parts;
        }
    }

    /// Moves the smoothed demand towards `demand`, weighted by the time since the last claim.
    fn update_demand(&mut self, demand: u64, now: u64) {
        let elapsed = now.saturating_sub(self.last_claim);
        let (old, new) = (u128::from(self.demand), u128::from(demand));
        let (kept, last_claim) = (u128::from(DEMAND_HALF_LIFE), u128::from(elapsed));
        // The result is between the two demands.
        self.demand = ((old * kept + new * last_claim) / (kept + last_claim).max(1)) as u64;
        (self.period, self.last_claim) = (elapsed, now);
    }
}
