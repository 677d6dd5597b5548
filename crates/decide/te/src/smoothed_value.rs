//! A number that is reported with noise.

/// Values from which the noise is estimated.
const REMEMBERED: usize = 32;
/// Before so many of them are known, every value counts in full.
const MIN_REMEMBERED: usize = 8;
/// The part of the residuals that counts: the greatest are those of changes.
const TRIMMED: f64 = 0.875;
/// The mean of that part, and the median, of what [`Smoothed::residual`] gives for white noise with a standard deviation of 1.
const MEAN_OF_RESIDUALS: f64 = 0.772;
const MEDIAN_OF_RESIDUALS: f64 = 0.826;
/// The median is less precise, and hardly moved by changes. By the mean, the noise is at most this multiple of that by the median.
const MOST_BY_MEDIAN: f64 = 1.5;
/// A value so many standard deviations away is no noise, and this much more for values of a second: those of longer intervals
/// come seldom, and so do false alarms.
const OUTLIER: f64 = 4.0;
const OUTLIER_OF_SECOND: f64 = 1.0;
/// Deviations are summed up beyond this, in standard deviations, and no noise once the sum is above the other, for values of
/// a second.
const SLACK: f64 = 0.5;
const DECISION: f64 = 9.0;
/// The noise that is left in the mean, as a part of it.
const WANTED_NOISE: f64 = 0.005;
/// A trend is a line through so many values whose slope is so many of its standard deviations from 0.
const LINE: usize = 6;
const TREND: f64 = 4.0;
/// What values that are taken for changes and are none add to the variance of the mean, as a part of that of the values: by simulation of
/// white noise.
const FALSE_CHANGES: f64 = 0.02;
/// However large the noise is, a value of so many milliseconds counts in full.
const LONGEST_MEMORY_MS: f64 = 60_000.0;
/// Deviations below this part of the mean are rounding errors.
const ROUNDING: f64 = 1e-9;
/// The standard deviation of the slope of a line through [`LINE`] values with a standard deviation of 1.
const SLOPE_ERROR: f64 = 0.239;
/// Intervals count as at least this long.
const SHORTEST_INTERVAL_MS: f64 = 200.0;

/// A number that is smoothed by its own noise: one without noise is followed at once, and one with noise as slowly as
/// that asks for. A change that is no noise is followed at once as well.
///
/// What is noise is known from the noise itself: a value is compared with the two before (Gasser, Sroka and
/// Jennen-Steinmetz, Biometrika 73, 1986), so that neither steps nor ramps count as noise. A change is a value that is far
/// away, or several in a row on the same side (Page, Continuous inspection schemes, Biometrika 41, 1954).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Smoothed {
    mean: f64,
    /// When the last value was of, how long after the one before, and the last values.
    at_ms: u64,
    interval_ms: f64,
    /// The mean of the last intervals, to which the slope refers: single ones are shorter where a change hurries a value.
    mean_interval_ms: f64,
    last: [f64; LINE],
    /// How much more each value is than the one before, while the last ones are on a line.
    slope: f64,
    /// How many values there were, in all and since the last change.
    count: usize,
    since_change: f64,
    /// 1 or -1 while each value since the last change is farther the same way: it goes on, or its first value was that of a part of an
    /// interval.
    direction: f64,
    /// The last residuals, and the standard deviation that they show; 0 while too few are known.
    residuals: [f32; REMEMBERED],
    noise: f64,
    above: Run,
    below: Run,
}

/// Values in a row whose deviations to one side add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Run {
    /// In standard deviations.
    deviation: f64,
    sum: f64,
    count: f64,
}

impl Smoothed {
    /// A number of which one value is known.
    pub(crate) fn of(value: f64) -> Self {
        Self { mean: value, last: [value; LINE], count: 1, since_change: 1.0, ..Self::default() }
    }

    /// Takes a value of this time, and returns the mean.
    pub(crate) fn observe(&mut self, value: f64, at_ms: u64) -> f64 {
        if self.count == 0 {
            *self = Self { at_ms, ..Self::of(value) };
            return value;
        }
        self.interval_ms = at_ms.saturating_sub(self.at_ms) as f64;
        self.at_ms = at_ms;
        let weight = if self.count < 2 { 1.0 } else { 1.0 / LINE as f64 };
        self.mean_interval_ms += weight * (self.interval_ms - self.mean_interval_ms);
        self.remember(value);
        let noise = self.noise;
        let deviation = value - self.mean;
        let line = self.line(noise);
        self.slope = line.map_or(0.0, |line| line.slope);
        let goes_on = self.since_change <= 1.0 && deviation * self.direction > noise;
        if goes_on || self.is_far(deviation, noise) {
            self.restart(value, 1.0);
        } else if let Some(line) = line {
            // The end of a line through six values is as precise as a mean of two.
            self.restart(line.end, 2.0);
        } else if let Some(run) = self.changed(value, deviation / noise) {
            self.restart(run.sum / run.count, run.count);
        } else {
            // What was before the last change says nothing: first the mean is that of the values since.
            self.since_change += 1.0;
            self.direction = 0.0;
            let weight = self.weight(noise, self.interval_ms).max(1.0 / self.since_change);
            self.mean += weight * deviation;
        }
        self.mean
    }

    /// Whether a value is so far from the mean that it is no noise.
    pub(crate) fn is_outlier(&self, value: f64) -> bool {
        self.is_far(value - self.mean, self.noise)
    }

    fn is_far(&self, deviation: f64, noise: f64) -> bool {
        let most = (OUTLIER + OUTLIER_OF_SECOND / self.seconds()) * noise;
        noise <= ROUNDING * self.mean.abs() || deviation.abs() > most
    }

    /// Lets the next value count in full, as after a change: what is measured has changed, and the values so far say nothing of it.
    pub(crate) fn forget(&mut self) {
        (self.since_change, self.direction) = (0.0, 0.0);
        (self.above, self.below) = (Run::default(), Run::default());
    }

    /// Whether so few values are known that each counts in full.
    pub(crate) fn is_new(&self) -> bool {
        self.count < MIN_REMEMBERED + 2
    }

    /// Whether its last value is so much older than this, or there is none.
    pub(crate) fn is_older(&self, than_ms: u64, by_ms: u64) -> bool {
        self.count == 0 || than_ms >= self.at_ms.saturating_add(by_ms)
    }

    /// The mean.
    pub(crate) fn mean(&self) -> f64 {
        self.mean
    }

    /// The mean to be expected so long after its last value: higher, if values rise along a line.
    pub(crate) fn ahead(&self, by_ms: f64) -> f64 {
        let intervals = by_ms / self.mean_interval_ms.max(SHORTEST_INTERVAL_MS);
        self.mean + self.slope.max(0.0) * intervals
    }

    /// Half of the interval of the last value: it is a mean over that.
    pub(crate) fn half_interval_ms(&self) -> f64 {
        self.interval_ms / 2.0
    }

    /// When the last value was of.
    pub(crate) fn at_ms(&self) -> u64 {
        self.at_ms
    }

    /// The standard deviation of the mean.
    pub(crate) fn error(&self) -> f64 {
        let noise = self.noise;
        let weight = self.weight(noise, self.interval_ms);
        let settled = weight / (2.0 - weight);
        noise * (settled.max(1.0 / self.since_change.max(1.0)) + FALSE_CHANGES).sqrt()
    }

    /// How much less than the other values one counts, at most 1.
    fn weight(&self, noise: f64, elapsed_ms: f64) -> f64 {
        let noise = noise / self.mean.abs().max(f64::MIN_POSITIVE);
        // A mean that each value enters with the weight w has w / (2 - w) of the variance.
        let wanted = 2.0 * WANTED_NOISE.powi(2) / (noise.powi(2) + WANTED_NOISE.powi(2));
        wanted.max(elapsed_ms / LONGEST_MEMORY_MS).min(1.0)
    }

    /// The length of the last interval.
    fn seconds(&self) -> f64 {
        (self.interval_ms / 1e3).max(1.0)
    }

    /// The values since they are on one side of the mean, if that is no noise.
    fn changed(&mut self, value: f64, deviation: f64) -> Option<Run> {
        let decision = DECISION / self.seconds().sqrt();
        self.above.add(value, deviation, decision).or(self.below.add(value, -deviation, decision))
    }

    /// Goes on from another mean. Numbers of calls have a variance in proportion to them, so what is known of the noise holds there
    /// once it is scaled; as it was, it would be that of the old mean until half of the residuals are new.
    fn restart(&mut self, mean: f64, values: f64) {
        if self.mean > 0.0 && mean > 0.0 {
            let scale = (mean / self.mean).sqrt();
            self.residuals.iter_mut().for_each(|residual| *residual *= scale as f32);
            self.noise *= scale;
        }
        self.direction = (mean - self.mean).signum();
        (self.mean, self.since_change) = (mean, values);
        (self.above, self.below) = (Run::default(), Run::default());
    }

    fn remember(&mut self, value: f64) {
        if self.count >= 2 {
            self.residuals[self.count % REMEMBERED] = self.residual(value) as f32;
        }
        self.last.rotate_left(1);
        self.last[LINE - 1] = value;
        self.count += 1;
        self.noise = self.estimated_noise();
    }

    /// How far the last value is from the line through this one and the one before: of white noise, what is left of a ramp.
    fn residual(&self, value: f64) -> f64 {
        let [.., before, last] = self.last;
        (last - f64::midpoint(before, value)).abs()
    }

    /// The line through the last values, if they rise or fall along it: neither noise nor a step.
    fn line(&self, noise: f64) -> Option<Line> {
        if self.is_new() {
            return None;
        }
        let line = Line::through(&self.last);
        let [.., before, _, last] = self.last;
        // A trend that ends is no longer one of the last values.
        let late = (last - before) / 2.0;
        let slope =
            if late * line.slope > 0.0 { line.slope.abs().min(late.abs()).copysign(line.slope) } else { 0.0 };
        let is_trend = line.slope.abs() > (TREND * noise * SLOPE_ERROR).max(ROUNDING * self.mean.abs());
        (is_trend && slope != 0.0 && line.squares < squares_of_step(&self.last))
            .then_some(Line { slope, ..line })
    }

    /// The standard deviation by the residuals.
    fn estimated_noise(&self) -> f64 {
        let known = self.count.saturating_sub(2).min(REMEMBERED);
        if known < MIN_REMEMBERED {
            return 0.0;
        }
        let mut residuals = self.residuals;
        // Those that are not known yet are 0, and come first.
        residuals.sort_unstable_by(f32::total_cmp);
        let known = &residuals[REMEMBERED - known..];
        let by_median = f64::from(known[known.len() / 2]) / MEDIAN_OF_RESIDUALS;
        let counting = &known[..(known.len() as f64 * TRIMMED) as usize];
        let mean = counting.iter().map(|one| f64::from(*one)).sum::<f64>() / counting.len() as f64;
        (mean / MEAN_OF_RESIDUALS).min(MOST_BY_MEDIAN * by_median)
    }
}

/// A line through equally distant values.
#[derive(Clone, Copy, Debug)]
struct Line {
    /// From one value to the next.
    slope: f64,
    /// At the last value.
    end: f64,
    /// The sum of the squared distances of values from it.
    squares: f64,
}

impl Line {
    /// The line of the least squares.
    fn through(values: &[f64; LINE]) -> Self {
        let mean = values.iter().sum::<f64>() / LINE as f64;
        let position = |at: usize| at as f64 - (LINE - 1) as f64 / 2.0;
        let spread: f64 = (0..LINE).map(|at| position(at).powi(2)).sum();
        let slope = values.iter().enumerate().map(|(at, value)| position(at) * value).sum::<f64>() / spread;
        let distance = |(at, value): (usize, &f64)| value - mean - slope * position(at);
        let squares = values.iter().enumerate().map(|one| distance(one).powi(2)).sum();
        Self { slope, end: mean + slope * position(LINE - 1), squares }
    }
}

/// The least sum of squared distances from two means, of the values before some moment and after it.
fn squares_of_step(values: &[f64; LINE]) -> f64 {
    let squares = |part: &[f64]| {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        part.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
    };
    let at = |at: usize| squares(&values[..at]) + squares(&values[at..]);
    (1..LINE).map(at).fold(f64::INFINITY, f64::min)
}

impl Run {
    /// Takes a value; returns the run once its deviations are no noise.
    fn add(&mut self, value: f64, deviation: f64, decision: f64) -> Option<Self> {
        self.deviation += deviation - SLACK;
        if self.deviation <= 0.0 {
            *self = Self::default();
            return None;
        }
        (self.sum, self.count) = (self.sum + value, self.count + 1.0);
        (self.deviation > decision).then_some(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// White noise from -1 to 1.
    fn noise(count: usize) -> Vec<f64> {
        let mut state = 7_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
        };
        (0..count).map(|_| next()).collect()
    }

    /// The means after each of these values, a second apart.
    fn means(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
        let mut number = Smoothed::default();
        values.into_iter().zip(1..).map(|(value, second)| number.observe(value, second * 1_000)).collect()
    }

    #[test]
    fn smoothed_value_follows_noiseless_number_at_once() {
        let ramp = (3..=20).map(f64::from);
        let steps: Vec<f64> = [5.0, 5.0, 5.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 2.0, 2.0, 2.0]
            .into_iter()
            .chain(ramp)
            .chain([50.0])
            .collect();
        assert_eq!(means(steps.clone()), steps);
    }

    #[test]
    fn smoothed_value_of_noisy_number_stays_near_its_mean() {
        let noisy = noise(600).into_iter().map(|noise| 100.0 + 20.0 * noise);
        let settled = &means(noisy)[30..];
        let far = settled.iter().filter(|mean| (**mean - 100.0).abs() > 5.0).count();
        assert!(far < settled.len() / 20, "{far} of {settled:?}");
    }

    #[test]
    fn noise_estimate_of_smoothed_value_adapts_soon_after_step() {
        for (from, to) in [(1_000.0, 100.0), (100.0, 1_000.0)] {
            let mut number = Smoothed::default();
            let level = |second: u64| if second <= 60 { from } else { to };
            let mut noises = Vec::new();
            for (second, noise) in (1..).zip(noise(120)) {
                let mean: f64 = level(second);
                number.observe(mean + 1.7 * mean.sqrt() * noise, second * 1_000);
                noises.push(number.noise);
            }
            let (soon, settled) = (noises[65], noises[119]);
            assert!(
                (0.5..2.0).contains(&(soon / settled)),
                "{soon} and later {settled}, from {from} to {to}"
            );
        }
    }

    #[test]
    fn smoothed_value_foretells_ramp_until_it_ends_and_no_step() {
        let level = |second: u64| 100.0 + 10.0 * second.saturating_sub(60).min(12) as f64;
        let (mut ramp, mut step) = (Smoothed::default(), Smoothed::default());
        for (second, noise) in (1..).zip(noise(90)) {
            ramp.observe(level(second) + 5.0 * noise, second * 1_000);
            let after_step = if second > 60 { 150.0 } else { 100.0 };
            step.observe(after_step + 5.0 * noise, second * 1_000);
            assert_eq!(step.ahead(3_000.0), step.mean(), "{second} s");
            if (67..=70).contains(&second) {
                let foretold = ramp.ahead(3_000.0);
                let error = foretold - level(second) - 30.0;
                assert!(error.abs() < 20.0, "{foretold} at {second} s, {error} beside the ramp");
            }
        }
        assert!((ramp.ahead(3_000.0) - 220.0).abs() < 5.0, "{}", ramp.ahead(3_000.0));
    }

    #[test]
    fn smoothed_value_foretells_ramp_at_its_pace_after_short_interval() {
        let mut smoothed = Smoothed::default();
        for second in 0..20_u32 {
            smoothed.observe(100.0 + 10.0 * f64::from(second), u64::from(second) * 1_000);
        }
        smoothed.observe(295.0, 19_500);
        let growth = smoothed.ahead(1_000.0) - smoothed.mean();
        assert!((5.0..=11.0).contains(&growth), "{growth} instead of 10");
    }

    #[test]
    fn smoothed_value_follows_large_step_at_once_and_small_step_in_seconds() {
        let step = |to: f64| {
            let level = |second: usize| if second < 60 { 100.0 } else { to };
            let values =
                noise(80).into_iter().enumerate().map(|(second, noise)| level(second) + 20.0 * noise);
            let means = means(values);
            let reached = |mean: &f64| (*mean - 100.0).abs() > 0.8 * (to - 100.0).abs();
            means[60..].iter().position(reached)
        };
        assert_eq!(step(190.0), Some(0));
        assert!(step(130.0).is_some_and(|seconds| seconds <= 5), "{:?}", step(130.0));
        assert!(step(70.0).is_some_and(|seconds| seconds <= 5), "{:?}", step(70.0));
    }
}
