use super::{
    arc_flows::{Arcs, Flow},
    compiled_problem::{CallEdge, Network, Origin},
    problem::Problem,
    validation::ProblemError,
};

/// Loads up to this far above the ceiling count as at it.
pub(super) const CEILING_TOLERANCE: f64 = 1e-4;
/// A pool that is above the ceiling by its tolerance lowers the objective by up to this part.
const BOUND_TOLERANCE: f64 = 1e-3;
/// Shares below this are not kept from a plan to the next one.
const LEAST_SHARE: f64 = 1e-10;

/// Shares by edge and source region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    regions: usize,
    /// By edge × regions + source, and one more.
    offsets: Vec<u32>,
    to: Vec<(u16, f64)>,
}

/// A plan and what it is predicted to cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Where the calls of each edge go.
    pub shares: Shares,
    /// The share of each edge's demand that is served; 1 for calls between nodes.
    pub admitted: Vec<f64>,
    /// Milliseconds of all admitted calls of a second, with egress at its price: what is minimized.
    pub objective: f64,
    /// No plan has a lower objective. Where edges were cut, this is an estimate.
    pub bound: f64,
    /// Mean milliseconds of an admitted client call: work and round trips of all calls below it, one after the other.
    pub mean_latency: f64,
    /// Milliseconds by which the mean may be off, when the errors of all pools add up: the greatest sum of their standard errors.
    pub latency_error: f64,
    /// Dollars per second for egress.
    pub egress: f64,
    /// Utilisation by service × regions + region; 0 where it is not placed.
    pub loads: Vec<f64>,
    /// Milliseconds that a unit of work takes, by service × regions + region.
    pub work_latencies: Vec<f64>,
    /// Calls per second by edge × regions + source.
    pub calls: Vec<f64>,
    /// Edges that close a cycle: their calls are planned as demand of their source.
    pub cut: Vec<usize>,
    /// Iterations that were made.
    pub iterations: usize,
    /// Milliseconds that a dollar counted as when this plan was made: more than its worth under a cap on egress.
    pub(super) ms_per_dollar: f64,
    /// Multipliers of pools, by service × regions + region.
    pub(super) multipliers: Vec<Vec<f64>>,
}

impl Plan {
    /// How far the objective may be above the least one, as a part of it. It is the part that is certain: the true distance is often
    /// a tenth of it.
    pub fn gap(&self) -> f64 {
        if self.objective > 0.0 { ((self.objective - self.bound) / self.objective).max(0.0) } else { 0.0 }
    }

    /// The utilisation of the fullest pool.
    pub fn greatest_load(&self) -> f64 {
        self.loads.iter().copied().fold(0.0, f64::max)
    }

    /// Whether the plan may be put into force: its numbers are finite and no pool exceeds the ceiling. Otherwise the last one stays.
    pub fn is_usable(&self, ceiling: f64) -> bool {
        let is_within = self.greatest_load() <= ceiling + 2.0 * CEILING_TOLERANCE;
        self.objective.is_finite() && is_within && self.bound <= self.objective * (1.0 + BOUND_TOLERANCE)
    }

    pub(super) fn new(network: &Network, arcs: &Arcs, flow: &Flow) -> Self {
        let count = network.services.len() * network.regions;
        let (mut loads, mut work_latencies) = (vec![0.0; count], vec![0.0; count]);
        let mut multipliers = vec![Vec::new(); count];
        let (mut waiting, mut error) = (0.0, 0.0);
        network.each_pool(|at, pool| {
            let work = flow.work[pool];
            let pool = &network.pools[pool];
            loads[at] = work / pool.capacity;
            work_latencies[at] = pool.latency(work);
            waiting += work * work_latencies[at];
            error += pool.error * work * work_latencies[at];
            multipliers[at] = pool.multipliers();
        });
        let mut calls = vec![0.0; network.edges.len() * network.regions];
        let mut clients = 0.0;
        for edge in &network.edges {
            for (at, source) in edge.sources.iter().enumerate() {
                let rate = flow.inflow[edge.first_block + at];
                calls[edge.number * network.regions + usize::from(*source)] = rate;
                clients += if matches!(edge.origin, Origin::Clients(_)) { rate } else { 0.0 };
            }
        }
        let per_call = |sum: f64| if clients > 0.0 { sum / clients } else { 0.0 };
        let egress = arcs.egress(network, flow);
        let latency = flow.linear - network.ms_per_dollar * egress + waiting;
        Self {
            shares: Shares::of_arcs(network, arcs),
            objective: flow.objective(network),
            mean_latency: per_call(latency),
            latency_error: per_call(error),
            egress,
            loads,
            work_latencies,
            calls,
            cut: network.cut.clone(),
            ms_per_dollar: network.ms_per_dollar,
            multipliers,
            ..Self::default()
        }
    }

    /// What these shares cause when this part of each edge's demand is admitted. Rows that lead nowhere go to the nearest region.
    ///
    /// # Errors
    /// The problem is not valid, or `admitted` is not a part of each edge's demand.
    pub fn evaluate(problem: &Problem, shares: &Shares, admitted: &[f64]) -> Result<Self, ProblemError> {
        problem.validate()?;
        if admitted.len() != problem.edges.len() || !admitted.iter().all(|part| (0.0..=1.0).contains(part)) {
            return Err(ProblemError::Size("the list of admitted shares"));
        }
        let mut network = Network::new(problem, admitted)?;
        let arcs = shares.arcs(&network);
        let mut flow = Flow::default();
        arcs.settle(&mut network, &mut flow);
        Ok(Self { admitted: admitted.to_vec(), ..Self::new(&network, &arcs, &flow) })
    }
}

impl Shares {
    /// Destination regions of an edge's calls from a source region, with shares that sum to 1. Empty where the caller is not placed.
    pub fn row(&self, edge: usize, source: usize) -> &[(u16, f64)] {
        let at = edge * self.regions + source;
        match self.offsets.get(at..at + 2) {
            Some(ends) => &self.to[ends[0] as usize..ends[1] as usize],
            None => &[],
        }
    }

    /// Shares by edge, then source region: a row for each region of each edge.
    pub fn new(regions: usize, rows: impl IntoIterator<Item = Vec<(u16, f64)>>) -> Self {
        let mut shares = Self { regions, offsets: vec![0], to: Vec::new() };
        for row in rows {
            shares.to.extend(row);
            shares.offsets.push(shares.to.len() as u32);
        }
        shares
    }

    fn of_arcs(network: &Network, arcs: &Arcs) -> Self {
        let mut rows = vec![Vec::new(); network.edges.len() * network.regions];
        for edge in &network.edges {
            for (at, source) in edge.sources.iter().enumerate() {
                let placed = &network.service_of(edge).placed;
                let region = |(to, share): (u16, f64)| (placed[usize::from(to)], share);
                let row = arcs.row(edge, at).into_iter().map(region).collect();
                rows[edge.number * network.regions + usize::from(*source)] = row;
            }
        }
        Self::new(network.regions, rows)
    }

    /// These shares over the regions where services are placed now.
    pub(super) fn arcs(&self, network: &Network) -> Arcs {
        let mut arcs = Arcs { offsets: vec![0], ..Arcs::default() };
        for edge in &network.edges {
            for source in edge.sources.iter().map(|source| usize::from(*source)) {
                let row =
                    if edge.given.is_empty() { self.placed_row(network, edge, source) } else { Vec::new() };
                let sum: f64 = row.iter().map(|(_, share)| share).sum();
                for (to, share) in row {
                    arcs.push(to as u16, network.arc_cost(edge, source, to), share / sum);
                }
                arcs.end_block();
            }
        }
        arcs
    }

    fn placed_row(&self, network: &Network, edge: &CallEdge, source: usize) -> Vec<(usize, f64)> {
        let service = network.service_of(edge);
        let placed = |(region, share): &(u16, f64)| {
            let at = service.placed.binary_search(region).ok()?;
            (*share > LEAST_SHARE).then_some((at, *share))
        };
        let mut row: Vec<(usize, f64)> = self.row(edge.number, source).iter().filter_map(placed).collect();
        if row.is_empty() {
            row.extend(service.nearest(source).first().map(|nearest| (*nearest, 1.0)));
        }
        row
    }
}
