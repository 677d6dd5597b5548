use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use fairmesh_model::{
    CallCounts, CountedBy, CountedInterval, CountedPath, CpuPath, DeniedPath, Region, ServiceName,
};
use fairmesh_signals::{beyond_shares, own_service};

use crate::{
    counted_step::Counted,
    minute_sums::{MinuteSums, first_minute},
    step_history::{MINUTES, Ring, STEP_MS, STEPS, STEPS_OF_MINUTE},
};

/// Maximum length of a report's interval, in milliseconds. For a longer interval, all counts go to its last part.
const MAX_SPAN_MS: u64 = 120_000;
/// Divisor of the limits: this part of them is freed at once when the history is full, so that rows are rarely sorted
/// by size.
const FOLDED_PART: usize = 16;
/// Weight of a call in the first interval of a path: the long-run weight of a path that has as many calls every ten
/// seconds.
const FIRST_WEIGHT: u64 = 16 * STEPS_OF_MINUTE;

/// Memory limits of a [`CallHistory`].
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Maximum number of paths that are recorded separately.
    pub rows: usize,
    /// Maximum size of all rows, in bytes.
    pub bytes: usize,
}

impl HistoryLimits {
    /// Limits of a control plane.
    pub const CONTROL_PLANE: Self = Self { rows: 20_000, bytes: 240 << 20 };
}

/// The number of calls in each step, oldest first, by the regions of callers and servers, with the part of the step
/// that reports cover; `None` for a gap.
pub type RegionSteps = BTreeMap<(Region, Region), Vec<Option<(u64, Duration)>>>;

/// Calls by path in the last hour. Beyond the limits, the smallest paths of services that report more than their
/// [share](beyond_shares) are merged into one row.
#[derive(Debug)]
pub struct CallHistory {
    limits: HistoryLimits,
    rows: HashMap<CountedPath, Row>,
    other: Row,
    /// For each service beyond its share, the weight of the largest row that was folded. New rows of at most this
    /// weight are folded at once; otherwise each report would fill the history again.
    floors: HashMap<Option<ServiceName>, u64>,
    denied: MinuteSums<DeniedPath>,
    /// CPU time of servers, in microseconds.
    cpu: MinuteSums<CpuPath>,
    bytes: usize,
    /// Number of rows that arrived too late, or for which processes below this one had no room.
    left_out: u64,
    swept_minute: u64,
}

#[derive(Debug, Default)]
struct Row {
    steps: Ring,
    minutes: Ring,
    /// End of the last interval, in milliseconds.
    to_ms: u64,
    /// Decayed number of calls: every minute a sixteenth is subtracted. The rows with the smallest weight are folded
    /// first.
    weight: u64,
    /// Size of the steps and minutes, in bytes.
    bytes: usize,
}

/// The sum of a row over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSum<'a> {
    /// Path of the row. `None` for the smallest paths, which are merged into one row.
    pub path: Option<&'a CountedPath>,
    /// Sum of the counts.
    pub counts: CallCounts,
    /// Part of the window that reports cover.
    pub covered: Duration,
    /// Time since the end of the last reported interval.
    pub age: Duration,
    /// Number of calls in each step of the window, oldest first; `None` for a step without a report.
    pub series: Vec<Option<u64>>,
}

impl CallHistory {
    /// Creates an empty history.
    pub fn new(limits: HistoryLimits) -> Self {
        Self {
            limits,
            rows: HashMap::new(),
            other: Row::default(),
            floors: HashMap::new(),
            denied: MinuteSums::default(),
            cpu: MinuteSums::default(),
            bytes: 0,
            left_out: 0,
            swept_minute: 0,
        }
    }

    /// Returns the number of paths that are recorded separately.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns the approximate size of all rows, in bytes. Allocators may need somewhat more.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of rows that arrived too late, or for which processes below this one had no room.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Counts rows for which processes below this one had no room.
    pub fn leave_out(&mut self, rows: u64) {
        self.left_out = self.left_out.saturating_add(rows);
    }

    /// Records an interval, which ended `interval.age` before `now_ms`. Counts of an interval over several steps are
    /// divided among the steps by time.
    pub fn record(&mut self, interval: CountedInterval, now_ms: u64) {
        self.sweep(now_ms);
        let to_ms = now_ms.saturating_sub(millis(interval.age));
        let from_ms = to_ms.saturating_sub(millis(interval.span).min(MAX_SPAN_MS));
        for (path, counts) in interval.calls {
            self.record_row(path, counts, (from_ms, to_ms), now_ms);
        }
        let (minute, now_minute) = (minute_of(from_ms.midpoint(to_ms)), minute_of(now_ms));
        for (path, count) in interval.denied {
            if minute < first_minute(now_minute) || !self.denied.add(path, minute, count) {
                self.leave_out(1);
            }
        }
        for (path, cpu_us) in interval.cpu {
            if minute < first_minute(now_minute) || !self.cpu.add(path, minute, cpu_us) {
                self.leave_out(1);
            }
        }
        self.fold_beyond_limits();
    }

    fn record_row(
        &mut self,
        path: CountedPath,
        counts: CallCounts,
        (from_ms, to_ms): (u64, u64),
        now_ms: u64,
    ) {
        if minute_of(to_ms) < first_minute(minute_of(now_ms)) {
            return self.leave_out(1);
        }
        let row = match self.rows.contains_key(&path) {
            false if self.is_folded(&path, &counts) => &mut self.other,
            is_known => {
                if !is_known {
                    self.bytes += size_of_row(&path);
                }
                let weight = first_weight(&counts).saturating_sub(counts.calls());
                self.rows.entry(path).or_insert_with(|| Row { weight, ..Row::default() })
            }
        };
        let change = row.add(counts, (from_ms, to_ms), now_ms);
        self.bytes = self.bytes.saturating_add_signed(change);
    }

    /// Whether a new path is no larger than the rows that were folded for its service.
    fn is_folded(&self, path: &CountedPath, counts: &CallCounts) -> bool {
        let floor = || self.floors.get(&own_service(path).cloned());
        !self.floors.is_empty() && floor().is_some_and(|floor| first_weight(counts) <= *floor)
    }

    /// Returns the sums of the selected rows over the last `window`, and the sum of the merged rows. Windows up to
    /// ten minutes have steps of ten seconds, longer windows have steps of a minute.
    pub fn read(
        &self,
        window: Duration,
        now_ms: u64,
        is_selected: impl Fn(&CountedPath) -> bool,
    ) -> (Vec<RowSum<'_>>, Option<RowSum<'_>>) {
        let window = Window::of(window, now_ms);
        let rows = self.rows.iter().filter(|(path, _)| is_selected(path));
        let sums = rows.filter_map(|(path, row)| row.sum(Some(path), &window, now_ms)).collect();
        (sums, self.other.sum(None, &window, now_ms))
    }

    /// Returns the sum of the selected rows for each step of the last `window`, oldest first, with the part of the
    /// step that reports cover; `None` for a gap. Steps are as long as in [`read`](Self::read).
    pub fn steps(
        &self,
        window: Duration,
        now_ms: u64,
        is_selected: impl Fn(&CountedPath) -> bool,
    ) -> Vec<Option<(CallCounts, Duration)>> {
        let window = Window::of(window, now_ms);
        let mut steps: Vec<Option<(CallCounts, Duration)>> = vec![None; window.steps()];
        for (_, row) in self.rows.iter().filter(|(path, _)| is_selected(path)) {
            for (step, sum) in (window.first..).zip(&mut steps) {
                let Some(counted) = row.ring(&window).get(step) else { continue };
                let (counts, covered) = sum.get_or_insert((CallCounts::ZERO, Duration::ZERO));
                *counts += &counted.counts;
                *covered = (*covered).max(Duration::from_millis(counted.covered_ms()));
            }
        }
        steps
    }

    /// Returns the number of calls between regions for each step of the last `window`, as callers of the selected
    /// services count them: by the regions of callers and servers, with steps as in [`steps`](Self::steps).
    pub fn region_steps(
        &self,
        window: Duration,
        now_ms: u64,
        is_selected: impl Fn(&ServiceName) -> bool,
    ) -> RegionSteps {
        let window = Window::of(window, now_ms);
        let mut pairs = RegionSteps::new();
        for (path, row) in &self.rows {
            let (CountedBy::Caller, Some(from), Some(to)) = (path.by, &path.from, &path.to) else { continue };
            if !is_selected(&path.service) {
                continue;
            }
            let steps = pairs.entry((from.clone(), to.clone())).or_insert_with(|| vec![None; window.steps()]);
            for (step, sum) in (window.first..).zip(steps) {
                let Some(counted) = row.ring(&window).get(step) else { continue };
                let (calls, covered) = sum.get_or_insert((0, Duration::ZERO));
                *calls = u64::saturating_add(*calls, counted.counts.calls());
                *covered = (*covered).max(Duration::from_millis(counted.covered_ms()));
            }
        }
        pairs
    }

    /// Returns the calls that rules do not allow, over the last `window` in whole minutes plus the current minute, and
    /// the number of minutes since the last of them.
    pub fn denied(&self, window: Duration, now_ms: u64) -> impl Iterator<Item = (&DeniedPath, u64, u64)> {
        let now = minute_of(now_ms);
        let sums = self.denied.since(now.saturating_sub(whole_minutes(window)));
        sums.map(move |(path, count, last)| (path, count, now.saturating_sub(last)))
    }

    /// Returns the CPU time of the selected paths in microseconds, for each minute of the last `window` and the
    /// current minute, oldest first.
    pub fn cpu(
        &self,
        window: Duration,
        now_ms: u64,
        is_selected: impl Fn(&CpuPath) -> bool,
    ) -> impl Iterator<Item = (&CpuPath, Vec<u64>)> {
        let now = minute_of(now_ms);
        self.cpu.series(now.saturating_sub(whole_minutes(window))..=now, is_selected)
    }

    /// Returns the length of a step of [`RowSum::series`] for this window.
    pub fn step(window: Duration) -> Duration {
        Duration::from_millis(Window::of(window, 0).step_ms)
    }

    /// Drops data that is too old. Does nothing more than once a minute.
    fn sweep(&mut self, now_ms: u64) {
        let minute = minute_of(now_ms);
        if minute == self.swept_minute {
            return;
        }
        self.swept_minute = minute;
        let mut change = self.other.forget(now_ms);
        self.rows.retain(|path, row| {
            change += row.forget(now_ms);
            row.weight -= row.weight.div_ceil(16);
            let is_kept = !row.minutes.is_empty();
            if !is_kept {
                change -= size_of_row(path) as isize;
            }
            is_kept
        });
        self.bytes = self.bytes.saturating_add_signed(change);
        self.denied.forget_before(first_minute(minute));
        self.cpu.forget_before(first_minute(minute));
        let HistoryLimits { rows, bytes } = self.limits;
        let has_room = self.rows.len() < rows / 4 * 3 && self.bytes < bytes / 4 * 3;
        self.floors.retain(|_, floor| {
            *floor -= floor.div_ceil(16);
            !has_room && *floor > 0
        });
    }

    /// Folds rows into the merged row until the limits hold.
    fn fold_beyond_limits(&mut self) {
        let HistoryLimits { rows, bytes } = self.limits;
        if self.rows.len() > rows {
            self.fold_beyond_shares(rows - rows / FOLDED_PART, |_, _| 1);
        }
        while self.bytes > bytes && !self.rows.is_empty() {
            let room = (bytes - bytes / FOLDED_PART).saturating_sub(self.other.bytes);
            self.fold_beyond_shares(room, |path, row| size_of_row(path) + row.bytes);
        }
    }

    /// Folds the smallest rows of services with more than their share of `room`.
    fn fold_beyond_shares(&mut self, room: usize, size: fn(&CountedPath, &Row) -> usize) {
        let sizes = self.rows.iter().map(|(path, row)| (own_service(path), size(path, row)));
        let shares = beyond_shares(sizes, room);
        let mut by_service = HashMap::<Option<&ServiceName>, Vec<(u64, &CountedPath, usize)>>::new();
        for (path, row) in &self.rows {
            let own = own_service(path);
            if shares.contains_key(&own) {
                by_service.entry(own).or_default().push((row.weight, path, size(path, row)));
            }
        }
        let (mut folded, mut floors) = (Vec::new(), HashMap::new());
        for (own, mut rows) in by_service {
            rows.sort_unstable();
            let mut left: usize = rows.iter().map(|(_, _, size)| size).sum();
            for (weight, path, size) in rows {
                if left <= shares[&own] {
                    break;
                }
                left -= size;
                floors.insert(own.cloned(), weight);
                folded.push(path.clone());
            }
        }
        folded.iter().for_each(|path| self.fold(path));
        if self.floors.len() > self.limits.rows {
            self.floors.clear();
        }
        self.floors.extend(floors);
    }

    fn fold(&mut self, path: &CountedPath) {
        let Some(row) = self.rows.remove(path) else { return };
        let change = self.other.absorb(&row) - (size_of_row(path) + row.bytes) as isize;
        self.bytes = self.bytes.saturating_add_signed(change);
    }
}

impl Row {
    /// Divides counts among the steps of their interval. Returns the change of the row's size in bytes.
    fn add(&mut self, mut counts: CallCounts, (from_ms, to_ms): (u64, u64), now_ms: u64) -> isize {
        self.weight = self.weight.saturating_add(counts.calls());
        self.to_ms = self.to_ms.max(to_ms);
        let forgotten = self.forget(now_ms);
        let mut change = 0;
        let first_step = (step_of(now_ms) + 1).saturating_sub(STEPS);
        let mut at_ms = from_ms;
        loop {
            let step = step_of(at_ms);
            let begin_ms = step * STEP_MS;
            let end_ms = to_ms.min(begin_ms + STEP_MS);
            let part = counts.take_part(end_ms - at_ms, to_ms - at_ms);
            let is_last = end_ms >= to_ms;
            // The last part also gets what remains from rounding.
            let part = if is_last { std::mem::take(&mut counts).plus(&part) } else { part };
            let covered = (at_ms - begin_ms, end_ms - begin_ms);
            if step >= first_step {
                change += self.steps.add(step, &Counted { counts: part.clone(), covered });
            }
            let into_minute = (step % STEPS_OF_MINUTE) * STEP_MS;
            let covered = (covered.0 + into_minute, covered.1 + into_minute);
            change += self.minutes.add(step / STEPS_OF_MINUTE, &Counted { counts: part, covered });
            if is_last {
                return forgotten + self.resize(change);
            }
            at_ms = end_ms;
        }
    }

    /// Adds the counts of another row. Returns the change of this row's size in bytes.
    fn absorb(&mut self, other: &Self) -> isize {
        self.to_ms = self.to_ms.max(other.to_ms);
        let steps: isize = other.steps.iter().map(|(step, counted)| self.steps.add(step, &counted)).sum();
        let minutes = other.minutes.iter().map(|(minute, counted)| self.minutes.add(minute, &counted));
        let change = steps + minutes.sum::<isize>();
        self.resize(change)
    }

    fn forget(&mut self, now_ms: u64) -> isize {
        let first_step = (step_of(now_ms) + 1).saturating_sub(STEPS);
        let steps = self.steps.forget_before(first_step);
        let change = steps + self.minutes.forget_before(first_minute(minute_of(now_ms)));
        self.resize(change)
    }

    fn resize(&mut self, change: isize) -> isize {
        self.bytes = self.bytes.saturating_add_signed(change);
        change
    }

    fn ring(&self, window: &Window) -> &Ring {
        if window.step_ms == STEP_MS { &self.steps } else { &self.minutes }
    }

    /// Returns the sum over a window; `None` if the whole window is a gap.
    fn sum<'a>(&self, path: Option<&'a CountedPath>, window: &Window, now_ms: u64) -> Option<RowSum<'a>> {
        let ring = self.ring(window);
        let (mut sum, mut covered_ms, mut has_data) = (CallCounts::ZERO, 0, false);
        let series = (window.first..=window.last).map(|step| {
            let counted = ring.get(step)?;
            sum += &counted.counts;
            covered_ms += counted.covered_ms();
            has_data = true;
            Some(counted.counts.calls())
        });
        let series = series.collect();
        has_data.then(|| RowSum {
            path,
            counts: sum,
            covered: Duration::from_millis(covered_ms),
            age: Duration::from_millis(now_ms.saturating_sub(self.to_ms)),
            series,
        })
    }
}

/// The steps of a window, by step number.
struct Window {
    step_ms: u64,
    first: u64,
    last: u64,
}

impl Window {
    fn of(window: Duration, now_ms: u64) -> Self {
        let minute_ms = STEP_MS * STEPS_OF_MINUTE;
        let (step_ms, most) = match millis(window) <= STEPS * STEP_MS {
            true => (STEP_MS, STEPS),
            false => (minute_ms, MINUTES),
        };
        let last = now_ms / step_ms;
        let steps = millis(window).div_ceil(step_ms).clamp(1, most);
        Self { step_ms, first: (last + 1).saturating_sub(steps), last }
    }

    fn steps(&self) -> usize {
        usize::try_from(self.last + 1 - self.first).unwrap_or_default()
    }
}

/// Returns the size of a row without its rings, in bytes: its path, the row itself, and its place in the map.
fn size_of_row(path: &CountedPath) -> usize {
    /// Size of a name on the heap, without its text.
    const NAME: usize = 32;
    let name = |name: &str| NAME + name.len();
    let service = |one: &fairmesh_model::ServiceName| name(one.tenant.as_str()) + name(one.service.as_str());
    let names = service(&path.service)
        + path.caller.as_ref().map_or(0, service)
        + path.class.as_ref().map_or(0, |class| name(class.as_str()))
        + [&path.from, &path.to].into_iter().flatten().map(|region| name(region.as_str())).sum::<usize>()
        + [&path.from_zone, &path.to_zone]
            .into_iter()
            .flatten()
            .map(|zone| name(zone.as_str()))
            .sum::<usize>();
    // Hash maps are at least seven sixteenths full.
    names + (size_of::<CountedPath>() + size_of::<Row>()) * 16 / 7
}

fn first_weight(counts: &CallCounts) -> u64 {
    counts.calls().saturating_mul(FIRST_WEIGHT)
}

/// Returns the number of whole minutes that a window covers.
fn whole_minutes(window: Duration) -> u64 {
    millis(window).div_ceil(STEP_MS * STEPS_OF_MINUTE).clamp(1, MINUTES)
}

fn step_of(ms: u64) -> u64 {
    ms / STEP_MS
}

fn minute_of(ms: u64) -> u64 {
    ms / (STEP_MS * STEPS_OF_MINUTE)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
