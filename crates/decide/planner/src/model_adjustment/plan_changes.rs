//! Small changes of a plan, and what they seem to gain.

use fairmesh_model::{Label, Region, ServiceName};

use super::LatencyCorrection;
use crate::{
    facts::TopologyFacts,
    optimizer::{ServiceModel, ServicePlan},
};

/// The part of a region's calls that a change moves, and the least one.
const STEP: f64 = 0.1;
const LEAST_STEP: f64 = 0.03;
/// The utilisation that a change may bring a pool to by the model.
pub(crate) const HEAD_ROOM: f64 = 0.8;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// Calls of one class from one region go to another region instead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Move {
    pub(crate) service: ServiceName,
    pub(crate) class: Option<Label>,
    pub(crate) source: Region,
    pub(crate) from: Region,
    pub(crate) to: Region,
}

/// A move and the part of the calls that it moves.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shift {
    pub(crate) of: Move,
    pub(crate) share: f64,
    /// Whether it takes an earlier one back.
    pub(crate) takes_back: bool,
}

impl Shift {
    /// The way back.
    pub(crate) fn inverse(&self) -> Self {
        let Move { from, to, .. } = self.of.clone();
        let of = Move { from: to, to: from, ..self.of.clone() };
        Self { of, share: self.share, takes_back: true }
    }
}

/// Moves of calls of the class to the corrected region or away from it, with the milliseconds that a call to the service seems to gain in
/// the mean.
pub(super) fn moves(
    correction: &LatencyCorrection,
    (plan, model): (&ServicePlan, &ServiceModel),
    topology: &TopologyFacts,
) -> Vec<(f64, Shift)> {
    let LatencyCorrection { service, region, class, .. } = correction;
    let at = class.as_ref().and_then(|class| plan.classes.iter().position(|one| one == class));
    let candidates =
        Candidates { plan, model, topology, class: class.as_ref(), class_at: at.map_or(0, |at| at + 1) };
    let Ok(corrected) = plan.regions.binary_search(region) else { return Vec::new() };
    let others = (0..plan.regions.len()).filter(|other| *other != corrected);
    let pairs: Vec<_> = others.flat_map(|other| [(corrected, other), (other, corrected)]).collect();
    let sources = (0..plan.regions.len()).flat_map(|source| pairs.iter().map(move |pair| (source, *pair)));
    let shifts = sources.filter_map(|(source, (from, to))| {
        let (gain, share) = candidates.gain(source, (from, to))?;
        let [source, from, to] = [source, from, to].map(|at| plan.regions[at].clone());
        let of = Move { service: service.clone(), class: class.clone(), source, from, to };
        Some((gain, Shift { of, share, takes_back: false }))
    });
    shifts.collect()
}

/// What moves are judged by.
struct Candidates<'a> {
    plan: &'a ServicePlan,
    model: &'a ServiceModel,
    topology: &'a TopologyFacts,
    class: Option<&'a Label>,
    class_at: usize,
}

impl Candidates<'_> {
    /// The gain of a move and its share; `None` where there are no calls to move, or no room for them.
    fn gain(&self, source: usize, (from, to): (usize, usize)) -> Option<(f64, f64)> {
        let Self { plan, model, class, .. } = self;
        let calls = plan.expected[source][self.class_at].calls;
        let all: f64 = plan.expected.iter().flatten().map(|expected| expected.calls).sum();
        let row = &plan.tables.of(source, self.class_at).shares;
        let present = f64::from(row[from]) / f64::from(fairmesh_te::WHOLE);
        let room = |at: usize, part: f64| model.room(*class, &plan.regions[at], part);
        let share = present.min(STEP).min(room(to, HEAD_ROOM - plan.loads[to]) / calls);
        if !share.is_finite() || share < LEAST_STEP {
            return None;
        }
        // Loads in the middle of the move: the cost of a pool is not linear.
        let half = |at: usize| share * calls / room(at, 1.0) / 2.0;
        let cost = |at: usize, load: f64| {
            let trip = self.topology.round_trips.get(&plan.regions[source], &plan.regions[at]);
            let trip = trip.map_or(f64::INFINITY, |trip| trip.as_secs_f64() * MILLI);
            trip + model.marginal_ms(*class, &plan.regions[at], load)
        };
        let gain = cost(from, plan.loads[from] - half(from)) - cost(to, plan.loads[to] + half(to));
        Some((gain * share * calls / all, share))
    }
}
