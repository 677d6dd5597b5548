use crate::{
    observation::Observation,
    planner_state::PlannerState,
    region_flows::Flows,
    ring_fill::{Stranded, fill},
    ring_matrix::RingMatrix,
    rings_planner::DEAD_BAND,
    rings_policy::RingsPolicy,
    share_tables::{ClassShares, RegionTable, Tables},
};

/// The part of their last demand that callers count as who vanished with their region.
const TRACE: f64 = 1e-6;

/// The part of all calls from which those that are dropped are no rounding error.
const SHORTAGE: f64 = 1e-5;

/// The numbers of one planning round, checked and complete.
#[derive(Clone, Debug)]
pub(crate) struct Problem<'a> {
    pub(crate) rings: &'a RingMatrix,
    pub(crate) regions: usize,
    pub(crate) classes: usize,
    /// Calls per second by source and class. Of callers that vanished with their region a trace, so that they have a table for
    /// their return: room for them is not taken from others, and if it is only their reports that are lost, the servers that
    /// get their calls say so.
    demand: Vec<f64>,
    /// The sources of which it is a trace.
    absent: Vec<usize>,
    /// Calls per second by region that arrive there whatever the tables say: those of callers that do not report.
    unreported: Vec<f64>,
    /// The share of its own calls that a region keeps; 0 where nothing serves.
    pub(crate) keep: Vec<f64>,
    /// The share of its own calls that cannot leave, where anything serves.
    pinned: Vec<f64>,
    /// Utilisation by one call per second (ServiceRouter §3.4.1, RPS cost); infinite where nothing serves.
    pub(crate) cost: Vec<f64>,
    /// The part of a region's capacity that callers reach.
    reached: Vec<f64>,
    /// The standard deviation of a region's load, as a part of it.
    error: Vec<f64>,
}

impl<'a> Problem<'a> {
    /// The problem of an observation that was checked, with the work per call that the state has learned.
    pub(crate) fn new(
        policy: &RingsPolicy,
        rings: &'a RingMatrix,
        observation: &Observation,
        state: &PlannerState,
    ) -> Self {
        let powers = state.usable_powers(observation);
        let sources = 0..observation.regions.len();
        let part = |source| if state.is_absent(source) { TRACE } else { 1.0 };
        let demand = sources.clone().flat_map(|source| {
            (0..policy.classes).map(move |class| state.demand(source, class) * part(source))
        });
        let regions = observation.regions.iter().zip(&powers);
        Self {
            rings,
            regions: powers.len(),
            classes: policy.classes,
            demand: demand.collect(),
            absent: sources.filter(|source| state.is_absent(*source)).collect(),
            unreported: (0..powers.len()).map(|region| state.unreported(region)).collect(),
            keep: regions
                .clone()
                .map(|(region, power)| if *power > 0.0 { region.keep } else { 0.0 })
                .collect(),
            pinned: regions
                .map(|(region, power)| match &region.callers {
                    Some(callers) if *power > 0.0 => callers.pinned,
                    _ => 0.0,
                })
                .collect(),
            cost: (0..powers.len()).map(|region| state.cost(region, powers[region])).collect(),
            reached: (0..powers.len()).map(|region| state.reached(region)).collect(),
            error: (0..powers.len()).map(|region| state.load_error(region)).collect(),
        }
    }

    /// The same with the greatest demand of late.
    pub(crate) fn at_peaks(&self, state: &PlannerState) -> Self {
        let part = |source| if state.is_absent(source) { TRACE } else { 1.0 };
        let peak =
            |source| (0..self.classes).map(move |class| state.peak_demand(source, class) * part(source));
        Self { demand: (0..self.regions).flat_map(peak).collect(), ..self.clone() }
    }

    /// Fills regions up to these thresholds, and drops what is above these ceilings. Callers that are absent get the shares
    /// that they would need to come back.
    pub(crate) fn fill(&self, thresholds: &[f64], ceilings: &[f64]) -> Flows {
        let mut flows = fill(self, thresholds, ceilings, Stranded::Serve);
        if self.absent.is_empty() {
            return flows;
        }
        let mut present = self.clone();
        for source in &self.absent {
            present.demand[source * self.classes..][..self.classes]
                .iter_mut()
                .for_each(|rate| *rate /= TRACE);
        }
        let by_all = fill(&present, thresholds, ceilings, Stranded::Serve);
        for source in &self.absent {
            for class in 0..self.classes {
                flows.set_shares((*source, class), self.demand(*source, class), &by_all);
            }
        }
        flows
    }

    /// Whether calls are dropped though regions are filled up to the thresholds of the policy.
    pub(crate) fn is_short(&self, policy: &RingsPolicy) -> bool {
        let ceilings = vec![policy.ceiling(); self.regions];
        let flows = fill(self, &policy.thresholds(0.0), &ceilings, Stranded::Serve);
        flows.dropped.iter().sum::<f64>() > SHORTAGE * self.demand.iter().sum::<f64>()
    }

    /// Whether the callers of a region vanished with it.
    pub(crate) fn is_absent(&self, source: usize) -> bool {
        self.absent.contains(&source)
    }

    pub(crate) fn demand(&self, source: usize, class: usize) -> f64 {
        self.demand[source * self.classes + class]
    }

    /// The part of the calls of a class that stays even while the region is drained or overloaded.
    pub(crate) fn pinned(&self, source: usize, class: usize) -> f64 {
        self.demand(source, class) * self.pinned[source]
    }

    /// Calls of all classes of a source.
    pub(crate) fn offered(&self, source: usize) -> f64 {
        self.demand[source * self.classes..][..self.classes].iter().sum()
    }

    /// Whether calls of other regions may be sent to a region.
    pub(crate) fn accepts(&self, region: usize) -> bool {
        self.cost[region].is_finite() && self.keep[region] >= 1.0
    }

    /// Whether the region's servers can be called at all.
    pub(crate) fn serves(&self, region: usize) -> bool {
        self.cost[region].is_finite()
    }

    /// Whether a region keeps all of its calls that it can serve: it is not drained.
    pub(crate) fn is_whole(&self, region: usize) -> bool {
        self.keep[region] >= 1.0 || !self.serves(region)
    }

    /// Whether a region sends away what its drain asks for. Nothing has to leave a region that is not drained.
    pub(crate) fn has_left(&self, region: usize, flows: &Flows) -> bool {
        let kept: f64 = (0..self.classes).map(|class| flows.get(region, class, region)).sum();
        self.is_whole(region) || kept <= (self.keep[region] + DEAD_BAND) * self.offered(region)
    }

    /// The ring of a destination as seen from a source; the greatest number of a region in none.
    pub(crate) fn ring(&self, source: usize, to: usize) -> usize {
        self.rings.ring(source, to).unwrap_or(usize::MAX)
    }

    /// Whether a destination is in an inner ring of another one.
    pub(crate) fn is_nearer(&self, source: usize, to: usize, than: usize) -> bool {
        self.ring(source, to) < self.ring(source, than)
    }

    /// Whether callers reach all servers of a region.
    pub(crate) fn is_reached(&self, region: usize) -> bool {
        self.reached[region] >= 1.0
    }

    /// The loads of [`Self::loads`] at which all servers of each region together are at its ceiling. No call is dropped for servers
    /// that are more loaded than others of their region: these may be reached after all.
    pub(crate) fn dropping_loads(&self, ceilings: &[f64]) -> Vec<f64> {
        ceilings.iter().zip(&self.reached).map(|(ceiling, reached)| ceiling / reached).collect()
    }

    /// Predicted utilisation of each region, or of the servers that callers reach there; 0 where nothing serves.
    pub(crate) fn loads(&self, flows: &Flows) -> Vec<f64> {
        let arrivals = flows.arrivals().into_iter().zip(&self.unreported).map(|(rate, more)| rate + more);
        let load = |(rate, cost): (f64, &f64)| if cost.is_finite() { rate * cost } else { 0.0 };
        arrivals.zip(&self.cost).map(load).collect()
    }

    /// The standard deviation of the load of all regions together, as a part of it.
    pub(crate) fn demand_error(&self) -> f64 {
        let offered: Vec<f64> = (0..self.regions).map(|source| self.offered(source)).collect();
        let total: f64 = offered.iter().sum();
        let variance: f64 = offered.iter().zip(&self.error).map(|(rate, error)| (rate * error).powi(2)).sum();
        if total > 0.0 { variance.sqrt() / total } else { 0.0 }
    }

    /// By region, the standard deviation of the load that calls of these flows make, as a part of it.
    pub(crate) fn errors(&self, flows: &Flows) -> Vec<f64> {
        let arrivals = flows.arrivals();
        let variance = |region: usize| {
            let of_source = |source: usize| {
                let calls: f64 = (0..self.classes).map(|class| flows.get(source, class, region)).sum();
                (calls * self.error[source]).powi(2)
            };
            (0..self.regions).map(of_source).sum::<f64>()
        };
        let error = |region: usize| {
            if arrivals[region] > 0.0 { variance(region).sqrt() / arrivals[region] } else { 0.0 }
        };
        (0..self.regions).map(error).collect()
    }

    /// By source, the share of its calls that the noise of reports can seem to move: three times the standard deviation of the calls
    /// that it and the regions that it calls get.
    pub(crate) fn noise(&self, flows: &Flows) -> Vec<f64> {
        let arrivals = flows.arrivals();
        let of_source = |source: usize| {
            let offered = self.offered(source);
            let calls = |to: usize| (0..self.classes).any(|class| flows.get(source, class, to) > 0.0);
            let called = (0..self.regions).filter(|to| *to == source || calls(*to));
            let variance: f64 = called.map(|to| (self.error[to] * arrivals[to]).powi(2)).sum();
            if offered > 0.0 { 3.0 * variance.sqrt() / offered } else { 0.0 }
        };
        (0..self.regions).map(of_source).collect()
    }

    /// The flows of tables at the present demand. Shares of regions that serve nothing go where `target` sends them,
    /// since routers cannot obey them.
    pub(crate) fn flows_of(&self, tables: &Tables, target: &Flows) -> Flows {
        let mut flows = Flows::new(self.regions, self.classes);
        for source in 0..self.regions {
            for class in 0..self.classes {
                self.add_row(&mut flows, tables, (source, class), target);
            }
        }
        flows
    }

    fn add_row(&self, flows: &mut Flows, tables: &Tables, (source, class): (usize, usize), target: &Flows) {
        let demand = self.demand(source, class);
        let row = tables.of(source, class);
        let mut homeless = 0.0;
        for (to, share) in row.shares.iter().enumerate().filter(|(_, share)| **share > 0) {
            let rate = demand * f64::from(*share) / f64::from(crate::WHOLE);
            match self.serves(to) {
                true => flows.add(source, class, to, rate),
                false => homeless += rate,
            }
        }
        let at = flows.row(source, class);
        flows.dropped[at] += demand * f64::from(row.dropped) / f64::from(crate::WHOLE);
        if homeless > 0.0 {
            let (shares, dropped) = target.shares(source, class);
            shares.iter().enumerate().for_each(|(to, share)| flows.add(source, class, to, homeless * share));
            flows.dropped[at] += homeless * dropped;
        }
    }

    /// The shares of a class without calls of a region that is drained: what it may not keep goes to all others by power, so
    /// that the first calls find them.
    fn idle_shares(&self, source: usize) -> Option<Vec<f64>> {
        let keep = self.keep[source];
        let takes = |to: &usize| *to != source && self.accepts(*to) && self.rings.ring(source, *to).is_some();
        let power = |to: usize| if takes(&to) { self.cost[to].recip() } else { 0.0 };
        let total: f64 = (0..self.regions).map(power).sum();
        let is_drained = self.serves(source) && keep < 1.0 && total > 0.0;
        let share = |to: usize| if to == source { keep } else { (1.0 - keep) * power(to) / total };
        is_drained.then(|| (0..self.regions).map(share).collect())
    }

    /// The tables of flows, rounded. What rounding leaves stays at home where the region serves.
    pub(crate) fn tables_of(&self, flows: &Flows) -> Tables {
        let row = |source: usize, class: usize| {
            let idle = if flows.has_calls(source, class) { None } else { self.idle_shares(source) };
            let (shares, dropped) = idle.map_or_else(|| flows.shares(source, class), |idle| (idle, 0.0));
            let at_home = self.serves(source) && self.keep[source] > 0.0;
            let greatest = (0..shares.len()).rev().max_by(|a, b| shares[*a].total_cmp(&shares[*b]));
            let fallback = if at_home { source } else { greatest.unwrap_or(source) };
            ClassShares::round(&shares, dropped, fallback)
        };
        let table =
            |source| RegionTable { classes: (0..self.classes).map(|class| row(source, class)).collect() };
        Tables { sources: (0..self.regions).map(table).collect() }
    }
}
