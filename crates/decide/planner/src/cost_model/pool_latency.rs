use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Label, UTILISATION_BUCKETS};

/// Calls from which on the mean of a bucket counts.
const MIN_CALLS: f64 = 50.0;
/// Utilisations that a fit needs at least: with two, noise of one bucket would be sensitivity.
const MIN_BUCKETS: usize = 3;
/// How long a utilisation that does not occur any more delays a new fit.
const REMEMBERED_MS: u64 = 24 * 3_600 * 1_000;
/// What a full server's utilisation counts as at most: at 1, the model has no value.
const MAX_UTILISATION: f64 = 0.97;

/// Exclusive times of one pool by class and utilisation since they were last fitted, and the fit.
///
/// While only some utilisations have new data, bases are shifted by the mean error of that data. Once every utilisation of
/// the last day is fresh, everything is fitted anew and the data cleared (SLATE, 4.2). A fit to a few utilisations alone was rejected: at
/// night it would forget what high load does.
#[derive(Clone, Debug, Default)]
pub struct PoolLatency {
    fit: Option<LatencyFit>,
    fresh: BTreeMap<(Option<Label>, u8), Times>,
    /// Buckets that had data, and when they last did.
    seen: BTreeMap<u8, u64>,
}

/// Calls of one class at about the same utilisation.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyObservation {
    /// The class.
    pub class: Option<Label>,
    /// Tenths of utilisation, below [`UTILISATION_BUCKETS`].
    pub bucket: u8,
    /// Number of calls.
    pub calls: f64,
    /// The sum of their exclusive times, in microseconds.
    pub exclusive_us: f64,
}

/// `sensitivity × work ÷ (1 − utilisation) + base`, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyFit {
    /// Microseconds for each second of CPU, the same for all classes; not negative.
    pub sensitivity: f64,
    /// Microseconds on an idle pool besides, by class; not negative.
    pub bases: BTreeMap<Option<Label>, f64>,
    /// The root of the mean squared error over calls, relative to the mean time; of the fit itself, before it was shifted.
    pub error: f64,
    /// When it was fitted anew, on the caller's clock.
    pub fitted_at_ms: u64,
    /// When it was last shifted or fitted.
    pub changed_at_ms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    calls: f64,
    sum_us: f64,
}

/// The mean time of a class in a bucket.
struct Point<'a> {
    class: &'a Option<Label>,
    calls: f64,
    mean_us: f64,
    /// Work ÷ (1 − utilisation).
    stress: f64,
}

impl PoolLatency {
    /// Counts calls. Those of full servers, the last tenth, are ignored, and so are observations that are negative or not finite.
    pub fn observe(&mut self, observation: LatencyObservation) {
        let LatencyObservation { class, bucket, calls, exclusive_us } = observation;
        let is_valid = |number: f64| number.is_finite() && number >= 0.0;
        // Full servers have a backlog, whose times say how long it has grown, not what a call takes at this load. No plan goes there.
        if is_valid(calls) && is_valid(exclusive_us) && bucket + 1 < UTILISATION_BUCKETS {
            let times = self.fresh.entry((class, bucket)).or_default();
            times.calls += calls;
            times.sum_us += exclusive_us;
        }
    }

    /// Shifts or renews the fit by what was observed since. `work` is the CPU of a call of each class, in seconds; classes without are left
    /// out.
    pub fn update(&mut self, work: &BTreeMap<Option<Label>, f64>, now_ms: u64) {
        let points: Vec<_> = self.fresh.iter().filter_map(|(key, times)| point(key, *times, work)).collect();
        let buckets: BTreeSet<u8> =
            self.fresh.iter().filter(|(_, times)| times.calls >= MIN_CALLS).map(|((_, at), _)| *at).collect();
        self.seen.retain(|_, at_ms| now_ms.saturating_sub(*at_ms) < REMEMBERED_MS);
        let is_complete = buckets.len() >= MIN_BUCKETS && self.seen.keys().all(|at| buckets.contains(at));
        let fit = match (&self.fit, is_complete) {
            (_, true) => fit(&points, now_ms),
            (Some(known), false) => shift(known.clone(), &points, now_ms),
            (None, false) => None,
        };
        self.seen.extend(buckets.into_iter().map(|bucket| (bucket, now_ms)));
        if is_complete && fit.is_some() {
            self.fresh.clear();
        }
        self.fit = fit.or_else(|| self.fit.take());
    }

    /// The fit; `None` until enough utilisations were observed.
    pub fn fit(&self) -> Option<&LatencyFit> {
        self.fit.as_ref()
    }
}

impl LatencyFit {
    /// The time of a call of this class and work at a utilisation, in microseconds; `None` of a class that was never observed.
    pub fn predict_us(&self, class: &Option<Label>, work: f64, utilisation: f64) -> Option<f64> {
        let stress = work / (1.0 - utilisation.clamp(0.0, MAX_UTILISATION));
        Some(self.bases.get(class)? + self.sensitivity * stress)
    }
}

fn point<'a>(
    (class, bucket): &'a (Option<Label>, u8),
    times: Times,
    work: &BTreeMap<Option<Label>, f64>,
) -> Option<Point<'a>> {
    let work = *work.get(class)?;
    let utilisation = (f64::from(*bucket) + 0.5) / f64::from(UTILISATION_BUCKETS);
    let stress = work / (1.0 - utilisation);
    let mean_us = times.sum_us / times.calls;
    (times.calls >= MIN_CALLS).then_some(Point { class, calls: times.calls, mean_us, stress })
}

/// Least squares, weighted by calls: the common slope within classes, and each class's own offset. A class whose offset would be negative
/// has none, and then counts for the slope with its whole time.
fn fit(points: &[Point<'_>], now_ms: u64) -> Option<LatencyFit> {
    let classes: BTreeSet<&Option<Label>> = points.iter().map(|point| point.class).collect();
    let mut without_base = BTreeSet::new();
    loop {
        let means: BTreeMap<_, _> =
            classes.iter().map(|class| (*class, class_means(points, class))).collect();
        let centre = |point: &Point<'_>| match without_base.contains(point.class) {
            true => (0.0, 0.0),
            false => means[point.class],
        };
        let (mut above, mut below) = (0.0, 0.0);
        for point in points {
            let (stress, mean_us) = centre(point);
            above += point.calls * (point.stress - stress) * (point.mean_us - mean_us);
            below += point.calls * (point.stress - stress).powi(2);
        }
        let sensitivity = if below > 0.0 { (above / below).max(0.0) } else { return None };
        let base = |class: &Option<Label>| match without_base.contains(class) {
            true => 0.0,
            false => means[class].1 - sensitivity * means[class].0,
        };
        let bases: BTreeMap<_, _> = classes.iter().map(|class| ((*class).clone(), base(class))).collect();
        let negative: Vec<_> = classes.iter().filter(|class| bases[**class] < 0.0).copied().collect();
        if negative.is_empty() {
            let fit =
                LatencyFit { sensitivity, bases, error: 0.0, fitted_at_ms: now_ms, changed_at_ms: now_ms };
            return Some(LatencyFit { error: relative_error(&fit, points), ..fit });
        }
        without_base.extend(negative);
    }
}

/// Moves the bases by the mean error of each class; classes without new data by that of the pool.
fn shift(known: LatencyFit, points: &[Point<'_>], now_ms: u64) -> Option<LatencyFit> {
    if points.is_empty() {
        return None;
    }
    let slope = known.sensitivity;
    let error_of = |point: &&Point<'_>| {
        let base = known.bases.get(point.class).copied();
        point.mean_us - slope * point.stress - base.unwrap_or_default()
    };
    let mean_of = |chosen: Vec<&Point<'_>>| {
        let calls: f64 = chosen.iter().map(|point| point.calls).sum();
        let sum: f64 = chosen.iter().map(|point| point.calls * error_of(point)).sum();
        (calls > 0.0).then(|| sum / calls)
    };
    let of_pool = mean_of(points.iter().filter(|point| known.bases.contains_key(point.class)).collect());
    let mut bases = known.bases.clone();
    for point in points {
        bases.entry(point.class.clone()).or_default();
    }
    for (class, base) in &mut bases {
        let own = mean_of(points.iter().filter(|point| point.class == class).collect());
        *base = (*base + own.or(of_pool).unwrap_or_default()).max(0.0);
    }
    Some(LatencyFit { bases, changed_at_ms: now_ms, ..known })
}

/// The mean stress and the mean time of a class.
fn class_means(points: &[Point<'_>], class: &Option<Label>) -> (f64, f64) {
    let (mut calls, mut stress, mut mean_us) = (0.0, 0.0, 0.0);
    for point in points.iter().filter(|point| point.class == class) {
        calls += point.calls;
        stress += point.calls * point.stress;
        mean_us += point.calls * point.mean_us;
    }
    (stress / calls, mean_us / calls)
}

fn relative_error(fit: &LatencyFit, points: &[Point<'_>]) -> f64 {
    let (mut calls, mut squares, mut sum) = (0.0, 0.0, 0.0);
    for point in points {
        let predicted = fit.bases[point.class] + fit.sensitivity * point.stress;
        calls += point.calls;
        squares += point.calls * (point.mean_us - predicted).powi(2);
        sum += point.calls * point.mean_us;
    }
    if sum > 0.0 { (squares / calls).sqrt() / (sum / calls) } else { 0.0 }
}

#[cfg(test)]
mod tests;
