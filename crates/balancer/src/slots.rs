use std::sync::{
    Mutex, OnceLock, PoisonError, RwLock,
    atomic::{AtomicU32, Ordering::Relaxed},
};

use fairmesh_model::BalancingPolicy;

use crate::{
    LoadReport, Outcome, Reported, Rule,
    book::Book,
    learn::{News, Pool},
    report::Place,
    trouble::Trouble,
};

mod slot;

pub(crate) use slot::{Load, Slot, aged};

/// Slots of the first segment; each further one doubles what there is.
const FIRST: usize = 32;
/// Segments after the first, enough for 2^31 slots and more.
const FURTHER: usize = 26;
/// A latency is kept in 2^8 ns, so that 32 bits hold minutes.
const LATENCY_BITS: u32 = 8;

/// What this client knows of the endpoints of one service by its own calls and their answers: one slot an index, shared
/// by all snapshots.
///
/// It only ever grows, and a slot never moves, so readers need neither a lock nor `unsafe`. An instance keeps its index
/// from snapshot to snapshot ([`assign`](Self::assign)): a call that began on one may end on another.
///
/// A program calls many services, and most of the time of a pick is memory that is far away. So what a pick reads of an
/// endpoint is a quarter of a cache line, and what only answers write lies elsewhere. Padding each count to a line of
/// its own was rejected: what it saves where many cores hit one service, every call to the others pays.
///
/// Counts are relaxed atomics: each is right by itself, and a pick that reads one a moment late is as good a guess.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Slots {
    /// In front, so that each four lie in one cache line.
    first: [Slot; FIRST],
    /// Calls begun in turn (round robin).
    turn: AtomicU32,
    /// Endpoints that failures are held against, so that no pick looks for them while there is none.
    troubled: AtomicU32,
    /// Made with the first endpoint that has no place among the first.
    further: OnceLock<Box<Further>>,
    pub(crate) pool: Pool,
    /// Made with the first failure, since most services have none.
    troubles: OnceLock<Box<Troubles>>,
    /// Made with the first report, since many servers send none.
    reports: OnceLock<Box<Reports>>,
    /// The rule of the newest snapshot, by which answers are learnt from: calls that began on an older one end here too.
    rule: RwLock<Rule>,
    pub(crate) book: Mutex<Book>,
}

/// By segment.
type Further = [OnceLock<Box<[Slot]>>; FURTHER];
type Troubles = [OnceLock<Box<[Trouble]>>; FURTHER + 1];
type Reports = [OnceLock<Box<[Place]>>; FURTHER + 1];

impl Slots {
    /// Calls begun at `index` and not finished, without streams; 0 where nobody was given that index.
    #[inline]
    pub fn outstanding(&self, index: u32) -> u32 {
        self.slot(index).map_or(0, Slot::calls)
    }

    /// Calls at `index` that turned out to be [streams](Self::call_becomes_stream) and have not ended.
    pub fn streams(&self, index: u32) -> u32 {
        self.slot(index).map_or(0, Slot::streams)
    }

    /// Failures in a row at `index`.
    pub fn failures(&self, index: u32) -> u32 {
        self.trouble(index).map_or(0, Trouble::row)
    }

    /// Until when the endpoint is avoided for recent failures, in nanoseconds of the caller's clock; 0 means that it is not.
    pub fn penalised_until(&self, index: u32) -> u64 {
        self.trouble(index).map_or(0, |trouble| trouble.until(false))
    }

    /// Counts a call that begins at `index`.
    #[inline]
    pub fn begin(&self, index: u32) {
        if let Some(slot) = self.slot(index) {
            slot.begin();
        }
    }

    /// Counts one of the calls under way at `index` as a stream from now on (Uber, assisted balancing): it then ends with
    /// [`finish_stream`](Self::finish_stream). `false` where there are too many of them; then it stays a call.
    pub fn call_becomes_stream(&self, index: u32) -> bool {
        self.slot(index).is_some_and(Slot::call_becomes_stream)
    }

    /// As [`finish`](Self::finish) for a call that became a stream.
    pub fn finish_stream(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(slot) = self.slot(index) else { return };
        self.judge(slot, index, outcome, now);
        slot.finish_stream();
    }

    /// Counts a call that ends at `index` and learns from its outcome; `now` as in every pick.
    #[inline]
    pub fn finish(&self, index: u32, outcome: Outcome, now: u64) {
        let Some(slot) = self.slot(index) else { return };
        // Before the count, since an index with calls under way stays with its instance.
        self.judge(slot, index, outcome, now);
        slot.finish();
    }

    #[inline]
    fn judge(&self, slot: &Slot, index: u32, outcome: Outcome, now: u64) {
        match outcome {
            Outcome::Ok if slot.load().troubled => self.credit(index),
            Outcome::Ok | Outcome::Unknown => {}
            Outcome::Full => self.pass_over(slot, index, now),
            Outcome::Failed | Outcome::Unreachable => self.blame(slot, index, outcome, now),
        }
    }

    /// Learns what the server at `index` said of its load in a good answer that came at `now`; a report that says nothing,
    /// or for an index that nobody was given, is dropped.
    #[inline]
    pub fn report(&self, index: u32, load: LoadReport, now: u64) {
        self.take(index, load, true, now);
    }

    /// As [`report`](Self::report), for what finished no request, and so earns no reward (Uber, assisted balancing): an answer that is a failure, or
    /// one to a question for the load alone.
    pub fn report_unearned(&self, index: u32, load: LoadReport, now: u64) {
        self.take(index, load, false, now);
    }

    /// As [`report_unearned`](Self::report_unearned), for a server that was asked without a call: it counts all that is under
    /// way there, while an answer leaves out the call that it belongs to, and is learnt from as such.
    pub fn report_asked(&self, index: u32, load: LoadReport, now: u64) {
        let own = u32::from(self.outstanding(index) > 0);
        let requests = load.requests.map(|requests| requests.saturating_sub(own));
        self.report_unearned(index, LoadReport { requests, ..load }, now);
    }

    #[inline]
    fn take(&self, index: u32, load: LoadReport, is_earned: bool, now: u64) {
        let Some(slot) = self.slot(index).filter(|_| load != LoadReport::default()) else { return };
        let (segment, offset) = place(index);
        let reports = self.reports.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER + 1]));
        if let Some(reports) = reports.get(segment) {
            let reports = reports.get_or_init(|| (0..FIRST << segment).map(|_| Place::default()).collect());
            reports[offset].put(load, now);
            let rule = self.rule();
            if rule.policy() == BalancingPolicy::Score {
                let (place, tick) = (&reports[offset], rule.terms.tick(now));
                self.pool.learn(slot, &News { report: load, is_earned, place, rule: &rule, tick });
            }
        }
    }

    /// Takes the endpoints that this client keeps to, with their weights, and gives those that are new a load to begin
    /// with (Uber, assisted balancing): as much above the mean as the rule says. It ages like a report, so a window of time is needed nowhere.
    ///
    /// From now on, answers are learnt from by this rule. Called once for each snapshot; an endpoint is new until a pick has
    /// looked at it.
    pub fn admit(&self, members: &[(u32, u32)], rule: &Rule) {
        let former =
            std::mem::replace(&mut *self.rule.write().unwrap_or_else(PoisonError::into_inner), *rule);
        if former.policy() != rule.policy() {
            // What one policy keeps of an endpoint means nothing to another.
            self.pool.forget();
            members.iter().filter_map(|&(index, _)| self.slot(index)).for_each(Slot::forget_load);
        }
        self.pool.set_members(members.len() as u32);
        let total: u64 = members.iter().map(|&(_, weight)| u64::from(weight.max(1))).sum();
        let mean = total / members.len().max(1) as u64;
        let ratio = |weight: u32| {
            let ratio = (mean << Load::RATIO_BITS) / u64::from(weight.max(1));
            ratio.clamp(1, u16::MAX.into()) as u16
        };
        let slots = || members.iter().filter_map(|&(index, weight)| Some((self.slot(index)?, ratio(weight))));
        let known = || slots().filter(|(slot, _)| slot.at() != 0);
        let own: u64 = known().map(|(slot, ratio)| (slot.own() * u64::from(ratio)) >> Load::RATIO_BITS).sum();
        let own = own / known().count().max(1) as u64;
        let others = self.pool.others();
        let seed = match rule.policy() {
            BalancingPolicy::PeakEwma => others * u64::from(rule.warm_up) / 100,
            _ => rule.seed(own, others),
        };
        let seed = i32::try_from(seed).unwrap_or(i32::MAX);
        for (slot, ratio) in slots() {
            let is_new = slot.at() == 0;
            slot.learn(0, |load| Load { ratio, excess: if is_new { seed } else { load.excess }, ..load });
        }
    }

    /// Sets the first turn, which should differ between callers.
    pub fn start_at(&self, turn: u32) {
        self.turn.store(turn, Relaxed);
    }

    /// The rule of the newest snapshot.
    pub fn rule(&self) -> Rule {
        *self.rule.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many endpoints failures are held against.
    #[inline]
    pub(crate) fn troubled(&self) -> u32 {
        self.troubled.load(Relaxed)
    }

    /// Whether nothing is under way at `index`.
    pub(crate) fn is_idle(&self, index: u32) -> bool {
        self.slot(index).is_none_or(Slot::is_idle)
    }

    /// Keeps how long the server at `index` took for an answer that came at `now`, in nanoseconds; only
    /// [`BalancingPolicy::PeakEwma`] goes by it.
    ///
    /// A latency above what is known counts at once, one below moves it by the part that the time since then is of a
    /// half-life.
    pub fn observe(&self, index: u32, latency: u64, now: u64) {
        let Some(slot) = self.slot(index) else { return };
        let rule = self.rule();
        if rule.policy() != BalancingPolicy::PeakEwma {
            return;
        }
        let tick = rule.terms.tick(now);
        let age = slot.age(tick);
        let latency = i64::try_from(latency >> LATENCY_BITS).unwrap_or(i64::MAX).clamp(1, i32::MAX.into());
        self.pool.take_latency(latency.unsigned_abs(), age);
        slot.learn(tick, |load| {
            let kept = i64::from(load.excess);
            let below = kept - latency;
            let excess = if below > 0 { latency + aged(below, age) } else { latency };
            Load { excess: excess as i32, ..load }
        });
    }

    /// The next call's number in turn.
    #[inline]
    pub(crate) fn turn(&self) -> u32 {
        self.turn.load(Relaxed)
    }

    /// Counts a call that was chosen in turn.
    #[inline]
    pub fn next_turn(&self) {
        self.turn.fetch_add(1, Relaxed);
    }

    /// What the server at `index` last said of its load, and when.
    #[inline]
    pub fn reported(&self, index: u32) -> Option<Reported> {
        self.reports_at(index)?.get()
    }

    #[inline]
    fn reports_at(&self, index: u32) -> Option<&Place> {
        let (segment, offset) = place(index);
        self.reports.get()?.get(segment)?.get()?.get(offset)
    }

    /// Forgets what the instance that had `index` before said and did.
    pub(crate) fn forget(&self, index: u32) {
        self.forgive(index);
        if let Some(slot) = self.slot(index) {
            slot.forget();
        }
        if let Some(place) = self.reports_at(index) {
            place.clear();
        }
    }

    /// Forgets the failures at `index`.
    #[cold]
    pub(crate) fn forgive(&self, index: u32) {
        let (Some(slot), Some(trouble)) = (self.slot(index), self.trouble(index)) else { return };
        trouble.forget();
        if slot.set_troubled(false) {
            self.troubled.fetch_sub(1, Relaxed);
        }
    }

    /// Counts a good answer of an endpoint that has failures.
    #[cold]
    fn credit(&self, index: u32) {
        let rule = self.rule();
        if self.trouble(index).is_some_and(|trouble| trouble.answered(&rule)) {
            self.forgive(index);
        }
    }

    #[cold]
    fn blame(&self, slot: &Slot, index: u32, outcome: Outcome, now: u64) {
        let Some(trouble) = self.make_trouble(index) else { return };
        let rule = &self.rule();
        if slot.set_troubled(true) {
            self.troubled.fetch_add(1, Relaxed);
        }
        trouble.failed(outcome, now, rule);
        if let Some(share) = trouble.share(rule) {
            // Those without failures have a share of none, and there is no need to have counted their answers.
            let segments = self.troubles.get().into_iter().flat_map(|segments| segments.iter());
            let known = segments.filter_map(OnceLock::get).flatten();
            let shares: u64 = known.filter_map(|other| other.share(rule)).sum();
            let others = u64::from(self.pool.members()).saturating_sub(1);
            trouble.compare(share, (shares - share.min(shares), others), now, rule);
        }
    }

    /// Leaves an endpoint alone for a moment that has no room. Without that, who refuses at once would look idle.
    #[cold]
    fn pass_over(&self, slot: &Slot, index: u32, now: u64) {
        let Some(trouble) = self.make_trouble(index) else { return };
        if slot.set_troubled(true) {
            self.troubled.fetch_add(1, Relaxed);
        }
        trouble.full(now);
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> Option<&Slot> {
        // First without arithmetic: a usual subset has its slots there, and every pick waits for this.
        self.first.get(index as usize).or_else(|| {
            let (segment, offset) = place(index);
            self.further.get()?.get(segment.checked_sub(1)?)?.get()?.get(offset)
        })
    }

    pub(crate) fn trouble(&self, index: u32) -> Option<&Trouble> {
        let (segment, offset) = place(index);
        self.troubles.get()?.get(segment)?.get()?.get(offset)
    }

    /// The same, made where no endpoint near that index has failed before.
    fn make_trouble(&self, index: u32) -> Option<&Trouble> {
        let (segment, offset) = place(index);
        let troubles = self.troubles.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER + 1]));
        let made = || (0..FIRST << segment).map(|_| Trouble::default()).collect();
        troubles.get(segment)?.get_or_init(made).get(offset)
    }

    /// Makes sure that there is a slot at `index`, below 2^31.
    pub(crate) fn ensure(&self, index: u32) {
        let (segment, _) = place(index);
        if let Some(further) = segment.checked_sub(1) {
            let segments = self.further.get_or_init(|| Box::new([const { OnceLock::new() }; FURTHER]));
            segments[further].get_or_init(|| (0..FIRST << segment).map(|_| Slot::default()).collect());
        }
    }
}

/// Segment `s` holds `FIRST << s` slots and starts at index `FIRST * (2^s - 1)`.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let shifted = index as usize + FIRST;
    let segment = (shifted.ilog2() - FIRST.ilog2()) as usize;
    (segment, shifted - (FIRST << segment))
}

#[cfg(test)]
mod tests;
