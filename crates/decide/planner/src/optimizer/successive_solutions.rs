//! Solutions over time: each starts from the one before, and replaces the shares in force only if that is worth it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fairmesh_model::{Label, Region, RegionShares, ServiceName, TrafficMode};
use fairmesh_te::optimizer::{Effort, Plan, ProblemError, Shares, is_worth_publishing, optimize};

use super::{
    Fallback, ServicePlan,
    graph_problem::{GraphProblem, Shape, Sources},
};
use crate::{
    model_adjustment::{HEAD_ROOM, Move, Shift},
    table_conversion::to_shares,
};

/// A plan that costs less than the shares in force by a smaller part of their cost is not published.
const DEAD_BAND: f64 = 0.02;
/// The gap at which a solution ends.
const GAP: f64 = 0.01;
/// Maximum work of one solution, in shares visited by all of its iterations: about two seconds. If this is too little, the next solution
/// continues from the plan of this one. A problem with more shares than this is not solved at all.
const MAX_WORK: usize = 100_000_000;
const MAX_ITERATIONS: usize = 200;
/// The share of a region's calls that one plan moves at most, unless the shares in force overload servers: the model may be wrong, and the next
/// reports say so.
const MAX_STEP: f64 = 0.5;
/// A plan stays in force for so long after the last solution that was usable.
const KEPT_MS: u64 = 60_000;
/// Maximum number of regions and edges that go into one problem.
const MAX_REGIONS: usize = fairmesh_te::MAX_REGIONS;

/// The last solution and the plan in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Solving {
    last: Option<(Shape, Plan)>,
    plans: BTreeMap<ServiceName, Arc<ServicePlan>>,
    number: u64,
    solved_at_ms: Option<u64>,
    trouble: Option<Fallback>,
    /// Whether the tables in force have a change that could not be taken back.
    must_publish: bool,
    /// The last change that was tried, and the share that went to its region before.
    tried: Option<(Move, f64)>,
    /// Services whose tables follow from plans of this control plane. Those of others may have changes that another one was trying out.
    adopted: BTreeSet<ServiceName>,
}

/// What is in force, and what is new.
struct Candidate {
    in_force: Plan,
    /// Whether tables in force send calls to a region without servers.
    leads_nowhere: bool,
    plan: Plan,
}

impl Solving {
    /// The plan in force of a service.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) fn plan_of(&self, service: &ServiceName) -> Result<&Arc<ServicePlan>, Fallback> {
        let unsolved = || Fallback::new("unsolved", "no plan was made yet");
        self.plans.get(service).ok_or_else(|| self.trouble.clone().unwrap_or_else(unsolved))
    }

    /// The plans in force.
    pub(super) fn plans(&self) -> &BTreeMap<ServiceName, Arc<ServicePlan>> {
        &self.plans
    }

    /// Changes the tables in force, and returns the pools that get more calls by it: those of the moved calls, and of the calls that are
    /// made for them. `None` where that is not possible, as without head room in one of them.
    /// One that takes an earlier change back is made whatever pools are full, as far as the tables in force have that change: the store may
    /// have refused it.
    pub(super) fn shift(
        &mut self,
        sources: Sources<'_>,
        shift: &Shift,
        now_ms: u64,
    ) -> Option<Vec<(ServiceName, Region)>> {
        let built = GraphProblem::new(sources);
        let in_force = self.evaluate_in_force(&built, sources).ok()?;
        let before = built.share_to(&in_force, &shift.of, &shift.of.to);
        let shift = &if shift.takes_back { self.left_of(&built, &in_force, shift) } else { shift.clone() };
        let step = built.shifted(&in_force, std::slice::from_ref(shift)).ok()?;
        let service = &shift.of.service;
        let (model, known) = sources.models.get(service).zip(self.plans.get(service))?;
        let fuller = built.fuller_pools(&in_force, &step);
        let has_room = || fuller.iter().all(|at| step.loads[*at] <= HEAD_ROOM);
        let is_possible = || has_room() && step.is_usable(built.problem.preferences.ceiling);
        if !shift.takes_back && !is_possible() {
            return None;
        }
        let plan = built.service_plan(&step, (service, model), known.number, now_ms);
        let plan = ServicePlan { planned_at_ms: known.planned_at_ms, gap: known.gap, ..plan };
        self.plans.insert(service.clone(), Arc::new(plan));
        self.tried = before.filter(|_| !shift.takes_back).map(|before| (shift.of.clone(), before));
        Some(fuller.into_iter().map(|at| built.pool(at)).collect())
    }

    /// A change that takes the last one back, as far as the tables in force have it.
    fn left_of(&self, built: &GraphProblem, in_force: &Plan, back: &Shift) -> Shift {
        let tried = self.tried.as_ref().filter(|(of, _)| *of == back.inverse().of);
        let now = built.share_to(in_force, &back.of, &back.of.from);
        let share = match tried.zip(now) {
            Some(((_, before), now)) => (now - before).clamp(0.0, back.share),
            None => back.share,
        };
        Shift { share, ..back.clone() }
    }

    /// Has the next plan published however little it differs from the tables in force.
    pub(super) fn republish(&mut self) {
        self.must_publish = true;
    }

    /// Solves anew. Services without a model leave the plan. Returns whether another plan is in force.
    pub(super) fn round(&mut self, sources: Sources<'_>, now_ms: u64) -> bool {
        let before = self.number;
        self.solve_anew(sources, now_ms);
        self.number != before
    }

    fn solve_anew(&mut self, sources: Sources<'_>, now_ms: u64) {
        self.plans.retain(|service, _| sources.models.contains_key(service));
        self.adopted.retain(|service| sources.services.contains_key(service));
        if sources.models.is_empty() {
            self.restart(None);
            return;
        }
        if GraphProblem::size(sources) > MAX_WORK {
            let text = "the edges of the call graph are too many to be planned over so many regions";
            self.restart(Some(Fallback::new("left_out", text)));
            return;
        }
        let built = GraphProblem::new(sources);
        match self.solve(&built, sources) {
            Ok(candidate) if candidate.plan.is_usable(built.problem.preferences.ceiling) => {
                (self.solved_at_ms, self.trouble) = (Some(now_ms), None);
                if let Err(error) = self.publish(&built, sources, candidate, now_ms) {
                    self.trouble = Some(problem_text(&built, &error));
                }
            }
            Ok(candidate) => {
                let load = candidate.plan.greatest_load() * 100.0;
                let text = format!("the solution does not converge yet: a region would be at {load:.0} %");
                self.trouble = Some(Fallback::new("unsolved", text));
            }
            Err(error) => self.trouble = Some(problem_text(&built, &error)),
        }
        if self.solved_at_ms.is_none_or(|at| now_ms.saturating_sub(at) > KEPT_MS) {
            self.plans.clear();
        }
    }

    /// Forgets the plan in force.
    fn restart(&mut self, trouble: Option<Fallback>) {
        let adopted = std::mem::take(&mut self.adopted);
        *self = Self { number: self.number, trouble, adopted, ..Self::default() };
    }

    /// Whether tables in force may have changes that another control plane was trying out: nobody would take them back. The first plan of
    /// their services neither starts from them nor is compared with them. A mark in the tables was rejected: rings plan such a service
    /// until it is measured, and change the tables in the meantime.
    fn takes_over(&self, sources: Sources<'_>) -> bool {
        sources.models.keys().any(|service| !self.adopted.contains(service))
    }

    /// What the tables in force cause, and the last plan where none are published.
    pub(super) fn evaluate_in_force(
        &self,
        built: &GraphProblem,
        sources: Sources<'_>,
    ) -> Result<Plan, ProblemError> {
        let evaluated =
            built.evaluate(|service, region, class| self.in_force(sources, (service, region), class));
        evaluated.map(|(plan, _)| plan)
    }

    fn solve(&mut self, built: &GraphProblem, sources: Sources<'_>) -> Result<Candidate, ProblemError> {
        let (in_force, leads_nowhere) =
            built.evaluate(|service, region, class| self.in_force(sources, (service, region), class))?;
        let shape = built.shape();
        let last = self.last.take().filter(|(known, _)| *known == shape);
        let start = last.as_ref().map(|(_, plan)| plan);
        let start = start.or_else(|| (!self.takes_over(sources)).then_some(&in_force));
        let iterations = (MAX_WORK / GraphProblem::size(sources).max(1)).clamp(1, MAX_ITERATIONS);
        let effort = Effort { gap: GAP, iterations };
        let mut left = iterations;
        let plan = optimize(&built.problem, start, effort, &mut |_| {
            left = left.saturating_sub(1);
            left > 0
        })?;
        self.last = Some((shape, plan.clone()));
        Ok(Candidate { in_force, leads_nowhere, plan })
    }

    /// The shares of a table in force; those of the last plan while none is published.
    fn in_force<'a>(
        &self,
        sources: Sources<'a>,
        (service, region): (&ServiceName, &Region),
        class: Option<&Label>,
    ) -> Option<Cow<'a, RegionShares>> {
        let facts = sources.services.get(service)?;
        if facts.traffic.mode == TrafficMode::Active {
            let shares = &facts.tables.get(region)?.table.shares;
            let own = class.and_then(|class| shares.classes.get(class));
            return own.or(shares.default.as_ref()).map(Cow::Borrowed);
        }
        let plan = self.plans.get(service)?;
        let at = plan.regions.binary_search(region).ok()?;
        let shares = to_shares(plan.tables.sources.get(at)?, &plan.regions, &plan.classes);
        let own = class.and_then(|class| shares.classes.get(class)).cloned();
        own.or(shares.default).map(Cow::Owned)
    }

    fn publish(
        &mut self,
        built: &GraphProblem,
        sources: Sources<'_>,
        candidate: Candidate,
        now_ms: u64,
    ) -> Result<(), ProblemError> {
        let Candidate { mut in_force, leads_nowhere, plan } = candidate;
        let shifted = built.shifted(&plan, sources.shifts)?;
        let is_free = !leads_nowhere && !self.must_publish && !self.takes_over(sources);
        if is_free && !is_worth_publishing(&built.problem, &in_force, &shifted, DEAD_BAND)? {
            in_force.bound = plan.bound;
            self.refresh(built, sources, &in_force, now_ms);
            return Ok(());
        }
        let gap = plan.gap();
        let step = next_step(built, &in_force, plan)?;
        self.number += 1;
        self.must_publish = false;
        self.adopted.extend(sources.models.keys().cloned());
        for (service, model) in sources.models {
            let plan =
                ServicePlan { gap, ..built.service_plan(&step, (service, model), self.number, now_ms) };
            self.plans.insert(service.clone(), Arc::new(plan));
        }
        Ok(())
    }

    /// What the plan in force causes at present. A service that joins has the tables in force as its plan.
    fn refresh(&mut self, built: &GraphProblem, sources: Sources<'_>, in_force: &Plan, now_ms: u64) {
        for (service, model) in sources.models {
            let known = self.plans.get(service);
            let (number, at_ms) =
                known.map_or((self.number, now_ms), |plan| (plan.number, plan.planned_at_ms));
            let present = built.service_plan(in_force, (service, model), number, at_ms);
            let plan = match known {
                Some(known) if present.regions != known.regions => continue,
                Some(known) => ServicePlan { tables: known.tables.clone(), ..present },
                None => present,
            };
            self.plans.insert(service.clone(), Arc::new(plan));
        }
    }
}

/// The plan, or the part of the way to it that one step goes.
fn next_step(built: &GraphProblem, in_force: &Plan, plan: Plan) -> Result<Plan, ProblemError> {
    let (count, ceiling) = (built.problem.regions, built.problem.preferences.ceiling);
    let moved = (0..built.problem.edges.len()).flat_map(|edge| (0..count).map(move |source| (edge, source)));
    let moved = moved
        .map(|(edge, source)| difference(in_force.shares.row(edge, source), plan.shares.row(edge, source)));
    let part = MAX_STEP / moved.fold(0.0, f64::max).max(MAX_STEP);
    if part >= 1.0 || !in_force.is_usable(ceiling) {
        return Ok(plan);
    }
    let rows = (0..built.problem.edges.len()).flat_map(|edge| (0..count).map(move |source| (edge, source)));
    let rows = rows
        .map(|(edge, source)| mix(in_force.shares.row(edge, source), plan.shares.row(edge, source), part));
    let step = Plan::evaluate(&built.problem, &Shares::new(count, rows), &plan.admitted)?;
    // With several hops, half of the way may overload a region that neither end does.
    Ok(if step.is_usable(ceiling) { step } else { plan })
}

/// Shares by destination.
type Row = [(u16, f64)];

fn share(row: &Row, to: u16) -> f64 {
    row.iter().filter(|(one, _)| *one == to).map(|(_, share)| share).sum()
}

/// The share of calls that go elsewhere; none where one of both says nothing.
fn difference(before: &Row, after: &Row) -> f64 {
    if before.is_empty() || after.is_empty() {
        return 0.0;
    }
    after.iter().map(|(to, share_after)| (share_after - share(before, *to)).max(0.0)).sum()
}

fn mix(before: &Row, after: &Row, part: f64) -> Vec<(u16, f64)> {
    if before.is_empty() {
        return after.to_vec();
    }
    let mut row: BTreeMap<u16, f64> = BTreeMap::new();
    for (to, share) in before {
        *row.entry(*to).or_default() += share * (1.0 - part);
    }
    for (to, share) in after {
        *row.entry(*to).or_default() += share * part;
    }
    row.into_iter().collect()
}

/// Why there is no problem, with names instead of positions.
pub(super) fn problem_text(built: &GraphProblem, error: &ProblemError) -> Fallback {
    let text = match error {
        ProblemError::LoopGain(node) => {
            let name = built.nodes.get(*node).map(|node| node.service.to_string()).unwrap_or_default();
            format!("the calls of {name} multiply without end; check the calls per request of its cycle")
        }
        ProblemError::Unplaced(service) => {
            let name = built.services.get(*service).map(ToString::to_string).unwrap_or_default();
            format!("{name} is called and has servers in no region")
        }
        _ if built.regions.len() > MAX_REGIONS => {
            format!("{} regions are more than a plan has", built.regions.len())
        }
        other => other.to_string(),
    };
    Fallback::new("problem", text)
}

/// The service because of which there is no problem, if it is one.
pub(super) fn problem_service<'a>(built: &'a GraphProblem, error: &ProblemError) -> Option<&'a ServiceName> {
    match error {
        ProblemError::LoopGain(node) => built.nodes.get(*node).map(|node| &node.service),
        ProblemError::Unplaced(service) => built.services.get(*service),
        _ => None,
    }
}
