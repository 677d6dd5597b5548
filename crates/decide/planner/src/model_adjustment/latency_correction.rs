//! Times of calls that are not what the model says.

use fairmesh_model::{Label, Region, ServiceName, UTILISATION_BUCKETS};

use super::report_batches::{Batch, PoolBatches};
use crate::optimizer::ServiceModel;

/// Calls from which on the mean of a batch counts.
const MIN_CALLS: f64 = 10.0;
/// Calls in all batches together that begin a correction, or raise one.
const MIN_EVIDENCE: f64 = 100.0;
/// Batches that say enough to correct a model, and those that do if the difference is greater than [`LARGE`].
const MIN_BATCHES: usize = 4;
const FEW_BATCHES: usize = 2;
const LARGE: f64 = 0.5;
/// The least difference in milliseconds, and as a part of what the model says.
const LEAST_MS: f64 = 2.0;
const LEAST: f64 = 0.1;
/// A correction stays while the difference is above this part of both.
const STAYS: f64 = 0.5;
/// Standard errors that are no chance: by the means of batches, and of as many calls with times that are distributed exponentially. The
/// latter are more, because few calls are far from the normal distribution, and each class is tested after each batch.
const NO_CHANCE: f64 = 3.0;
const NO_CHANCE_OF_CALLS: f64 = 4.0;
/// The part of the mean by which the last batches differ from those before if something has changed.
const CHANGE: f64 = 0.25;
/// The time in which a correction falls by half of the way to what is measured now, and to nothing while no call is measured.
const HALF_LIFE_MS: f64 = 120_000.0;

/// Calls of one class in one region take longer or shorter than the model says.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyCorrection {
    /// The service.
    pub service: ServiceName,
    /// The region of the servers.
    pub region: Region,
    /// The class; `None`: all calls without a class of their own.
    pub class: Option<Label>,
    /// Mean milliseconds of a call, without the calls that it makes, by the model.
    pub predicted_ms: f64,
    /// The same as measured.
    pub measured_ms: f64,
    /// The standard error of the difference, by the means of batches.
    pub error_ms: f64,
    /// The calls that it was measured by.
    pub calls: f64,
    /// Since when the model is corrected, on the clock of [`crate::Now::ms`].
    pub since_ms: u64,
    /// When calls were measured last.
    pub at_ms: u64,
    /// What is added to each call, in milliseconds. It rises at once and falls slowly: a region may be faster only because the plan has
    /// taken its calls away, as one whose cache is too small for them.
    pub ms: f64,
    /// When `ms` was computed, and the model's milliseconds without load at that time: the fit follows, and takes a part of `ms` over.
    pub(super) updated_at_ms: u64,
    pub(super) base_ms: f64,
}

/// The calls of a class in a batch.
#[derive(Clone, Copy, Debug)]
struct Point {
    calls: f64,
    /// Mean milliseconds above the model.
    difference: f64,
    /// Mean milliseconds by the model.
    predicted: f64,
    ended_ms: u64,
}

/// A mean over batches, weighted by calls.
#[derive(Clone, Copy, Debug)]
struct Mean {
    batches: usize,
    calls: f64,
    /// Milliseconds above the model.
    difference: f64,
    /// Standard deviation of the differences of the batches, weighted by calls, in milliseconds.
    deviation: f64,
    predicted: f64,
    at_ms: u64,
}

/// The correction of a class in a pool, from the batches since the last change of its calls.
pub(super) fn correction(
    key: &(ServiceName, Region, Option<Label>),
    (pool, known): (&mut PoolBatches, Option<LatencyCorrection>),
    model: &ServiceModel,
    now_ms: u64,
) -> Option<LatencyCorrection> {
    let class = &key.2;
    let mut points: Vec<Point> =
        pool.of_class(class).filter_map(|batch| Point::of(batch, class, model)).collect();
    if let Some(changed_ms) = changed_ms(&points) {
        pool.change_class(class, changed_ms);
        points.retain(|point| point.ended_ms > changed_ms);
    }
    let mean = Mean::of(&points);
    let base_ms = model.cost(class.as_ref()).base_ms;
    let before = known.as_ref().map(|known| known.ms + known.base_ms - base_ms);
    let measured = mean.and_then(|mean| mean.target(before));
    let target = measured.unwrap_or_default();
    let ms = known.as_ref().zip(before).map_or(target, |(known, before)| {
        let elapsed = now_ms.saturating_sub(known.updated_at_ms) as f64;
        target + (before - target).max(0.0) * (-elapsed / HALF_LIFE_MS).exp2()
    });
    if measured.is_none() && ms.abs() < LEAST_MS {
        return None;
    }
    let since_ms = known.as_ref().map_or(now_ms, |known| known.since_ms);
    // Without calls, the last ones are what is known.
    let seen = mean.map(|mean| mean.seen(key, since_ms)).or(known)?;
    Some(LatencyCorrection { ms, updated_at_ms: now_ms, base_ms, ..seen })
}

impl Mean {
    /// `None` where no batch has enough calls.
    fn of(points: &[Point]) -> Option<Self> {
        let at_ms = points.last()?.ended_ms;
        let calls: f64 = points.iter().map(|point| point.calls).sum();
        let mean = |value: &dyn Fn(&Point) -> f64| {
            points.iter().map(|point| point.calls * value(point)).sum::<f64>() / calls
        };
        let difference = mean(&|point| point.difference);
        let variance = mean(&|point| (point.difference - difference).powi(2));
        let count = points.len() as f64;
        Some(Self {
            batches: points.len(),
            calls,
            difference,
            deviation: (variance * count / (count - 1.0).max(1.0)).sqrt(),
            predicted: mean(&|point| point.predicted),
            at_ms,
        })
    }

    /// The standard error of the difference by the means of batches.
    fn error(&self) -> f64 {
        self.deviation / (self.batches as f64).sqrt()
    }

    /// What the difference is by chance. Without the part of calls, two batches that happen to agree would be certain.
    fn chance(&self) -> f64 {
        (NO_CHANCE * self.error()).max(NO_CHANCE_OF_CALLS * self.predicted / self.calls.sqrt())
    }

    /// What calls are to be corrected by, if the difference is no chance and great enough to be worth it. Less keeps a correction that is
    /// in force, which has no more than `before` by few calls.
    fn target(&self, before: Option<f64>) -> Option<f64> {
        let least = LEAST_MS.max(LEAST * self.predicted);
        let is_large = self.difference.abs() > LARGE * self.predicted;
        let enough = if is_large { FEW_BATCHES } else { MIN_BATCHES };
        let is_known_well = self.calls >= MIN_EVIDENCE;
        let is_no_chance = self.difference.abs() > least.max(self.chance());
        match before {
            _ if is_known_well && self.batches >= enough && is_no_chance => Some(self.difference),
            Some(before) if self.difference.abs() > STAYS * least => Some(match is_known_well {
                true => self.difference,
                false => self.difference.clamp(before.min(0.0), before.max(0.0)),
            }),
            _ => None,
        }
    }

    /// What is measured, without what follows from it.
    fn seen(
        &self,
        (service, region, class): &(ServiceName, Region, Option<Label>),
        since_ms: u64,
    ) -> LatencyCorrection {
        LatencyCorrection {
            service: service.clone(),
            region: region.clone(),
            class: class.clone(),
            predicted_ms: self.predicted,
            measured_ms: self.predicted + self.difference,
            error_ms: self.error(),
            calls: self.calls,
            since_ms,
            at_ms: self.at_ms,
            ms: 0.0,
            updated_at_ms: 0,
            base_ms: 0.0,
        }
    }
}

/// The end of the last batch before a change: the last batches differ from those before by more than chance.
fn changed_ms(points: &[Point]) -> Option<u64> {
    let (before, after) = points.split_at(points.len().saturating_sub(FEW_BATCHES));
    let last_ms = before.last()?.ended_ms;
    let (before, after) = (Mean::of(before)?, Mean::of(after)?);
    if before.batches < FEW_BATCHES {
        return None;
    }
    let measured = before.predicted + before.difference;
    let of_batches = before.deviation * (1.0 / before.batches as f64 + 1.0 / after.batches as f64).sqrt();
    let of_calls = measured * (1.0 / before.calls + 1.0 / after.calls).sqrt();
    let least = LEAST_MS.max(CHANGE * measured);
    let differs = (after.difference - before.difference).abs();
    let chance = (NO_CHANCE * of_batches).max(NO_CHANCE_OF_CALLS * of_calls);
    (differs > least.max(chance)).then_some(last_ms)
}

impl Point {
    /// `None` where a batch has few calls, or its times say nothing of their load.
    fn of(batch: &Batch, class: &Option<Label>, model: &ServiceModel) -> Option<Self> {
        let (mut calls, mut measured, mut predicted) = (0.0, 0.0, 0.0);
        let of_class =
            batch.times.iter().filter(|((own, _), _)| model.row_of(own.as_ref()) == class.as_ref());
        for ((_, bucket), (count, sum)) in of_class {
            let utilisation = (f64::from(*bucket) + 0.5) / f64::from(UTILISATION_BUCKETS);
            calls += count;
            measured += sum;
            predicted += count * model.predict_ms(class.as_ref(), utilisation);
        }
        (batch.is_measured && batch.is_steady && calls >= MIN_CALLS).then(|| Self {
            calls,
            difference: (measured - predicted) / calls,
            predicted: predicted / calls,
            ended_ms: batch.ended_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_calls_keep_a_correction_and_neither_begin_nor_raise_one() {
        let few =
            Mean { batches: 3, calls: 40.0, difference: 200.0, deviation: 1.0, predicted: 50.0, at_ms: 0 };
        assert_eq!(few.target(None), None);
        assert_eq!(few.target(Some(100.0)), Some(100.0));
        assert_eq!(Mean { difference: 60.0, ..few }.target(Some(100.0)), Some(60.0));
        assert_eq!(Mean { difference: 1.0, ..few }.target(Some(100.0)), None);
        let many = Mean { calls: 400.0, ..few };
        assert_eq!([many.target(None), many.target(Some(100.0))], [Some(200.0); 2]);
    }
}
