//! What the optimizer takes the servers of one service for: capacities, work and latency, from the fits of its pools.

use std::collections::BTreeMap;

use fairmesh_model::{
    CallNode, Label, Region, Ring, RoundTrips, ServerRates, ServiceKind, ServiceName, TrafficMode,
};
use fairmesh_te::optimizer::{Kink, ServicePools};

use super::Fallback;
use crate::{
    call_graph::GraphNode,
    cost_model::{ClassWork, PoolFit, WorkFit},
    facts::{ServiceFacts, TopologyFacts},
};

/// A fit whose standard error is above this part of its prediction is not planned with.
const MAX_ERROR: f64 = 0.5;
/// Fits that no report has changed for this long are not planned with.
const MAX_AGE_MS: u64 = 300_000;
/// Background work takes at most this part of a region's cores: the rest of a wrong estimate would be no capacity.
const MAX_BACKGROUND: f64 = 0.95;
/// A region's calls count as at most so many times as heavy as in the mean, or as light.
const MAX_FACTOR: f64 = 4.0;
/// Utilisation below which CPU says little of the work of calls.
const MIN_LOAD: f64 = 0.1;
/// The part by which calls take more CPU than their fit says because counts of calls and of CPU end at different times.
const NOISE: f64 = 0.25;
/// Standard deviations of the CPU of a second's calls that are no chance.
const NO_CHANCE: f64 = 3.0;
/// Calls per second below which there are none: decayed counts never become zero.
const LEAST_CALLS: f64 = 0.01;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;
/// A surcharge above a threshold is by this factor more than the way to the next ring.
const SURCHARGE: f64 = 1.05;

/// A service as the optimizer plans it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServiceModel {
    /// The classes with shares of their own, besides all other calls.
    pub(crate) classes: Vec<Label>,
    /// Cores by region, in cores of the mean region.
    pub(crate) capacity: BTreeMap<Region, f64>,
    /// Milliseconds for each second of CPU on idle servers.
    pub(super) sensitivity: f64,
    /// CPU of a call in seconds, and milliseconds that do not depend on load, by class.
    pub(super) classes_cost: Vec<ClassCost>,
    /// The greater relative error of both fits.
    pub(super) error: f64,
    /// When the older of both fits was changed last.
    pub(super) at_ms: u64,
    /// Milliseconds by which calls take longer than their cost says, by region, then class as in `classes_cost`.
    pub(super) corrections: BTreeMap<Region, Vec<f64>>,
    /// Thresholds that the policy writes.
    kinks: Vec<(Ring, f64)>,
}

/// What a call of one class costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ClassCost {
    pub(super) work: f64,
    pub(crate) base_ms: f64,
}

/// What is known of one service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) facts: &'a ServiceFacts,
    /// The nodes of the graph that are its calls.
    pub(super) nodes: &'a [GraphNode],
    /// The fits of its pools.
    pub(super) fits: &'a [PoolFit],
}

/// Why a service is not the optimizer's, whatever is measured of it.
pub(super) fn check_settings(facts: &ServiceFacts, topology: &TopologyFacts) -> Result<(), Fallback> {
    let refused = |reason, text: String| Err(Fallback::new(reason, text));
    if facts.traffic.mode == TrafficMode::Hold {
        return refused("held", "the policy holds the tables".to_owned());
    }
    if facts.local_only {
        return refused("local_only", "the policy keeps calls in their region (localOnly)".to_owned());
    }
    if facts.kind == ServiceKind::Sharded {
        return refused("sharded", "the shard of a call says which regions can serve it".to_owned());
    }
    let is_leaving = |region: &&Region| {
        let keep = topology.keep(region);
        keep > 0.0 && keep < 1.0
    };
    let serving = facts.endpoints.keys().filter(|region| facts.serving_in(region) > 0);
    match serving.clone().find(is_leaving) {
        Some(region) => refused("drain", format!("region {region} is drained, or comes back")),
        None if serving.clone().all(|region| topology.keep(region) <= 0.0) => {
            refused("no_capacity", "no region has serving endpoints".to_owned())
        }
        None => Ok(()),
    }
}

impl ServiceModel {
    /// The model of a service.
    ///
    /// # Errors
    /// Why there is none: calls or fits are missing, or the fits are poor or old.
    pub(super) fn new(known: Known<'_>, topology: &TopologyFacts, now_ms: u64) -> Result<Self, Fallback> {
        let Known { facts, nodes, fits } = known;
        if nodes.iter().flat_map(|node| node.served.values()).sum::<f64>() < LEAST_CALLS {
            let text = "no server reports calls that it processed; servers do that with the library, behind 'proxy --inbound', and \
                        behind 'register' that starts the program and forwards its requests: not with --tcp, and in a mesh without a \
                        trust domain only with --listen or --program";
            return Err(Fallback::new("no_calls", text));
        }
        let weights = Weights(nodes);
        let works = weights.works(fits).ok_or_else(no_work)?;
        let latency = weights.latency(fits).ok_or_else(no_latency)?;
        let (error, at_ms) = quality(fits);
        if error > MAX_ERROR {
            let text = format!("the model is off by {:.0} % of what it predicts", error * 100.0);
            return Err(Fallback::new("poor_fit", text));
        }
        if now_ms.saturating_sub(at_ms) > MAX_AGE_MS {
            let text = format!("no report has renewed the model for {} minutes", MAX_AGE_MS / 60_000);
            return Err(Fallback::new("old_fit", text));
        }
        let classes = facts.traffic.classes.clone();
        let cost = |class: Option<&Label>| ClassCost {
            work: weights.mean(class, &classes, &works),
            base_ms: weights.mean(class, &classes, &latency.bases) / MILLI,
        };
        let classes_cost = std::iter::once(None).chain(classes.iter().map(Some)).map(cost).collect();
        let ring = |ring: &fairmesh_model::LoadRing| (ring.ring, f64::from(ring.load.millionths()) / 1e6);
        Ok(Self {
            capacity: capacities(known, topology, (&weights, &works))?,
            sensitivity: latency.sensitivity / MILLI,
            classes_cost,
            error,
            at_ms,
            corrections: BTreeMap::new(),
            kinks: facts.traffic.rings.iter().map(ring).collect(),
            classes,
        })
    }

    /// The model while no report says what has changed: its capacity in regions that still serve. `None` once it is too old.
    pub(super) fn held(mut self, serving: &[Region], now_ms: u64) -> Option<Self> {
        self.capacity.retain(|region, _| serving.contains(region));
        let is_fresh = now_ms.saturating_sub(self.at_ms) <= MAX_AGE_MS;
        (is_fresh && self.placed().next().is_some()).then_some(self)
    }

    /// What a call of a class costs; of all other calls without one.
    pub(crate) fn cost(&self, class: Option<&Label>) -> ClassCost {
        let at = class.and_then(|class| self.classes.iter().position(|one| one == class));
        self.classes_cost.get(at.map_or(0, |at| at + 1)).copied().unwrap_or_default()
    }

    /// The class whose row in tables a call of this class has.
    pub(crate) fn row_of<'a>(&self, class: Option<&'a Label>) -> Option<&'a Label> {
        class.filter(|class| self.classes.contains(class))
    }

    /// What a call takes at a utilisation, in milliseconds, before corrections.
    pub(crate) fn predict_ms(&self, class: Option<&Label>, utilisation: f64) -> f64 {
        let cost = self.cost(class);
        cost.base_ms + self.sensitivity * cost.work / (1.0 - utilisation)
    }

    /// Corrects calls in a region by these milliseconds, by class. A call takes its CPU at least.
    pub(crate) fn correct(&mut self, region: &Region, by_class: Vec<f64>) {
        let least = |(by, cost): (f64, &ClassCost)| by.max(-cost.base_ms);
        let row = by_class.into_iter().zip(&self.classes_cost).map(least).collect();
        self.corrections.insert(region.clone(), row);
    }

    /// Corrects calls as another model of the service does. A class that has no row of its own there is one of all other calls.
    pub(super) fn adopt_corrections(&mut self, other: &Self) {
        for region in other.corrections.keys() {
            let classes = std::iter::once(None).chain(self.classes.iter().map(Some));
            let row = classes.map(|class| other.correction(class, region)).collect();
            self.correct(region, row);
        }
    }

    /// What one more call costs in a region at this utilisation, in milliseconds: its own time, and that of the calls that it slows down.
    pub(crate) fn marginal_ms(&self, class: Option<&Label>, region: &Region, load: f64) -> f64 {
        let cost = self.cost(class);
        let left = (1.0 - load).max(0.01);
        cost.base_ms + self.correction(class, region) + self.sensitivity * cost.work / (left * left)
    }

    /// Calls per second that take this part of a region's capacity.
    pub(crate) fn room(&self, class: Option<&Label>, region: &Region, part: f64) -> f64 {
        let capacity = self.capacity.get(region).copied().unwrap_or_default();
        let work = self.cost(class).work;
        if work > 0.0 { (part * capacity / work).max(0.0) } else { 0.0 }
    }

    /// The correction of a class in a region.
    pub(super) fn correction(&self, class: Option<&Label>, region: &Region) -> f64 {
        let at = class.and_then(|class| self.classes.iter().position(|one| one == class));
        let row = self.corrections.get(region).and_then(|row| row.get(at.map_or(0, |at| at + 1)));
        row.copied().unwrap_or_default()
    }

    /// The regions with capacity.
    pub(super) fn placed(&self) -> impl Iterator<Item = &Region> {
        self.capacity.iter().filter(|(_, capacity)| **capacity > 0.0).map(|(region, _)| region)
    }

    /// The pools of the service over these regions. `ceiling` bounds the thresholds.
    pub(super) fn pools(&self, regions: &[Region], trips: &RoundTrips, ceiling: f64) -> ServicePools {
        let capacity = |region: &Region| self.capacity.get(region).copied().unwrap_or_default();
        ServicePools {
            capacity: regions.iter().map(capacity).collect(),
            sensitivity: self.sensitivity,
            kinks: self.kinks(regions, trips, ceiling),
            error: self.error,
        }
    }

    /// The thresholds of rings as surcharges: above one, work costs as much more as the way to the next ring does.
    fn kinks(&self, regions: &[Region], trips: &RoundTrips, ceiling: f64) -> Vec<Kink> {
        let works = self.classes_cost.iter().map(|class| class.work).filter(|work| *work > 0.0);
        let work = works.fold(f64::INFINITY, f64::min);
        let farthest = regions.iter().flat_map(|from| regions.iter().map(move |to| (from, to)));
        let farthest = farthest.filter_map(|(from, to)| trips.get(from, to)).max().unwrap_or_default();
        let distance = |ring: Ring| match ring {
            Ring::Region => 0.0,
            Ring::Within(bound) => bound.min(farthest).as_secs_f64() * MILLI,
            Ring::Neighbours | Ring::Continent | Ring::Any => farthest.as_secs_f64() * MILLI,
        };
        let kink = |pair: &[(Ring, f64)]| {
            let way = (distance(pair[1].0) - distance(pair[0].0)).max(0.0);
            Kink { load: pair[0].1, surcharge: SURCHARGE * way / work }
        };
        let kinks = self.kinks.windows(2).map(kink);
        kinks.filter(|kink| kink.load < ceiling && kink.surcharge.is_finite()).collect()
    }
}

fn no_work() -> Fallback {
    Fallback::new("no_fit", "the CPU of its calls is not measured in any region yet")
}

fn no_latency() -> Fallback {
    let text = "its latency is not measured in any region yet, which takes calls at three different tenths of utilisation; servers \
                with the library measure it, those behind 'proxy --inbound' or 'register' do not";
    Fallback::new("no_fit", text)
}

/// The greatest error of the best fits, and when the older of the newest ones was changed.
fn quality(fits: &[PoolFit]) -> (f64, u64) {
    let least = |errors: &mut dyn Iterator<Item = f64>| errors.fold(f64::INFINITY, f64::min);
    let work = least(&mut fits.iter().filter_map(|fit| fit.work.as_ref()).map(|fit| fit.error));
    let latency = least(&mut fits.iter().filter_map(|fit| fit.latency.as_ref()).map(|fit| fit.error));
    let worked = fits.iter().filter_map(|fit| fit.work.as_ref()).map(|fit| fit.at_ms).max();
    let timed = fits.iter().filter_map(|fit| fit.latency.as_ref()).map(|fit| fit.changed_at_ms).max();
    (work.max(latency), worked.min(timed).unwrap_or_default())
}

/// Means over pools and classes, weighted by the calls that servers process.
struct Weights<'a>(&'a [GraphNode]);

/// Means of the fits of latency.
struct MeanLatency {
    /// Microseconds for each second of CPU.
    sensitivity: f64,
    /// Microseconds by class.
    bases: BTreeMap<Option<Label>, f64>,
}

impl Weights<'_> {
    /// Calls per second of a class in a region.
    fn calls(&self, class: &Option<Label>, region: &Region) -> f64 {
        let of_class = self.0.iter().filter(|node| node.node.class == *class);
        of_class.filter_map(|node| node.served.get(region)).sum()
    }

    /// CPU seconds by class over all regions with a fit.
    fn works(&self, fits: &[PoolFit]) -> Option<BTreeMap<Option<Label>, f64>> {
        let mut means = Means::default();
        for (fit, work) in fits.iter().filter_map(|fit| Some((fit, fit.work.as_ref()?))) {
            for (class, work) in &work.classes {
                means.add(class, work.seconds, self.calls(class, &fit.region));
            }
        }
        means.finish()
    }

    fn latency(&self, fits: &[PoolFit]) -> Option<MeanLatency> {
        let (mut slope, mut bases) = (Means::default(), Means::default());
        for (fit, latency) in fits.iter().filter_map(|fit| Some((fit, fit.latency.as_ref()?))) {
            for (class, base) in &latency.bases {
                let calls = self.calls(class, &fit.region);
                bases.add(class, *base, calls);
                slope.add(&None, latency.sensitivity, calls);
            }
        }
        let sensitivity = slope.finish()?.into_values().next()?;
        Some(MeanLatency { sensitivity, bases: bases.finish()? })
    }

    /// The mean of a class of the tables. That of all other calls has all classes that the policy does not list; a class that was not
    /// measured counts like the mean of all.
    fn mean(&self, class: Option<&Label>, listed: &[Label], values: &BTreeMap<Option<Label>, f64>) -> f64 {
        let is_of = |node: &CallNode| match (class, &node.class) {
            (Some(class), Some(own)) => class == own,
            (None, Some(own)) => !listed.contains(own),
            (None, None) => true,
            (Some(_), None) => false,
        };
        let mut means = (Means::default(), Means::default());
        for node in self.0 {
            if let Some(value) = values.get(&node.node.class) {
                let calls = node.served.values().sum();
                means.1.add(&None, *value, calls);
                if is_of(&node.node) {
                    means.0.add(&None, *value, calls);
                }
            }
        }
        let all = values.values().sum::<f64>() / values.len().max(1) as f64;
        let found = means.0.finish().or_else(|| means.1.finish());
        found.and_then(|mean| mean.into_values().next()).unwrap_or(all)
    }
}

/// Weighted means by class. Where nothing has weight, all values count alike.
#[derive(Default)]
struct Means(BTreeMap<Option<Label>, [f64; 4]>);

impl Means {
    fn add(&mut self, class: &Option<Label>, value: f64, weight: f64) {
        let sums = self.0.entry(class.clone()).or_default();
        for (sum, more) in sums.iter_mut().zip([value * weight, weight, value, 1.0]) {
            *sum += more;
        }
    }

    /// `None` without any value.
    fn finish(self) -> Option<BTreeMap<Option<Label>, f64>> {
        let mean = |[weighted, weight, sum, count]: [f64; 4]| match weight > 0.0 {
            true => weighted / weight,
            false => sum / count,
        };
        let means: BTreeMap<_, _> = self.0.into_iter().map(|(class, sums)| (class, mean(sums))).collect();
        (!means.is_empty()).then_some(means)
    }
}

/// Cores by region for calls of the mean work: a region where the same calls take more CPU has fewer of them.
fn capacities(
    Known { facts, fits, .. }: Known<'_>,
    topology: &TopologyFacts,
    (weights, works): (&Weights<'_>, &BTreeMap<Option<Label>, f64>),
) -> Result<BTreeMap<Region, f64>, Fallback> {
    let mut cores = BTreeMap::new();
    let (mut known, mut power) = (0.0, 0.0);
    for region in facts.endpoints.keys().filter(|region| facts.serving_in(region) > 0) {
        let fit = fits.iter().find(|fit| fit.region == *region).and_then(|fit| fit.work.as_ref());
        let measured = facts.reports.servers.get(region).filter(|servers| servers.measured > 0);
        let Some(servers) = measured.filter(|servers| servers.limit_millicores > 0) else { continue };
        let missing = f64::from(facts.serving_in(region)) / f64::from(servers.measured);
        let limit = servers.limit_millicores as f64 / MILLI * missing;
        let background = fit.map_or(0.0, |fit| fit.background).min(limit * MAX_BACKGROUND);
        let factor = fit.map_or(1.0, |fit| {
            let sum = |work: &dyn Fn(&Option<Label>) -> f64| -> f64 {
                fit.classes.keys().map(|class| weights.calls(class, region) * work(class)).sum()
            };
            let here = sum(&|class| fit.classes[class].seconds);
            let mean = sum(&|class| works.get(class).copied().unwrap_or_default());
            if here > 0.0 && mean > 0.0 { (here / mean).clamp(1.0 / MAX_FACTOR, MAX_FACTOR) } else { 1.0 }
        });
        let strain = fit.map_or(1.0, |fit| strain(servers, fit, |class| weights.calls(class, region)));
        let capacity = (limit - background) / (factor * strain);
        cores.insert(region.clone(), capacity);
        (known, power) = (known + capacity, power + facts.power_in(region));
    }
    if power <= 0.0 {
        let text = "no server reports its CPU and the limit of its CPU; 'register' measures programs that it starts: give it \
                    -- COMMAND";
        return Err(Fallback::new("no_capacity", text));
    }
    // Servers that have not reported yet are like the others.
    let capacity = |region: &Region| match topology.keep(region) > 0.0 {
        true => cores.get(region).copied().unwrap_or(known / power * facts.power_in(region)),
        false => 0.0,
    };
    let serving = facts.endpoints.keys().filter(|region| facts.serving_in(region) > 0);
    Ok(serving.map(|region| (region.clone(), capacity(region))).collect())
}

/// The CPU that the calls of a region take, as a multiple of what its fit says, from 1 to [`MAX_FACTOR`]. Fits follow
/// in minutes, and not at all while servers are full. Arriving calls are counted, because the calls that a full pool
/// processes seem to cost as much as ever. The factor is too high while a backlog is worked off, which keeps calls away
/// from a full pool.
fn strain(servers: &ServerRates, fit: &WorkFit, calls: impl Fn(&Option<Label>) -> f64) -> f64 {
    if servers.counting < servers.measured {
        return 1.0;
    }
    let mut sums = [0.0; 3];
    for (class, ClassWork { seconds: work, .. }) in &fit.classes {
        let rate = calls(class);
        sums.iter_mut().zip([rate, rate * work, rate * work * work]).for_each(|(sum, more)| *sum += more);
    }
    let [calls, work, squares] = sums;
    let received = servers.received.saturating_sub(servers.refused) as f64 / MILLI;
    let expected = if calls > 0.0 { received * work / calls } else { 0.0 };
    let used = (servers.cpu_millicores as f64 / MILLI - fit.background).max(0.0);
    if expected <= MIN_LOAD * servers.limit_millicores as f64 / MILLI {
        return 1.0;
    }
    // The relative deviation in a second, if the work of calls is distributed exponentially within their class.
    let deviation = (2.0 * squares * calls / (work * work) / received).sqrt();
    let possible = 1.0 + (NO_CHANCE * deviation).max(NOISE);
    if used > possible * expected { (used / expected).min(MAX_FACTOR) } else { 1.0 }
}

/// The fits of a service among those of all pools, which are in the order of names.
pub(super) fn fits_of<'a>(fits: &'a [PoolFit], service: &ServiceName) -> &'a [PoolFit] {
    let first = fits.partition_point(|fit| fit.service < *service);
    let count = fits[first..].partition_point(|fit| fit.service == *service);
    &fits[first..first + count]
}

/// The nodes of a service among those of a graph, which are in the order of names.
pub(super) fn nodes_of<'a>(nodes: &'a [GraphNode], service: &ServiceName) -> &'a [GraphNode] {
    let first = nodes.partition_point(|node| node.node.service < *service);
    let count = nodes[first..].partition_point(|node| node.node.service == *service);
    &nodes[first..first + count]
}
