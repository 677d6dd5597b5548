//! Draining a region: what it would do, and how far it may have gone by now.

use fairmesh_model::RegionDrain;

use crate::{
    observation_check::{Refusal, check},
    planner_state::PlannerState,
    ring_fill::{Stranded, fill},
    rings_planner::PlanInput,
    round_problem::Problem,
};

/// The share of a region's calls that one step moves.
pub const STEP: f64 = 1.0 / RegionDrain::STEPS as f64;

/// What a drain would lead to.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Predicted utilisation by region as it is planned now.
    pub before: Vec<f64>,
    /// Predicted utilisation by region after the drain.
    pub after: Vec<f64>,
    /// Calls per second of the region's callers.
    pub offered: f64,
    /// Those of them that leave the region.
    pub leaving: f64,
    /// Calls per second of the region that cannot leave: `localOnly`, shards without a copy elsewhere.
    pub staying: f64,
    /// Calls per second of other regions that are served there now: all of them leave at the first step.
    pub of_others: f64,
    /// Calls per second, of all regions, that would have to be dropped in addition.
    pub dropped: f64,
    /// Calls per second, of all regions, that would no longer have to be dropped.
    pub saved: f64,
    /// Calls per second of the region's callers by their destination after the drain.
    pub to: Vec<f64>,
    /// Regions that would be above their last threshold, or just at it with calls dropped.
    pub full: Vec<usize>,
}

/// Forecasts the plan with a region that keeps this share of its calls.
///
/// # Errors
/// If the input could not be planned from.
pub fn forecast(
    input: PlanInput<'_>,
    state: &PlannerState,
    region: usize,
    keep: f64,
) -> Result<Forecast, Refusal> {
    check(input.policy, input.rings, input.observation, state)?;
    if region >= input.observation.regions.len() || !(0.0..=1.0).contains(&keep) {
        return Err(Refusal::Mismatch);
    }
    let mut state = state.clone();
    state.learn(input.observation, input.policy);
    let mut problem = Problem::new(input.policy, input.rings, input.observation, &state);
    // As a plan aims: a drain up to the thresholds themselves would make the planner drop calls.
    let thresholds = input.policy.thresholds(input.policy.margin);
    let ceilings = vec![input.policy.ceiling() - input.policy.margin; problem.regions];
    let before = fill(&problem, &thresholds, &ceilings, Stranded::Drop);
    // A region without servers has nothing to keep.
    problem.keep[region] = if problem.serves(region) { keep } else { 0.0 };
    let after = fill(&problem, &thresholds, &ceilings, Stranded::Drop);
    let loads = problem.loads(&after);
    let now = problem.flows_of(state.tables(), &before);
    let others = (0..loads.len()).filter(|source| *source != region);
    let of_others = others.flat_map(|source| (0..problem.classes).map(move |class| (source, class)));
    let of_others = of_others.map(|(source, class)| now.get(source, class, region)).sum();
    let offered = problem.offered(region);
    let classes = 0..problem.classes;
    let to = |to: usize| classes.clone().map(|class| after.get(region, class, to)).sum::<f64>();
    let to: Vec<f64> = (0..loads.len()).map(to).collect();
    let pinned: f64 = classes.map(|class| problem.pinned(region, class)).sum();
    let sum = |dropped: &[f64]| dropped.iter().sum::<f64>();
    let more = sum(&after.dropped) - sum(&before.dropped);
    let (dropped, saved) = (more.max(0.0), (-more).max(0.0));
    let is_full = |at: &usize| {
        let ceiling = input.policy.ceiling() - input.policy.margin;
        loads[*at] > ceiling + 1e-9 || (dropped > 1e-6 * offered && loads[*at] > ceiling - 1e-6)
    };
    let full = (0..loads.len()).filter(|at| *at != region).filter(is_full).collect();
    Ok(Forecast {
        before: problem.loads(&before),
        offered,
        leaving: offered - to[region],
        to,
        staying: pinned,
        of_others,
        dropped,
        saved,
        full,
        after: loads,
    })
}

/// A drain, or its reversal, in progress. It is data, so that another control plane can continue it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drain {
    /// The region.
    pub region: usize,
    /// When it began, in milliseconds.
    pub from_ms: u64,
    /// How long it should take, in milliseconds; 0 is at once.
    pub over_ms: u64,
    /// The share of its calls that the region keeps by now.
    pub keep: f64,
    /// The share that it should keep at the end: 0, or 1 to end a drain.
    pub goal: f64,
}

/// What a drain does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// The region keeps this share from now on.
    Advance(f64),
    /// The next step is not due yet.
    Wait,
    /// The next step would bring this region to its last threshold.
    HoldFor(usize),
    /// Calls would be dropped: no other region may take them, or those that come back are more than there is room for.
    HoldDropping,
    /// The step cannot be judged.
    HoldSince(Refusal),
    /// The goal is reached.
    Done,
}

/// The next step of a drain, of at most [`STEP`]. The caller takes it after the step before is seen in the reports.
pub fn step(drain: &Drain, input: PlanInput<'_>, state: &PlannerState) -> Step {
    if (drain.keep - drain.goal).abs() < 1e-9 {
        return Step::Done;
    }
    let due = drain.due(input.observation.now_ms);
    let change = (drain.goal - drain.keep).clamp(-STEP, STEP);
    let next = drain.keep + change;
    // Whole steps, without the rounding errors of their sum.
    let next = (next * 1e6).round() / 1e6;
    let is_return = change > 0.0;
    let is_due = match is_return {
        true => due >= next - 1e-9,
        false => due <= next + 1e-9,
    };
    // No call is dropped for the sake of a pace.
    let may_save = is_return && state.tables().drops();
    if !is_due && !may_save {
        return Step::Wait;
    }
    match forecast(input, state, drain.region, next) {
        Err(refusal) => Step::HoldSince(refusal),
        Ok(forecast) => {
            let few = 1e-6 * forecast.offered;
            match forecast.full.first() {
                _ if !is_due && forecast.saved <= few => Step::Wait,
                Some(region) if !is_return => Step::HoldFor(*region),
                _ if forecast.dropped > few => Step::HoldDropping,
                _ => Step::Advance(next),
            }
        }
    }
}

impl Drain {
    /// The share that the region should keep at a time if nothing held the drain.
    fn due(&self, now_ms: u64) -> f64 {
        let start = 1.0 - self.goal;
        if self.over_ms == 0 {
            return self.goal;
        }
        let part = now_ms.saturating_sub(self.from_ms) as f64 / self.over_ms as f64;
        start + (self.goal - start) * part.min(1.0)
    }
}
