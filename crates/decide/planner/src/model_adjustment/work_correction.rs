//! CPU per call that is not what the fit of a pool says.

use fairmesh_model::{Region, ServiceName};

use super::report_batches::{Batch, MAX_BATCHES, PoolBatches};
use crate::cost_model::WorkFit;

/// Batches in which calls must take more CPU, at least.
pub(super) const MIN_BATCHES: usize = 2;
/// Calls that these batches have together, at least. The work of calls may be less even than exponentially distributed, so that few of them
/// say little of the others.
const MIN_CALLS: f64 = 100.0;
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
    /// The calls that it was measured by.
    pub calls: f64,
    /// By this the work of all classes was multiplied.
    pub factor: f64,
    /// When, on the clock of [`crate::Now::ms`].
    pub at_ms: u64,
}

/// The correction of a pool; `None` where the fit is right, by chance or not. Calls that take more CPU count after two batches, or as many
/// as have enough calls: a pool that is taken for stronger than it is overflows. Calls that take less count after a minute, because reports
/// that are wrong for a while would send it too many calls.
pub(super) fn correction(
    (service, region): &(ServiceName, Region),
    pool: &PoolBatches,
    fit: &WorkFit,
    now_ms: u64,
) -> Option<WorkCorrection> {
    let batches = pool.batches();
    let last = |count: usize| batches.iter().skip(batches.len().saturating_sub(count));
    let calls = |count: usize| last(count).map(Batch::processed).sum::<f64>();
    let heavier = || {
        let enough = (MIN_BATCHES..=batches.len()).find(|count| calls(*count) >= MIN_CALLS)?;
        let (factor, chance) = factor_of(last(enough), fit)?;
        // The fault may have begun within the first of them.
        let newest = factor_of(last(1), fit).filter(|_| calls(1) >= MIN_CALLS);
        let whole = (factor, enough);
        (factor > 1.0 + chance).then(|| newest.map_or(whole, |(newest, _)| (newest, 1)))
    };
    let lighter = || {
        let (factor, chance) = factor_of(last(MAX_BATCHES), fit)?;
        let is_measured = batches.len() == MAX_BATCHES && calls(MAX_BATCHES) >= MIN_CALLS;
        (is_measured && factor < 1.0 - chance).then_some((factor, MAX_BATCHES))
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
        calls: calls(count),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fairmesh_model::{ServedRates, ServerRates};

    use super::*;
    use crate::cost_model::ClassWork;

    /// The correction of a pool of ten cores after batches with so many calls of 0.2 s each and this multiple of their CPU.
    fn corrected(batches: &[(u64, u64)]) -> Option<WorkCorrection> {
        let mut pool = PoolBatches::default();
        for (at, (calls, multiple)) in (1..).zip(batches) {
            pool.begin_report(5_000, at * 5_000);
            let rates = ServedRates { calls: calls * 1_000 / 5, exclusive_us: 0 };
            pool.add_calls(&None, None, rates);
            let servers = ServerRates {
                servers: 1,
                counting: 1,
                measured: 1,
                received: rates.calls,
                cpu_millicores: calls * multiple * 200 / 5,
                limit_millicores: 10_000,
                ..ServerRates::default()
            };
            assert!(pool.end_report(&servers, at * 5_000));
        }
        let classes = BTreeMap::from([(None, ClassWork { seconds: 0.2, error: 0.0 })]);
        let fit = WorkFit { classes, background: 0.0, error: 0.0, at_ms: 0 };
        let key = (ServiceName::new("shop/cart").unwrap(), Region::new("eu").unwrap());
        correction(&key, &pool, &fit, 0)
    }

    #[test]
    fn few_calls_correct_work_after_as_many_batches_as_have_enough() {
        assert_eq!(corrected(&[(30, 2); 2]), None);
        let one = corrected(&[(30, 2); 4]).unwrap();
        assert_eq!((one.factor, one.calls), (2.0, 120.0));
    }

    #[test]
    fn newest_batch_counts_alone_only_with_enough_calls() {
        assert_eq!(corrected(&[(100, 2), (100, 3)]).unwrap().factor, 3.0);
        assert_eq!(corrected(&[(60, 2), (60, 3)]).unwrap().factor, 2.5);
    }
}
