//! Times of calls that are not what the model says.

use fairmesh_model::{Label, Region, ServiceName, UTILISATION_BUCKETS};

use super::report_batches::{Batch, PoolBatches};
use crate::optimizer::ServiceModel;

/// Calls from which on the mean of a batch counts.
const MIN_CALLS: f64 = 10.0;
/// Batches that say enough to correct a model, and those that do if the difference is greater than [`LARGE`].
const MIN_BATCHES: usize = 4;
const FEW_BATCHES: usize = 2;
const LARGE: f64 = 0.5;
/// The least difference in milliseconds, and as a part of what the model says.
const LEAST_MS: f64 = 2.0;
const LEAST: f64 = 0.1;
/// A correction stays while the difference is above this part of both.
const STAYS: f64 = 0.5;
/// Standard errors that are no chance.
const NO_CHANCE: f64 = 3.0;
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

/// A mean over batches.
#[derive(Clone, Copy, Debug)]
struct Mean {
    batches: usize,
    /// Milliseconds above the model.
    difference: f64,
    /// The standard deviation of a batch.
    deviation: f64,
    predicted: f64,
    at_ms: u64,
}

/// The correction of a class in a pool, from the batches since the last change.
pub(super) fn correction(
    (service, region, class): &(ServiceName, Region, Option<Label>),
    (pool, known): (&mut PoolBatches, Option<LatencyCorrection>),
    model: &ServiceModel,
    now_ms: u64,
) -> Option<LatencyCorrection> {
    if has_changed(pool, class, model) {
        pool.forget_before_last(FEW_BATCHES);
    }
    let mean = mean_of(pool.batches().iter(), class, model);
    let measured = mean.filter(|mean| is_significant(mean, known.is_some()));
    let target = measured.map_or(0.0, |mean| mean.difference);
    let base_ms = model.cost(class.as_ref()).base_ms;
    let ms = known.as_ref().map_or(target, |known| {
        let elapsed = now_ms.saturating_sub(known.updated_at_ms) as f64;
        let before = known.ms + known.base_ms - base_ms;
        target + (before - target).max(0.0) * (-elapsed / HALF_LIFE_MS).exp2()
    });
    if measured.is_none() && ms.abs() < LEAST_MS {
        return None;
    }
    let unseen = || {
        known
            .as_ref()
            .map_or((0.0, 0.0, 0.0, 0), |one| (one.predicted_ms, one.measured_ms, one.error_ms, one.at_ms))
    };
    let (predicted_ms, measured_ms, error_ms, at_ms) = mean.map_or_else(unseen, |mean| {
        (mean.predicted, mean.predicted + mean.difference, mean.error(), mean.at_ms)
    });
    let since_ms = known.map_or(now_ms, |known| known.since_ms);
    let (service, region, class) = (service.clone(), region.clone(), class.clone());
    let updated_at_ms = now_ms;
    Some(LatencyCorrection {
        service,
        region,
        class,
        predicted_ms,
        measured_ms,
        error_ms,
        since_ms,
        at_ms,
        ms,
        updated_at_ms,
        base_ms,
    })
}

impl Mean {
    /// The standard error.
    fn error(&self) -> f64 {
        self.deviation / (self.batches as f64).sqrt()
    }
}

/// Whether the difference is no chance, and great enough to be worth a correction. Less keeps one that is known.
fn is_significant(mean: &Mean, is_known: bool) -> bool {
    let least = LEAST_MS.max(LEAST * mean.predicted);
    let is_large = mean.difference.abs() > LARGE * mean.predicted;
    let enough = if is_large { FEW_BATCHES } else { MIN_BATCHES };
    let is_new = mean.batches >= enough && mean.difference.abs() > least.max(NO_CHANCE * mean.error());
    is_new || is_known && mean.difference.abs() > STAYS * least
}

/// Whether the last batches differ from those before by more than chance.
fn has_changed(pool: &PoolBatches, class: &Option<Label>, model: &ServiceModel) -> bool {
    let older = pool.batches().len().saturating_sub(FEW_BATCHES);
    let before = mean_of(pool.batches().iter().take(older), class, model);
    let after = mean_of(pool.batches().iter().skip(older), class, model);
    let (Some(before), Some(after)) = (before, after) else { return false };
    if before.batches < FEW_BATCHES || after.batches < FEW_BATCHES {
        return false;
    }
    let error = before.deviation * (1.0 / before.batches as f64 + 1.0 / after.batches as f64).sqrt();
    let measured = before.predicted + before.difference;
    let least = LEAST_MS.max(CHANGE * measured);
    (after.difference - before.difference).abs() > least.max(NO_CHANCE * error)
}

/// `None` where no batch has enough calls.
fn mean_of<'a>(
    batches: impl Iterator<Item = &'a Batch>,
    class: &Option<Label>,
    model: &ServiceModel,
) -> Option<Mean> {
    let points: Vec<_> = batches.filter_map(|batch| point(batch, class, model)).collect();
    let calls: f64 = points.iter().map(|point| point.0).sum();
    let at_ms = points.last()?.3;
    let difference = points.iter().map(|point| point.1).sum::<f64>() / calls;
    let squares: f64 = points.iter().map(|(calls, sum, ..)| calls * (sum / calls - difference).powi(2)).sum();
    let count = points.len() as f64;
    Some(Mean {
        batches: points.len(),
        difference,
        deviation: (squares / calls * count / (count - 1.0).max(1.0)).sqrt(),
        predicted: points.iter().map(|point| point.2).sum::<f64>() / calls,
        at_ms,
    })
}

/// Calls of a batch, the sums of their milliseconds above the model and by the model, and when it ended.
fn point(batch: &Batch, class: &Option<Label>, model: &ServiceModel) -> Option<(f64, f64, f64, u64)> {
    let (mut calls, mut measured, mut predicted) = (0.0, 0.0, 0.0);
    let of_class = batch.times.iter().filter(|((own, _), _)| model.row_of(own.as_ref()) == class.as_ref());
    for ((_, bucket), (count, sum)) in of_class {
        let utilisation = (f64::from(*bucket) + 0.5) / f64::from(UTILISATION_BUCKETS);
        calls += count;
        measured += sum;
        predicted += count * model.predict_ms(class.as_ref(), utilisation);
    }
    (batch.is_measured && batch.is_steady && calls >= MIN_CALLS).then_some((
        calls,
        measured - predicted,
        predicted,
        batch.ended_ms,
    ))
}
