//! What reports show of the model's errors after a plan, and what follows from them.
//!
//! The first line is to measure and solve again: calls that take longer or shorter than the model says correct it by
//! region and class, and calls that take other CPU rescale the fit of their pool. Fits follow reports over minutes, and
//! their means over regions do not tell regions apart; corrections follow within two batches of reports.
//!
//! One decision: a correction is the mean difference at the present load, added to every call. A correction by load was
//! rejected: a plan that leaves the load that it was measured at has no other.

mod call_batches;
mod latency_correction;
mod plan_changes;
mod plan_trials;
mod report_batches;
mod work_correction;

use std::collections::BTreeMap;

use fairmesh_model::{Label, Region, ServiceName, TrafficReport};

pub use latency_correction::LatencyCorrection;
pub(crate) use plan_changes::{HEAD_ROOM, Move, Shift};
pub(crate) use plan_trials::Present;
pub use plan_trials::{Attempt, Outcome};
pub use work_correction::WorkCorrection;

use crate::{
    cost_model::{PoolCosts, PoolFit},
    optimizer::ServiceModel,
};
use plan_trials::Attempts;
use report_batches::PoolBatches;

/// The most pools; further ones are not corrected.
const MAX_POOLS: usize = 4_096;
/// Corrections of work that are remembered.
const MAX_REMEMBERED: usize = 64;
/// Pools without a report for this long are forgotten, and so are corrections of services without a model.
const FORGOTTEN_MS: u64 = 600_000;
/// Reports stand for no more than this time, however late the next sum is formed.
const MAX_STEP_MS: u64 = 5_000;

/// What is measured of a service against its model, and done about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adjustments {
    /// Corrections of latency that are in force.
    pub latency: Vec<LatencyCorrection>,
    /// The latest corrections of work.
    pub work: Vec<WorkCorrection>,
    /// The latest changes of plans that were tried out, the oldest first.
    pub attempts: Vec<Attempt>,
}

/// Recent measurements of pools, and the corrections that follow from them. Bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adjustment {
    /// Nothing is measured or corrected.
    is_off: bool,
    pools: BTreeMap<(ServiceName, Region), PoolBatches>,
    observed_at_ms: Option<u64>,
    latency: BTreeMap<(ServiceName, Region, Option<Label>), LatencyCorrection>,
    work: Vec<WorkCorrection>,
    attempts: Attempts,
}

impl Adjustment {
    /// One that never corrects anything.
    pub(crate) fn off() -> Self {
        Self { is_off: true, ..Self::default() }
    }

    /// The same without anything measured.
    pub(crate) fn cleared(&self) -> Self {
        Self { is_off: self.is_off, ..Self::default() }
    }

    /// Takes what a sum of reports says of the time since the last one, and rescales the work of pools whose calls take
    /// other CPU than their fit says. `now_ms` is of a clock that only advances.
    pub(crate) fn observe(&mut self, sum: &TrafficReport, costs: &mut PoolCosts, now_ms: u64) {
        if self.is_off {
            return;
        }
        let Some(before_ms) = self.observed_at_ms.replace(now_ms) else { return };
        let step_ms = now_ms.saturating_sub(before_ms).min(MAX_STEP_MS);
        if step_ms == 0 {
            return;
        }
        self.pools.retain(|_, pool| now_ms.saturating_sub(pool.at_ms) < FORGOTTEN_MS);
        for key in sum.servers.keys() {
            if self.pools.len() < MAX_POOLS || self.pools.contains_key(key) {
                self.pools.entry(key.clone()).or_default().begin_report(step_ms, now_ms);
            }
        }
        for (path, rates) in &sum.served {
            let key = (path.node.service.clone(), path.region.clone());
            if let Some(pool) = self.pools.get_mut(&key) {
                pool.add_calls(&path.node.class, path.bucket, *rates);
            }
        }
        let mut has_ended = false;
        for (key, rates) in &sum.servers {
            if let Some(pool) = self.pools.get_mut(key) {
                has_ended |= pool.end_report(rates, now_ms);
            }
        }
        if has_ended {
            self.correct_work(costs, now_ms);
        }
        let latency = &self.latency;
        let is_corrected = |service: &ServiceName| latency.values().any(|one| one.service == *service);
        self.attempts.observe(sum, is_corrected, (step_ms as f64 / 1e3, now_ms));
    }

    fn correct_work(&mut self, costs: &mut PoolCosts, now_ms: u64) {
        for fit in costs.fits() {
            let PoolFit { service, region, work: Some(work), .. } = fit else { continue };
            let key = (service, region);
            let Some(pool) = self.pools.get_mut(&key) else { continue };
            if let Some(correction) = work_correction::correction(&key, pool, &work, now_ms) {
                costs.rescale(&key, correction.factor);
                pool.forget_before_last(work_correction::MIN_BATCHES);
                self.work.push(correction);
            }
        }
        let surplus = self.work.len().saturating_sub(MAX_REMEMBERED);
        self.work.drain(..surplus);
    }

    /// Forgets corrections of services, regions and classes that are not named any more, and of services that have had no model for long:
    /// they would take the room of others.
    pub(crate) fn retain(
        &mut self,
        is_named: impl Fn(&ServiceName, &Region, Option<&Label>) -> bool,
        now_ms: u64,
    ) {
        self.latency.retain(|(service, region, class), one| {
            let is_recent = now_ms.saturating_sub(one.updated_at_ms) < FORGOTTEN_MS;
            is_recent && is_named(service, region, class.as_ref())
        });
        self.work.retain(|one| is_named(&one.service, &one.region, None));
    }

    /// Corrects the model of a service by what was measured of its calls, and returns the corrections.
    pub(crate) fn correct(&mut self, service: &ServiceName, model: &mut ServiceModel, now_ms: u64) {
        if self.is_off {
            return;
        }
        let regions: Vec<Region> = model.capacity.keys().cloned().collect();
        for region in regions {
            let Some(pool) = self.pools.get_mut(&(service.clone(), region.clone())) else { continue };
            let classes: Vec<Option<Label>> =
                std::iter::once(None).chain(model.classes.iter().cloned().map(Some)).collect();
            let mut row = Vec::new();
            for class in classes {
                let key = (service.clone(), region.clone(), class);
                let known = self.latency.remove(&key);
                let correction = latency_correction::correction(&key, (pool, known), model, now_ms);
                row.push(correction.as_ref().map_or(0.0, |correction| correction.ms));
                self.latency.extend(correction.map(|correction| (key, correction)));
            }
            model.correct(&region, row);
        }
    }

    /// What is done for a service.
    pub(crate) fn of_service(&self, service: &ServiceName) -> Adjustments {
        let latency = self.latency.values().filter(|one| one.service == *service).cloned().collect();
        let work = self.work.iter().filter(|one| one.service == *service).cloned().collect();
        Adjustments { latency, work, attempts: self.attempts.of_service(service) }
    }

    /// The changes that are in force beside the optimizer's plan.
    pub(crate) fn shifts(&self) -> Vec<Shift> {
        self.attempts.shifts()
    }

    /// A change that is to be made now: an attempt begins, or is rolled back.
    pub(crate) fn advance(&mut self, present: Present<'_>) -> Option<Shift> {
        let corrections: Vec<&LatencyCorrection> =
            self.latency.values().filter(|one| present.models.contains_key(&one.service)).collect();
        let load = |service: &ServiceName, region: &Region| {
            let pool = self.pools.get(&(service.clone(), region.clone()));
            let last = pool.and_then(|pool| pool.batches().back());
            last.filter(|batch| batch.limit > 0.0).map_or(0.0, |batch| batch.cpu / batch.limit)
        };
        self.attempts.advance(present, &corrections, load)
    }

    /// Ends the attempt that has begun once one of these pools is full: they get more calls by it.
    pub(crate) fn watch(&mut self, pools: Vec<(ServiceName, Region)>) {
        self.attempts.watch(pools);
    }

    /// Whether an attempt is being measured.
    pub(crate) fn is_trying(&self) -> bool {
        self.attempts.is_running()
    }

    /// Another plan is in force, or the last change was not made.
    pub(crate) fn end_attempt(&mut self, outcome: Outcome, now_ms: u64) {
        self.attempts.reset(outcome, now_ms);
    }
}
