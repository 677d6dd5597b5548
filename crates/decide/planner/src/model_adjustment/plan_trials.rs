//! The safety net: small changes of a plan that are kept only if calls get faster (SLATE's PAPA, on all regions).
//!
//! A correction is a constant, and cannot say that a cache gets worse with each further call. Where a model is corrected, and the
//! optimizer has found no better plan for a minute, one region's calls are divided a little differently, and what callers see before and
//! after is compared by means of batches. What is not clearly better is rolled back.

use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::{Label, Region, ServiceName, TrafficReport};

use super::{
    LatencyCorrection,
    call_batches::CallBatches,
    plan_changes::{Move, Shift, moves},
};
use crate::{
    facts::TopologyFacts,
    optimizer::{ServiceModel, ServicePlan},
};

/// A plan must be this old: before, recalibration still changes it.
const QUIET_MS: u64 = 60_000;
/// Callers and reports have followed a change after this time.
const SETTLE_MS: u64 = 7_000;
/// How long an attempt is measured after that, and before its end if it is clearly worse.
const MEASURE_MS: u64 = 45_000;
const WORSE_MS: u64 = 15_000;
/// Batches that must be there before an attempt.
const MIN_BATCHES: usize = 8;
/// The measured utilisation that ends an attempt.
const FULL: f64 = 0.9;
/// Standard errors by which an attempt must be better; or worse, to be ended early.
const BETTER: f64 = 2.0;
const WORSE: f64 = 3.0;
/// The least gain, as a part of the cost.
const LEAST_GAIN: f64 = 0.01;
/// Moves that seem to cost more than this part of the cost of a call are not attempted.
const HOPELESS: f64 = 0.03;
/// An attempt ends as worse if so much more of the calls get no response.
const MORE_LOST: f64 = 0.005;
/// An attempt is not judged by calls that are more or fewer than before by this part.
const OTHER_DEMAND: f64 = 0.15;
/// A move is not attempted again for so long, however it ended.
const COOL_MS: u64 = 600_000;
/// Attempts that are remembered, and services that are measured at a time.
const MAX_REMEMBERED: usize = 32;
const MAX_SERVICES: usize = 16;

/// A change of a plan that was tried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// The service.
    pub service: ServiceName,
    /// The class; `None`: all calls without a class of their own.
    pub class: Option<Label>,
    /// The region of the callers.
    pub source: Region,
    /// The region that gets fewer calls.
    pub from: Region,
    /// The region that gets more.
    pub to: Region,
    /// The part of the callers' calls that was moved.
    pub share: f64,
    /// Mean milliseconds of a call to the service before, egress at its worth included.
    pub before_ms: f64,
    /// The same afterwards; `None` until enough is measured.
    pub after_ms: Option<f64>,
    /// The standard error of the difference.
    pub error_ms: f64,
    /// When it began, on the clock of [`crate::Now::ms`].
    pub began_ms: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not ended.
    Running,
    /// Calls are faster, and the change stays until the next plan.
    Kept,
    /// Rolled back: calls are not clearly faster.
    NotBetter,
    /// Rolled back: calls are slower.
    Worse,
    /// Rolled back: a pool that got more calls became too full, of this service or of one that it calls.
    HeadRoom,
    /// Ended by another plan.
    Replanned,
}

impl Outcome {
    /// In one word, or two.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Kept => "kept",
            Self::NotBetter => "not better",
            Self::Worse => "worse",
            Self::HeadRoom => "too full",
            Self::Replanned => "replanned",
        }
    }
}

/// What attempts are decided by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Present<'a> {
    pub(crate) models: &'a BTreeMap<ServiceName, ServiceModel>,
    /// The plans in force.
    pub(crate) plans: &'a BTreeMap<ServiceName, std::sync::Arc<ServicePlan>>,
    pub(crate) topology: &'a TopologyFacts,
    /// Whether an attempt may begin: nothing else changes, and all reports arrive.
    pub(crate) is_calm: bool,
    pub(crate) now_ms: u64,
}

/// An attempt that is being measured.
#[derive(Clone, Debug)]
struct Running {
    shift: Shift,
    /// Calls by region and class of the callers, before it.
    weights: BTreeMap<(Region, Option<Label>), f64>,
    /// Since when the plan before was in force.
    since_ms: u64,
    /// Pools that get more calls.
    fuller: Vec<(ServiceName, Region)>,
}

/// Attempts, one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    measured: BTreeMap<ServiceName, CallBatches>,
    running: Option<Running>,
    kept: Vec<Shift>,
    past: VecDeque<Attempt>,
    cooled: BTreeMap<Move, u64>,
    /// When the last attempt ended.
    ended_ms: u64,
}

impl Attempts {
    /// Takes what callers report, of services whose model is corrected.
    pub(super) fn observe(
        &mut self,
        sum: &TrafficReport,
        is_corrected: impl Fn(&ServiceName) -> bool,
        (seconds, now_ms): (f64, u64),
    ) {
        let running = self.running.as_ref().map(|running| running.shift.of.service.clone());
        self.measured.retain(|service, _| is_corrected(service) || Some(service) == running.as_ref());
        for (path, rates) in &sum.calls {
            if !self.measured.contains_key(&path.service)
                && (self.measured.len() >= MAX_SERVICES || !is_corrected(&path.service))
            {
                continue;
            }
            self.measured.entry(path.service.clone()).or_default().add(path, rates, seconds);
        }
        self.measured.values_mut().for_each(|calls| calls.end_report(now_ms));
    }

    /// The changes that are in force beside the optimizer's plan.
    pub(super) fn shifts(&self) -> Vec<Shift> {
        self.kept.iter().chain(self.running.as_ref().map(|running| &running.shift)).cloned().collect()
    }

    /// What is to be changed now: an attempt begins, or is rolled back. `load` is the measured utilisation of a pool.
    pub(super) fn advance(
        &mut self,
        present: Present<'_>,
        corrections: &[&LatencyCorrection],
        load: impl Fn(&ServiceName, &Region) -> f64,
    ) -> Option<Shift> {
        let now_ms = present.now_ms;
        if let Some(running) = self.running.clone() {
            let outcome = self.judge(&running, present, load)?;
            let shift = running.shift;
            self.running = None;
            self.end(outcome, now_ms);
            self.cooled.insert(shift.of.clone(), now_ms + COOL_MS);
            if outcome == Outcome::Kept {
                self.kept.push(shift);
                return None;
            }
            return Some(shift.inverse());
        }
        self.cooled.retain(|_, until| *until > now_ms);
        if !present.is_calm {
            return None;
        }
        let (shift, before) = self.candidate(present, corrections)?;
        let since_ms = self.since(present, &shift.of.service);
        let weights = self.measured.get(&shift.of.service)?.weights((since_ms, now_ms));
        let Move { service, class, source, from, to } = shift.of.clone();
        let (share, before_ms, outcome) = (shift.share, before, Outcome::Running);
        self.past.push_back(Attempt {
            service,
            class,
            source,
            from,
            to,
            share,
            before_ms,
            outcome,
            after_ms: None,
            error_ms: 0.0,
            began_ms: now_ms,
        });
        let surplus = self.past.len().saturating_sub(MAX_REMEMBERED);
        self.past.drain(..surplus);
        self.running = Some(Running { shift: shift.clone(), weights, since_ms, fuller: Vec::new() });
        Some(shift)
    }

    /// The optimizer has published another plan, which starts from none of these changes; or could not make the last one.
    pub(super) fn reset(&mut self, outcome: Outcome, now_ms: u64) {
        if let Some(Running { shift, .. }) = self.running.take() {
            self.end(outcome, now_ms);
            self.cooled.insert(shift.of, now_ms + COOL_MS);
        }
        if outcome == Outcome::Replanned {
            self.kept.clear();
        }
    }

    /// The pools that get more calls by the running attempt.
    pub(super) fn watch(&mut self, fuller: Vec<(ServiceName, Region)>) {
        if let Some(running) = &mut self.running {
            running.fuller = fuller;
        }
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The latest attempts of a service.
    pub(super) fn of_service(&self, service: &ServiceName) -> Vec<Attempt> {
        self.past.iter().filter(|attempt| attempt.service == *service).cloned().collect()
    }

    fn end(&mut self, outcome: Outcome, now_ms: u64) {
        self.ended_ms = now_ms;
        if let Some(last) = self.past.back_mut() {
            last.outcome = outcome;
        }
    }

    /// Since when calls of a service have been divided as they are now, and callers have followed.
    fn since(&self, present: Present<'_>, service: &ServiceName) -> u64 {
        let planned = present.plans.get(service).map_or(present.now_ms, |plan| plan.planned_at_ms);
        planned.max(self.ended_ms) + SETTLE_MS
    }

    /// How the running attempt ends; `None` while it goes on.
    fn judge(
        &mut self,
        Running { shift, weights, since_ms, fuller }: &Running,
        Present { topology, now_ms, .. }: Present<'_>,
        load: impl Fn(&ServiceName, &Region) -> f64,
    ) -> Option<Outcome> {
        if fuller.iter().any(|(service, region)| load(service, region) > FULL) {
            return Some(Outcome::HeadRoom);
        }
        let attempt = self.past.back_mut()?;
        let began_ms = attempt.began_ms;
        let calls = self.measured.get(&shift.of.service);
        let before = calls.and_then(|calls| calls.mean((*since_ms, began_ms), weights, topology));
        let after = calls.and_then(|calls| calls.mean((began_ms + SETTLE_MS, now_ms), weights, topology));
        let measured_ms = now_ms.saturating_sub(began_ms + SETTLE_MS);
        let Some((before, after)) = before.zip(after) else {
            return (measured_ms >= MEASURE_MS).then_some(Outcome::NotBetter);
        };
        // What fails fast is no gain, and other demand explains other times.
        if after.lost > before.lost + MORE_LOST {
            return Some(Outcome::Worse);
        }
        if (after.calls - before.calls).abs() > OTHER_DEMAND * before.calls {
            return Some(Outcome::NotBetter);
        }
        let gain = before.ms - after.ms;
        let error = before.error.hypot(after.error);
        (attempt.before_ms, attempt.after_ms, attempt.error_ms) = (before.ms, Some(after.ms), error);
        if measured_ms >= WORSE_MS && gain < -WORSE * error {
            return Some(Outcome::Worse);
        }
        let is_better = gain > BETTER * error && gain > LEAST_GAIN * before.ms;
        (measured_ms >= MEASURE_MS).then_some(match () {
            () if is_better => Outcome::Kept,
            () if gain < -BETTER * error => Outcome::Worse,
            () => Outcome::NotBetter,
        })
    }

    /// The move from or to a corrected region that seems best, and the cost of a call before it.
    fn candidate(&self, present: Present<'_>, corrections: &[&LatencyCorrection]) -> Option<(Shift, f64)> {
        let mut best: Option<(f64, Shift, f64)> = None;
        for correction in corrections {
            let service = &correction.service;
            let known = present.plans.get(service).zip(present.models.get(service));
            let Some(((plan, model), calls)) = known.zip(self.measured.get(service)) else { continue };
            let window = (self.since(present, service), present.now_ms);
            let before = calls.mean(window, &calls.weights(window), present.topology);
            let Some(before) = before.filter(|before| before.batches >= MIN_BATCHES) else { continue };
            if present.now_ms.saturating_sub(plan.planned_at_ms) < QUIET_MS {
                continue;
            }
            for (gain, shift) in moves(correction, (plan, model), present.topology) {
                let is_hopeful = gain > -HOPELESS * before.ms && !self.cooled.contains_key(&shift.of);
                if is_hopeful && best.as_ref().is_none_or(|(most, ..)| gain > *most) {
                    best = Some((gain, shift, before.ms));
                }
            }
        }
        best.map(|(_, shift, before)| (shift, before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_pool_of_a_called_service_ends_an_attempt() {
        let region = |name: &str| Region::new(name).unwrap();
        let [web, cart] = ["shop/web", "shop/cart"].map(|name| ServiceName::new(name).unwrap());
        let (source, from, to) = (region("eu"), region("eu"), region("us"));
        let of = Move { service: web.clone(), class: None, source, from, to };
        let shift = Shift { of, share: 0.1, takes_back: false };
        let running =
            Running { shift: shift.clone(), weights: BTreeMap::new(), since_ms: 0, fuller: Vec::new() };
        let mut attempts = Attempts { running: Some(running), ..Attempts::default() };
        attempts.watch(vec![(web, region("us")), (cart.clone(), region("us"))]);
        let (models, plans, topology) = Default::default();
        let present =
            Present { models: &models, plans: &plans, topology: &topology, is_calm: true, now_ms: 1_000 };
        let load = |service: &ServiceName, of_cart: f64| if *service == cart { of_cart } else { 0.3 };
        assert_eq!(attempts.advance(present, &[], |service, _| load(service, 0.85)), None);
        assert!(attempts.is_running());
        let ended = attempts.advance(present, &[], |service, _| load(service, 0.95));
        assert_eq!(ended, Some(shift.inverse()));
    }
}
