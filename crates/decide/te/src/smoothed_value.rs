//! A number that is reported with noise.

/// Values from which the noise is estimated.
const REMEMBERED: usize = 32;
/// Before so many of them are known, every value counts in full.
const MIN_REMEMBERED: usize = 8;
/// The median of what [`Smoothed::residual`] gives for white noise with a standard deviation of 1.
const MEDIAN_OF_RESIDUALS: f64 = 0.826;
/// A value so many standard deviations away is no noise, and this much more for values of a second: those of longer intervals
/// come seldom, and so do false alarms.
const OUTLIER: f64 = 4.0;
const OUTLIER_OF_SECOND: f64 = 1.0;
/// Deviations are summed up beyond this, in standard deviations, and no noise once the sum is above the other, for values of
/// a second.
const SLACK: f64 = 0.5;
const DECISION: f64 = 8.0;
/// The noise that is left in the mean, as a part of it.
const WANTED_NOISE: f64 = 0.015;
/// However large the noise is, a value of so many milliseconds counts in full.
const LONGEST_MEMORY_MS: f64 = 60_000.0;
/// Deviations below this part of the mean are rounding errors.
const ROUNDING: f64 = 1e-9;

/// A number that is smoothed by its own noise: one without noise is followed at once, and one with noise as slowly as
/// that asks for. A change that is no noise is followed at once as well.
///
/// What is noise is known from the noise itself: a value is compared with the two before (Gasser, Sroka and
/// Jennen-Steinmetz, Biometrika 73, 1986), so that neither steps nor ramps count as noise. A change is a value that is far
/// away, or several in a row on the same side (Page, Continuous inspection schemes, Biometrika 41, 1954).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Smoothed {
    mean: f64,
    /// When the last value was of, how long after the one before, and the last two values.
    at_ms: u64,
    interval_ms: f64,
    last: [f64; 2],
    /// How many values there were, in all and since the last change.
    count: usize,
    since_change: f64,
    /// The last residuals.
    residuals: [f32; REMEMBERED],
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
        Self { mean: value, last: [value; 2], count: 1, since_change: 1.0, ..Self::default() }
    }

    /// Takes a value of this time, and returns the mean.
    pub(crate) fn observe(&mut self, value: f64, at_ms: u64) -> f64 {
        if self.count == 0 {
            *self = Self { at_ms, ..Self::of(value) };
            return value;
        }
        self.interval_ms = at_ms.saturating_sub(self.at_ms) as f64;
        self.at_ms = at_ms;
        self.remember(value);
        let noise = self.noise();
        let deviation = value - self.mean;
        let most = (OUTLIER + OUTLIER_OF_SECOND / self.seconds()) * noise;
        if noise <= ROUNDING * self.mean.abs() || deviation.abs() > most {
            self.restart(value, 1.0);
        } else if let Some(run) = self.changed(value, deviation / noise) {
            self.restart(run.sum / run.count, run.count);
        } else {
            // What was before the last change says nothing: first the mean is that of the values since.
            self.since_change += 1.0;
            let weight = self.weight(noise, self.interval_ms).max(1.0 / self.since_change);
            self.mean += weight * deviation;
        }
        self.mean
    }

    /// Lets the next value count in full, as after a change: what is measured has changed, and the values so far say nothing of it.
    pub(crate) fn forget(&mut self) {
        self.since_change = 0.0;
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

    /// The standard deviation of the mean.
    pub(crate) fn error(&self) -> f64 {
        let noise = self.noise();
        let weight = self.weight(noise, self.interval_ms);
        noise * (weight / (2.0 - weight)).sqrt()
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
            let scale = (mean / self.mean).sqrt() as f32;
            self.residuals.iter_mut().for_each(|residual| *residual *= scale);
        }
        (self.mean, self.since_change) = (mean, values);
        (self.above, self.below) = (Run::default(), Run::default());
    }

    fn remember(&mut self, value: f64) {
        if self.count >= 2 {
            self.residuals[self.count % REMEMBERED] = self.residual(value) as f32;
        }
        self.last = [self.last[1], value];
        self.count += 1;
    }

    /// How far the last value is from the line through this one and the one before: of white noise, what is left of a ramp.
    fn residual(&self, value: f64) -> f64 {
        (self.last[1] - f64::midpoint(self.last[0], value)).abs()
    }

    /// The standard deviation; 0 while too few values are known.
    fn noise(&self) -> f64 {
        let known = self.count.saturating_sub(2).min(REMEMBERED);
        if known < MIN_REMEMBERED {
            return 0.0;
        }
        let mut residuals = self.residuals;
        // Those that are not known yet are 0, and come first.
        residuals.sort_unstable_by(f32::total_cmp);
        f64::from(residuals[REMEMBERED - known + known / 2]) / MEDIAN_OF_RESIDUALS
    }
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
            let mut errors = Vec::new();
            for (second, noise) in (1..).zip(noise(120)) {
                let mean: f64 = level(second);
                number.observe(mean + 1.7 * mean.sqrt() * noise, second * 1_000);
                errors.push(number.error());
            }
            let (soon, settled) = (errors[65], errors[119]);
            assert!(
                (0.5..2.0).contains(&(soon / settled)),
                "{soon} and later {settled}, from {from} to {to}"
            );
        }
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
