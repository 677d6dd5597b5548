use std::{collections::HashMap, time::Duration};

use fairmesh_model::{CallCounts, CountedInterval, CountedPath, DeniedPath};

use crate::{
    cell::Counted,
    denied::{DeniedCalls, first_minute},
    ring::{MINUTES, Ring, STEP_MS, STEPS, STEPS_OF_MINUTE},
};

/// The longest interval of a report. What is longer counts in its last part.
const MAX_SPAN_MS: u64 = 120_000;
/// When the history is full, this part of it is folded at once, so that sorting rows by size is seldom.
const FOLDED_PART: usize = 16;

/// Bounds of the memory of a [`CallHistory`].
#[derive(Clone, Copy, Debug)]
pub struct HistoryLimits {
    /// Paths that are told apart.
    pub rows: usize,
    /// Bytes of all rows.
    pub bytes: usize,
}

impl HistoryLimits {
    /// Of a control plane.
    pub const CONTROL_PLANE: Self = Self { rows: 20_000, bytes: 240 << 20 };
}

/// Calls by path in the last hour. The smallest paths beyond the limits become one row.
#[derive(Debug)]
pub struct CallHistory {
    limits: HistoryLimits,
    rows: HashMap<CountedPath, Row>,
    other: Row,
    denied: DeniedCalls,
    bytes: usize,
    /// Rows that came too late, or had no room below.
    left_out: u64,
    swept_minute: u64,
}

#[derive(Debug, Default)]
struct Row {
    steps: Ring,
    minutes: Ring,
    /// End of the last interval.
    to_ms: u64,
    /// Calls, of which a sixteenth is forgotten each minute: the size by which rows are folded.
    weight: u64,
}

/// The sum of a row over a window.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSum<'a> {
    /// Its path; `None` for the smallest paths, which are not told apart.
    pub path: Option<&'a CountedPath>,
    /// The sum.
    pub counts: CallCounts,
    /// The part of the window that reports cover.
    pub covered: Duration,
    /// Time since the end of the last interval that was reported.
    pub age: Duration,
    /// Calls in each step of the window, the oldest first; `None`: no report.
    pub series: Vec<Option<u64>>,
}

impl CallHistory {
    /// An empty history.
    pub fn new(limits: HistoryLimits) -> Self {
        Self {
            limits,
            rows: HashMap::new(),
            other: Row::default(),
            denied: DeniedCalls::default(),
            bytes: 0,
            left_out: 0,
            swept_minute: 0,
        }
    }

    /// Paths that are told apart.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Bytes of all rows, as far as they are known: allocators may need some more.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Rows that came too late, or had no room below.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Notes rows that had no room in processes below.
    pub fn leave_out(&mut self, rows: u64) {
        self.left_out = self.left_out.saturating_add(rows);
    }

    /// Records an interval that ended its age before `now_ms`. An interval over several steps is divided among them by time.
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
        let row = match self.rows.get_mut(&path) {
            Some(row) => row,
            None => {
                self.bytes += size_of_row(&path);
                self.rows.entry(path).or_default()
            }
        };
        let change = row.add(counts, (from_ms, to_ms), now_ms);
        self.bytes = self.bytes.saturating_add_signed(change);
    }

    /// The sums of the rows that are selected over the last `window`, and of those that are not told apart. Windows up to ten
    /// minutes have steps of ten seconds, longer ones of minutes.
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

    /// Calls that rules do not allow, over the last `window` in whole minutes and the present one.
    pub fn denied(&self, window: Duration, now_ms: u64) -> impl Iterator<Item = (&DeniedPath, u64)> {
        let minutes = millis(window).div_ceil(STEP_MS * STEPS_OF_MINUTE).clamp(1, MINUTES);
        self.denied.since(minute_of(now_ms).saturating_sub(minutes))
    }

    /// Length of a step of [`RowSum::series`] over this window.
    pub fn step(window: Duration) -> Duration {
        Duration::from_millis(Window::of(window, 0).step_ms)
    }

    /// Forgets what is too old, once a minute.
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
    }

    /// Adds the smallest rows to the one of all others, until the rest is within the limits.
    fn fold_beyond_limits(&mut self) {
        let HistoryLimits { rows, bytes } = self.limits;
        if self.rows.len() <= rows && self.bytes <= bytes {
            return;
        }
        let (rows, bytes) = (rows - rows / FOLDED_PART, bytes - bytes / FOLDED_PART);
        let mut by_weight: Vec<(u64, CountedPath)> =
            self.rows.iter().map(|(path, row)| (row.weight, path.clone())).collect();
        by_weight.sort_unstable();
        for (_, path) in by_weight {
            if self.rows.len() <= rows && self.bytes <= bytes {
                return;
            }
            self.fold(&path);
        }
    }

    fn fold(&mut self, path: &CountedPath) {
        let Some(mut row) = self.rows.remove(path) else { return };
        let mut change = -(size_of_row(path) as isize);
        for (step, counted) in row.steps.iter() {
            change += self.other.steps.add(step, &counted);
        }
        for (minute, counted) in row.minutes.iter() {
            change += self.other.minutes.add(minute, &counted);
        }
        change += row.steps.forget_before(u64::MAX) + row.minutes.forget_before(u64::MAX);
        self.other.to_ms = self.other.to_ms.max(row.to_ms);
        self.bytes = self.bytes.saturating_add_signed(change);
    }
}

impl Row {
    /// Divides counts among the steps of their time; the change of the row's size.
    fn add(&mut self, mut counts: CallCounts, (from_ms, to_ms): (u64, u64), now_ms: u64) -> isize {
        self.to_ms = self.to_ms.max(to_ms);
        self.weight = self.weight.saturating_add(counts.calls());
        let mut change = self.forget(now_ms);
        let first_step = (step_of(now_ms) + 1).saturating_sub(STEPS);
        let mut at_ms = from_ms;
        loop {
            let step = step_of(at_ms);
            let begin_ms = step * STEP_MS;
            let end_ms = to_ms.min(begin_ms + STEP_MS);
            let part = counts.take_part(end_ms - at_ms, to_ms - at_ms);
            let is_last = end_ms >= to_ms;
            // The last part has what rounding left.
            let part = if is_last { std::mem::take(&mut counts).plus(&part) } else { part };
            let covered = (at_ms - begin_ms, end_ms - begin_ms);
            if step >= first_step {
                change += self.steps.add(step, &Counted { counts: part.clone(), covered });
            }
            let into_minute = (step % STEPS_OF_MINUTE) * STEP_MS;
            let covered = (covered.0 + into_minute, covered.1 + into_minute);
            change += self.minutes.add(step / STEPS_OF_MINUTE, &Counted { counts: part, covered });
            if is_last {
                return change;
            }
            at_ms = end_ms;
        }
    }

    fn forget(&mut self, now_ms: u64) -> isize {
        let first_step = (step_of(now_ms) + 1).saturating_sub(STEPS);
        self.steps.forget_before(first_step) + self.minutes.forget_before(first_minute(minute_of(now_ms)))
    }

    /// The sum over a window; `None` if it is one gap.
    fn sum<'a>(&self, path: Option<&'a CountedPath>, window: &Window, now_ms: u64) -> Option<RowSum<'a>> {
        let ring = if window.step_ms == STEP_MS { &self.steps } else { &self.minutes };
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

/// Steps of a window, by their numbers.
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
}

/// Bytes of a row without its rings: its path, itself, and its place in the map.
fn size_of_row(path: &CountedPath) -> usize {
    /// Of a name on the heap.
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
    // Maps are at least seven sixteenths full.
    names + (size_of::<CountedPath>() + size_of::<Row>()) * 16 / 7
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
