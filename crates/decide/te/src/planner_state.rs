use crate::{
    backlog::Backlog,
    capacity_trust::{Doubt, Evidence, Trust},
    class_mix::is_other_mix,
    observation::{CallerReport, Observation, RegionObservation, ServerReport},
    observation_check::{COMPARED_LOAD, FULL, is_loaded, work},
    pid_controller::Pid,
    reach::Reach,
    recent_peak::Peak,
    rings_policy::RingsPolicy,
    share_tables::{ClassShares, Tables, WHOLE},
    smoothed_value::Smoothed,
};

/// Regions that another one has to differ from before its reports are doubted.
const MIN_COMPARED: usize = 2;
/// Weight of the newest work per call in its mean, at most.
const WORK_WEIGHT: f64 = 0.3;
/// Data that is this much newer than the last is another report: the age of a sum swings a little by itself. Sums of less than a second
/// apart have calls in common, so that they show less noise than there is; among them only a change counts.
const NEWER_MS: u64 = 200;
const INDEPENDENT_MS: u64 = 750;
/// Weight of the newest count of unreported calls where it grows. Reports of callers and servers are of different seconds,
/// so a shift looks like such calls for a moment: they are believed only when they last.
const UNREPORTED_WEIGHT: f64 = 0.2;
/// How long it takes until a table is in force at callers, and the longest time for which demand is foretold.
const IN_FORCE_MS: f64 = 1_500.0;
const LONGEST_FORECAST_MS: f64 = 5_000.0;
/// Work per call before any was seen: so little that no region seems loaded, and greater regions seem less so.
const NO_WORK: f64 = 1e-9;
/// A region whose servers come back gets calls only after they have stayed for this long, so that a region that flaps
/// does not make calls of others flap; or once calls would be dropped otherwise.
const SETTLING_MS: u64 = 60_000;

/// Work per call of a region.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    mean: f64,
    /// The same without the noise of single reports.
    smoothed: Smoothed,
    /// Whether that is newer.
    is_new: bool,
    /// Whether it was seen under load. Until then it is mostly background work, and replaced by the first that was.
    is_firm: bool,
}

impl Work {
    /// Takes the work per call that servers have seen until this time.
    fn observe(&mut self, new: f64, at_ms: u64) {
        if is_news(&self.smoothed, new, at_ms) {
            self.smoothed.observe(new, at_ms);
            self.is_new = true;
        }
    }

    /// Learns from what was observed last, unless that is suspected to be too little.
    fn follow(&mut self, is_suspect: bool) {
        let change = self.smoothed.mean() - self.mean;
        if std::mem::take(&mut self.is_new) && !(is_suspect && change < 0.0) {
            self.mean += WORK_WEIGHT * change;
        }
    }
}

/// What a planner remembers from one round to the next.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannerState {
    pub(crate) tables: Tables,
    pub(crate) pids: Vec<Pid>,
    /// When a plan was last made.
    pub(crate) planned_at_ms: Option<u64>,
    classes: usize,
    /// Mean work per call, by region.
    work: Vec<Option<Work>>,
    /// By region, the shares of its calls that it is learnt from, by source and class; empty until then.
    learnt_shares: Vec<Vec<u32>>,
    /// The demand, by source and class.
    demand: Vec<Smoothed>,
    has_demand: Vec<bool>,
    /// The time of the last observation.
    learnt_at_ms: u64,
    /// Whether the callers of a region vanished with it.
    is_absent: Vec<bool>,
    /// The greatest demand of late, by source and class: what returns has to fit in while it swings, too.
    peak_demand: Vec<Peak>,
    /// Calls per second that no caller reports, by the region that gets them.
    unreported: Vec<f64>,
    /// Calls that wait, by region.
    backlog: Vec<Backlog>,
    /// How far reports are trusted, by region.
    trust: Vec<Trust>,
    /// What callers reach, by region.
    reach: Vec<Reach>,
    /// By region: whether servers were there, once it is known, and until when they have to stay to be used.
    presence: Vec<(Option<bool>, u64)>,
}

impl PlannerState {
    /// The state before the first plan: all calls are local.
    pub fn new(regions: usize, classes: usize) -> Self {
        Self::resumed(Tables::local(regions, classes), classes)
    }

    /// The state of a planner that takes over tables that are in force.
    pub fn resumed(tables: Tables, classes: usize) -> Self {
        let regions = tables.sources.len();
        Self {
            tables,
            pids: vec![Pid::default(); regions],
            planned_at_ms: None,
            classes,
            work: vec![None; regions],
            learnt_shares: vec![Vec::new(); regions],
            demand: vec![Smoothed::default(); regions * classes],
            peak_demand: vec![Peak::default(); regions * classes],
            has_demand: vec![false; regions],
            learnt_at_ms: 0,
            is_absent: vec![false; regions],
            unreported: vec![0.0; regions],
            backlog: vec![Backlog::default(); regions],
            trust: vec![Trust::default(); regions],
            reach: vec![Reach::default(); regions],
            presence: vec![(None, 0); regions],
        }
    }

    /// The state for another list of regions; `from` has the position that each of them had before, `None` of a new one.
    /// Shares of regions that are no longer in the list go home.
    #[must_use]
    pub fn remapped(&self, from: &[Option<usize>]) -> Self {
        let mut next = Self::new(from.len(), self.classes);
        (next.planned_at_ms, next.learnt_at_ms) = (self.planned_at_ms, self.learnt_at_ms);
        for (at, before) in from.iter().enumerate() {
            let Some(before) = *before else { continue };
            next.pids[at] = self.pids[before];
            next.work[at] = self.work[before];
            // Calls that go home from a removed region may be of another class than those that were served here.
            if self.classes > 1
                && let Some(work) = &mut next.work[at]
            {
                work.smoothed.forget();
            }
            next.has_demand[at] = self.has_demand[before];
            next.is_absent[at] = self.is_absent[before];
            next.unreported[at] = self.unreported[before];
            next.backlog[at] = self.backlog[before];
            next.trust[at] = self.trust[before];
            next.reach[at] = self.reach[before];
            next.presence[at] = self.presence[before];
            for class in 0..self.classes {
                next.demand[at * self.classes + class] = self.demand[before * self.classes + class];
                next.peak_demand[at * self.classes + class] = self.peak_demand[before * self.classes + class];
                let old = self.tables.of(before, class);
                let mut shares: Vec<u32> = from.iter().map(|to| to.map_or(0, |to| old.shares[to])).collect();
                shares[at] += WHOLE.saturating_sub(old.dropped + shares.iter().sum::<u32>());
                next.tables.sources[at].classes[class] = ClassShares { shares, dropped: old.dropped };
            }
        }
        next
    }

    /// The same state with other tables in force, of the same regions and classes: those that another writer made.
    #[must_use]
    pub fn with_tables(self, tables: Tables) -> Self {
        Self { tables, ..self }
    }

    /// The same state without the work per call, of another measure than the next reports.
    #[must_use]
    pub fn without_work(self) -> Self {
        Self { work: vec![None; self.work.len()], ..self }
    }

    /// Whether callers of a region make calls of a class.
    pub fn has_calls(&self, region: usize, class: usize) -> bool {
        self.demand(region, class) > 0.0
    }

    /// Calls per second that arrive at a region and that no caller reports. No table moves them.
    pub fn unreported(&self, region: usize) -> f64 {
        self.unreported[region]
    }

    /// The tables in force.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    pub(crate) fn fits(&self, regions: usize, classes: usize) -> bool {
        let is_whole = |shares: &[u32], dropped| {
            shares.len() == regions
                && shares.iter().map(|s| u64::from(*s)).sum::<u64>() + dropped == u64::from(WHOLE)
        };
        let mut rows = self.tables.sources.iter().flat_map(|source| &source.classes);
        self.classes == classes
            && self.tables.sources.len() == regions
            && self.tables.sources.iter().all(|source| source.classes.len() == classes)
            && rows.all(|row| is_whole(&row.shares, u64::from(row.dropped)))
    }

    /// Whether the callers of a region vanished with it: the last demand is that of their return.
    pub(crate) fn is_absent(&self, source: usize) -> bool {
        self.is_absent[source]
    }

    pub(crate) fn has_demand(&self, source: usize) -> bool {
        self.has_demand[source]
    }

    /// The demand once the tables of this round are in force: that of a ramp grows until then.
    pub(crate) fn demand(&self, source: usize, class: usize) -> f64 {
        let demand = &self.demand[source * self.classes + class];
        // Callers that have gone let no ramp go on.
        if self.is_absent[source] {
            return demand.mean();
        }
        let age_ms = self.learnt_at_ms.saturating_sub(demand.at_ms()) as f64;
        demand.ahead((age_ms + demand.half_interval_ms() + IN_FORCE_MS).min(LONGEST_FORECAST_MS))
    }

    /// The greatest demand of the last 20 to 40 s; at least the present one.
    pub(crate) fn peak_demand(&self, source: usize, class: usize) -> f64 {
        let peak = self.peak_demand[source * self.classes + class].value();
        peak.max(self.demand(source, class))
    }

    /// Work per call that was seen under load.
    pub(crate) fn known_work(&self, region: usize) -> Option<f64> {
        self.work[region].filter(|work| work.is_firm).map(|work| work.mean)
    }

    /// Utilisation by one call per second at a region of this power.
    pub(crate) fn cost(&self, region: usize, power: f64) -> f64 {
        if power <= 0.0 {
            return f64::INFINITY;
        }
        let own = self.work[region].map(|work| work.mean);
        let work = own.or_else(|| self.median_work()).unwrap_or(NO_WORK);
        let trust = self.trust[region];
        // What was suspected from the first report on has not been learnt from others before.
        let is_unknown = self.work[region].is_none_or(|work| work.smoothed.is_new());
        let is_doubted = trust.seems_cheap() || (trust.is_suspect() && is_unknown);
        let others = if is_doubted { median_of_others(&self.firm_works(), region) } else { None };
        work.max(others.unwrap_or_default()) / (power * self.reached(region))
    }

    /// The part of a region's capacity that callers reach, above 0 and at most 1.
    pub fn reached(&self, region: usize) -> f64 {
        self.reach[region].part()
    }

    /// Why the capacity of a region is doubted; `None` if it is not.
    pub fn doubt(&self, region: usize) -> Option<Doubt> {
        match self.trust[region].doubt() {
            Some(Doubt::SeemsCheap) => Some(Doubt::SeemsCheap),
            _ if self.reach[region].is_partial() => Some(Doubt::Unreached),
            other => other,
        }
    }

    /// Work per call that was seen under load, by region, without delay.
    fn firm_works(&self) -> Vec<Option<f64>> {
        let firm = |work: &Option<Work>| work.filter(|work| work.is_firm).map(|work| work.smoothed.mean());
        self.work.iter().map(firm).collect()
    }

    /// The standard deviation of the load by a region's own calls, as a part of it: what is left of the noise of reports.
    pub(crate) fn load_error(&self, region: usize) -> f64 {
        let demand = &self.demand[region * self.classes..][..self.classes];
        let variance: f64 = demand.iter().map(|demand| demand.error().powi(2)).sum();
        let total: f64 = demand.iter().map(Smoothed::mean).sum();
        let of_demand = if total > 0.0 { variance.sqrt() / total } else { 0.0 };
        let work = self.work[region].filter(|work| work.mean > 0.0);
        of_demand.hypot(work.map_or(0.0, |work| work.smoothed.error() / work.mean))
    }

    fn median_work(&self) -> Option<f64> {
        let mut known: Vec<f64> = self.work.iter().flatten().map(|work| work.mean).collect();
        known.sort_by(f64::total_cmp);
        known.get(known.len() / 2).copied()
    }

    /// Takes over an observation that was checked.
    pub(crate) fn learn(&mut self, observation: &Observation, policy: &RingsPolicy) {
        let ceiling = policy.ceiling();
        self.learnt_at_ms = observation.now_ms;
        for (at, region) in observation.regions.iter().enumerate() {
            self.learn_presence(at, region.power > 0.0, observation.now_ms);
            if let Some(callers) = &region.callers {
                self.is_absent[at] = observation.present_callers(region).is_none();
                self.learn_demand(at, callers, observation.now_ms);
            }
            if let Some(servers) = &region.servers {
                self.reach[at].observe(servers, policy.threshold());
                let load = self.reached_load(at, servers.load);
                self.backlog[at].observe(&ServerReport { load, ..*servers }, ceiling);
            }
            let (new, known) = (observation.unreported(at), self.unreported[at]);
            self.unreported[at] = new.min(known + UNREPORTED_WEIGHT * (new - known).max(0.0));
        }
        for (at, region) in observation.regions.iter().enumerate() {
            self.learn_mix(at);
            self.learn_work(at, region);
        }
        self.learn_trust(observation, ceiling);
        for (work, trust) in self.work.iter_mut().zip(&self.trust) {
            work.iter_mut().for_each(|work| work.follow(trust.is_suspect()));
        }
    }

    /// The utilisation of the servers that callers reach. They are full at 1, which says nothing of a greater load.
    fn reached_load(&self, region: usize, load: f64) -> f64 {
        load.max((load / self.reached(region)).min(1.0))
    }

    /// Compares what regions report with one another.
    fn learn_trust(&mut self, observation: &Observation, ceiling: f64) {
        let reports: Vec<Option<ServerReport>> =
            observation.regions.iter().map(|region| region.servers.filter(|_| region.power > 0.0)).collect();
        let times: Vec<Option<f64>> = reports
            .iter()
            .map(|report| report.map(|report| report.response_time).filter(|time| *time > 0.0))
            .collect();
        let failing = self.trust.iter_mut().zip(&reports);
        let failing: Vec<Option<f64>> = failing
            .map(|(trust, report)| report.map(|report| trust.observe_failing(report.failing, report.at_ms)))
            .collect();
        // Regions without servers, or whose servers do not report, say nothing any more.
        let works: Vec<Option<f64>> =
            self.firm_works().into_iter().zip(&reports).map(|(work, report)| report.and(work)).collect();
        let ratio = |values: &[Option<f64>], at: usize| {
            // With one other region, nobody knows which of both is right.
            let count =
                values.iter().enumerate().filter(|(other, one)| *other != at && one.is_some()).count();
            if count < MIN_COMPARED {
                return None;
            }
            let others = median_of_others(values, at).filter(|others| *others > 0.0)?;
            Some(values[at]? / others)
        };
        for (at, report) in reports.iter().enumerate() {
            let Some(report) = report else {
                self.trust[at].forget_failing();
                continue;
            };
            // A region without calls fails none. More calls end than begin where load falls, which counts as less than none.
            let others = median_of_others(&failing, at).filter(|_| report.received > 0.0);
            self.trust[at].judge(&Evidence {
                at_ms: report.at_ms,
                work: ratio(&works, at),
                time: ratio(&times, at),
                load: report.load / ceiling,
                // Where all fail, or there is no other, moving calls is of no use.
                failing: others.map_or(0.0, |others| failing[at].unwrap_or_default() - others.max(0.0)),
            });
        }
    }

    fn learn_demand(&mut self, at: usize, callers: &CallerReport, now_ms: u64) {
        let rows = at * self.classes..(at + 1) * self.classes;
        for (demand, rate) in self.demand[rows.clone()].iter_mut().zip(&callers.offered) {
            if is_news(demand, *rate, callers.at_ms) {
                demand.observe(*rate, callers.at_ms);
            }
        }
        self.has_demand[at] = true;
        for (peak, demand) in self.peak_demand[rows.clone()].iter_mut().zip(&self.demand[rows]) {
            peak.observe(demand.mean(), now_ms);
        }
    }

    /// Work per call is learnt anew once the tables in force send a region calls of other classes: smoothed as noise is, it would
    /// be that of the mix before for a minute, while the planner moves calls back and forth.
    fn learn_mix(&mut self, at: usize) {
        if self.classes == 1 {
            return;
        }
        let rows = self.tables.sources.iter().flat_map(|source| &source.classes);
        let present: Vec<u32> = rows.map(|row| row.shares[at]).collect();
        let before = &self.learnt_shares[at];
        if *before == present {
            return;
        }
        let is_known = !before.is_empty();
        let calls = |(row, demand): (usize, &Smoothed)| match self.is_absent[row / self.classes] {
            true => 0.0,
            false => demand.mean(),
        };
        let demand: Vec<f64> = self.demand.iter().enumerate().map(calls).collect();
        if is_known && !is_other_mix(&demand, self.classes, (before, &present)) {
            return;
        }
        self.learnt_shares[at] = present;
        if let Some(work) = self.work[at].as_mut().filter(|_| is_known) {
            work.smoothed.forget();
        }
    }

    fn learn_work(&mut self, at: usize, region: &RegionObservation) {
        let load = region.servers.map_or(0.0, |servers| servers.load);
        let Some(new) = work(region).filter(|work| *work > 0.0) else { return };
        // A load that is low and should not be says something as well: calls have become cheaper.
        let received = region.servers.map_or(0.0, |servers| servers.received);
        let expected = self.known_work(at).unwrap_or_default() * received / region.power;
        let is_firm = is_loaded(region) || expected >= COMPARED_LOAD;
        let at_ms = region.servers.map_or(0, |servers| servers.at_ms);
        let is_full = self.reached_load(at, load) >= FULL;
        match &mut self.work[at] {
            // What is seen while the region is quiet says less.
            Some(known) if known.is_firm && !is_firm => {}
            Some(known) if known.is_firm == is_firm => {
                // A full region gets more calls than it works on, and one with a backlog works on more than it gets. While few
                // calls wait, those that end tell a backlog from calls that have become dearer.
                let is_backlog = self.backlog[at].is_possible();
                let ended = self.backlog[at].ended().filter(|_| is_backlog);
                let new = ended.map_or(new, |ended| load * region.power / ended);
                let seems_cheap = is_full && new < known.mean;
                let seems_dear = is_backlog && ended.is_none() && new > known.mean;
                if !seems_cheap && !seems_dear {
                    known.observe(new, at_ms);
                }
            }
            unknown => {
                *unknown = Some(Work { mean: new, smoothed: Smoothed::of(new), is_new: false, is_firm })
            }
        }
    }

    fn learn_presence(&mut self, region: usize, is_present: bool, now_ms: u64) {
        let (was_present, until) = &mut self.presence[region];
        if is_present && *was_present == Some(false) {
            *until = now_ms.saturating_add(SETTLING_MS);
        }
        *was_present = Some(is_present);
    }

    /// Whether servers that have just come back are not used yet.
    pub(crate) fn is_settling(&self, now_ms: u64) -> bool {
        self.presence.iter().any(|(is_present, until)| *is_present == Some(true) && now_ms < *until)
    }

    /// Uses servers that have just come back from now on.
    pub(crate) fn settle(&mut self) {
        self.presence.iter_mut().for_each(|(_, until)| *until = 0);
    }

    /// Power by region without that of servers that have just come back, unless there is no other.
    pub(crate) fn usable_powers(&self, observation: &Observation) -> Vec<f64> {
        let settled = |(region, (_, until)): (&RegionObservation, &(Option<bool>, u64))| {
            if observation.now_ms < *until { 0.0 } else { region.power }
        };
        let powers: Vec<f64> = observation.regions.iter().zip(&self.presence).map(settled).collect();
        match powers.iter().all(|power| *power == 0.0) {
            true => observation.regions.iter().map(|region| region.power).collect(),
            false => powers,
        }
    }
}

/// Whether a value of this time says something that the values so far do not.
fn is_news(number: &Smoothed, value: f64, at_ms: u64) -> bool {
    number.is_older(at_ms, INDEPENDENT_MS) || (number.is_older(at_ms, NEWER_MS) && number.is_outlier(value))
}

/// The median of the values that are known of the other regions, the lower one of two.
fn median_of_others(values: &[Option<f64>], region: usize) -> Option<f64> {
    let others = values.iter().enumerate().filter(|(at, _)| *at != region);
    let mut others: Vec<f64> = others.filter_map(|(_, value)| *value).collect();
    others.sort_by(f64::total_cmp);
    others.get(others.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planner_state_keeps_values_of_remaining_regions_when_regions_change() {
        let mut state = PlannerState::new(3, 1);
        state.tables.sources[0].classes[0] = ClassShares { shares: vec![6_000, 3_000, 500], dropped: 500 };
        (state.work[2], state.demand[2], state.has_demand[2]) = (
            Some(Work { mean: 0.5, smoothed: Smoothed::of(0.5), is_new: false, is_firm: true }),
            Smoothed::of(70.0),
            true,
        );
        // The second region goes, and a new one comes first.
        let next = state.remapped(&[None, Some(0), Some(2)]);
        assert!(next.fits(3, 1));
        assert_eq!(next.tables.of(1, 0), &ClassShares { shares: vec![0, 9_000, 500], dropped: 500 });
        assert_eq!(next.tables.of(0, 0).shares, [WHOLE, 0, 0]);
        assert_eq!((next.known_work(2), next.demand(2, 0), next.has_demand(2)), (Some(0.5), 70.0, true));
        assert_eq!((next.known_work(0), next.has_demand(0)), (None, false));
    }
}
