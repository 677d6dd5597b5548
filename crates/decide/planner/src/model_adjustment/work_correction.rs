//! CPU per call that is not what the fit of a pool says.

use fairmesh_model::{Region, ServiceName};

use super::report_batches::{Batch, MAX_BATCHES, PoolBatches};
use crate::cost_model::WorkFit;

/// Batches in which calls must take more CPU.
pub(super) const MIN_BATCHES: usize = 2;
/// The least part by which CPU differs from the fit.
const LEAST: f64 = 0.1;
/// Standard deviations that are no chance.
const NO_CHANCE: f64 = 3.0;
/// A factor is at most this, and at least its inverse.
const MAX_FACTOR: f64 = 4.0;
/// Utilisation below which CPU says little of the work of calls.
const MIN_LOAD: f64 = 0.1;

/// Calls of a pool take other CPU than its fit said.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkCorrection {
    /// The service.
    pub service: ServiceName,
    /// The region of the pool.
    pub region: Region,
    /// Cores that its calls would have used by the fit.
    pub predicted_cores: f64,
    /// Cores in use.
    pub measured_cores: f64,
    /// By this the work of all classes was multiplied.
    pub factor: f64,
    /// When, on the clock of [`crate::Now::ms`].
    pub at_ms: u64,
}

/// The correction of a pool; `None` where the fit is right, by chance or not. Calls that take more CPU count after two batches: a pool
/// that is taken for stronger than it is overflows. Calls that take less count after a minute, because reports that are wrong for a while
/// would send it too many calls.
pub(super) fn correction(
    (service, region): &(ServiceName, Region),
    pool: &PoolBatches,
    fit: &WorkFit,
    now_ms: u64,
) -> Option<WorkCorrection> {
    let batches = pool.batches();
    let last = |count: usize| batches.iter().skip(batches.len().saturating_sub(count));
    let heavier = || {
        let (factor, chance) = factor_of(last(MIN_BATCHES), fit)?;
        // The fault may have begun within the first of them.
        let (newest, _) = factor_of(last(1), fit)?;
        (batches.len() >= MIN_BATCHES && factor > 1.0 + chance).then_some((newest, 1))
    };
    let lighter = || {
        let (factor, chance) = factor_of(last(MAX_BATCHES), fit)?;
        (batches.len() == MAX_BATCHES && factor < 1.0 - chance).then_some((factor, MAX_BATCHES))
    };
    let (factor, count) = heavier().or_else(lighter)?;
    let factor = factor.clamp(MAX_FACTOR.recip(), MAX_FACTOR);
    let seconds: f64 = last(count).map(|batch| batch.seconds).sum();
    let measured_cores = last(count).map(|batch| batch.cpu).sum::<f64>() / seconds;
    Some(WorkCorrection {
        service: service.clone(),
        region: region.clone(),
        predicted_cores: measured_cores / factor,
        measured_cores,
        factor,
        at_ms: now_ms,
    })
}

/// CPU in use as a multiple of what the fit says, and by what part it may differ by chance. `None` where batches are not measured, have
/// hardly any calls, or differ in direction.
fn factor_of<'a>(batches: impl Iterator<Item = &'a Batch>, fit: &WorkFit) -> Option<(f64, f64)> {
    let (mut used, mut expected, mut squares, mut directions) = (0.0, 0.0, 0.0, (false, false));
    for batch in batches {
        let (mut work, mut square) = (fit.background * batch.seconds, 0.0);
        for (class, calls) in &batch.calls {
            let seconds = fit.classes.get(class)?.seconds;
            work += calls * seconds;
            square += calls * seconds * seconds;
        }
        if !batch.is_measured || work < MIN_LOAD * batch.limit {
            return None;
        }
        match batch.cpu > work {
            true => directions.0 = true,
            false => directions.1 = true,
        }
        (used, expected, squares) = (used + batch.cpu, expected + work, squares + square);
    }
    // The deviation if the work of calls is distributed exponentially within their class.
    let deviation = (2.0 * squares).sqrt() / expected;
    (directions != (true, true) && used > 0.0).then(|| (used / expected, (NO_CHANCE * deviation).max(LEAST)))
}
