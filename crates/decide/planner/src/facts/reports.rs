use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{CallPath, CallRates, Region, RoundTrips, ServerRates, UTILISATION_LEVELS, Zone};
use fairmesh_signals::ServiceSum;
use fairmesh_te::{MAX_LOAD, Spread};

use super::ServiceFacts;

/// A declared metric up to this multiple of its full scale is that of an overloaded region; beyond, it is not believed.
const MAX_METRIC: f64 = 4.0;
/// The percentile of a region's servers by which plans are made.
const NINE_TENTHS: f64 = 0.9;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// The last reports on one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceReports {
    /// When they were added up, in milliseconds of the clock of [`crate::Now`]: ages are of then.
    pub at_ms: u64,
    /// Regions of which any process reports: callers there that are not named make no calls.
    pub heard: BTreeSet<Region>,
    /// Calls, in the order of their paths.
    pub calls: Vec<(CallPath, CallRates)>,
    /// Servers, by their region.
    pub servers: BTreeMap<Region, ServerRates>,
    /// Whether this is not all: reports had no room for some of it.
    pub is_incomplete: bool,
}

/// Calls per second of the callers of one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CallerRates {
    /// By class.
    pub offered: Vec<f64>,
    /// Attempts by destination, in the order of names. No map: planners keep one of each region, with few entries.
    pub sent: Vec<(Region, f64)>,
}

impl CallerRates {
    /// Attempts to a region.
    pub fn sent_to(&self, region: &Region) -> f64 {
        let found = self.sent.binary_search_by(|(to, _)| to.cmp(region));
        found.map_or(0.0, |at| self.sent[at].1)
    }
}

/// What callers of one zone send to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ZoneRates {
    /// Attempts per second.
    pub attempts: f64,
    /// Bytes of responses per second.
    pub bytes: f64,
}

impl ServiceFacts {
    /// The calls of callers in a region; `None` if nothing is heard of it.
    pub fn callers_in(&self, region: &Region) -> Option<CallerRates> {
        self.reports.heard.contains(region).then(|| {
            let mut rates =
                CallerRates { offered: vec![0.0; self.traffic.classes.len() + 1], sent: Vec::new() };
            let mut attempts = rates.offered.clone();
            for (path, calls) in self.calls_from(region) {
                let class = path.class.as_ref();
                let class = class.and_then(|class| self.traffic.classes.iter().position(|c| c == class));
                let class = class.map_or(0, |at| at + 1);
                rates.offered[class] += calls.offered as f64 / MILLI;
                attempts[class] += calls.attempts as f64 / MILLI;
                if let Some(to) = &path.to {
                    let attempts = calls.attempts as f64 / MILLI;
                    // Calls to a region follow one another.
                    match rates.sent.last_mut() {
                        Some((last, sent)) if last == to => *sent += attempts,
                        _ => rates.sent.push((to.clone(), attempts)),
                    }
                }
            }
            // Servers work on attempts, of which hedges and retries make more than one a call.
            for (offered, attempts) in rates.offered.iter_mut().zip(attempts) {
                *offered = offered.max(attempts);
            }
            rates
        })
    }

    /// Calls of callers in a region. The order of paths has them beside one another.
    fn calls_from(&self, region: &Region) -> &[(CallPath, CallRates)] {
        let calls = &self.reports.calls;
        let first = calls.partition_point(|(path, _)| path.from < *region);
        let count = calls[first..].partition_point(|(path, _)| path.from == *region);
        &calls[first..first + count]
    }

    /// How old the data of [`Self::callers_in`] is, on average; zero without calls, since reports
    /// that name a region without any are void soon.
    pub fn age_of_callers(&self, region: &Region) -> Duration {
        let mut sum = CallRates::default();
        self.calls_from(region).iter().for_each(|(_, calls)| sum += *calls);
        sum.age()
    }

    /// How old the data of [`Self::servers_in`] is, on average.
    pub fn age_of_servers(&self, region: &Region) -> Duration {
        self.reports.servers.get(region).map(ServerRates::age).unwrap_or_default()
    }

    /// Whether calls are made in a region that has serving endpoints for them.
    pub fn has_local_calls(&self, region: &Region) -> bool {
        self.serving_in(region) > 0 && self.calls_from(region).iter().any(|(_, rates)| rates.offered > 0)
    }

    /// Calls per second that callers in a region offer, by their zone. Each zone sends the same part of them to other regions.
    pub fn zone_demand(&self, region: &Region) -> BTreeMap<Zone, f64> {
        let mut demand = BTreeMap::new();
        for (path, calls) in self.calls_from(region) {
            if let Some(zone) = &path.from_zone {
                *demand.entry(zone.clone()).or_default() += calls.offered as f64 / MILLI;
            }
        }
        demand
    }

    /// What is sent between zones of a region.
    pub fn zone_rates(&self, region: &Region) -> BTreeMap<(Zone, Zone), ZoneRates> {
        let mut rates = BTreeMap::<_, ZoneRates>::new();
        for (path, calls) in self.calls_from(region) {
            if let (Some(from), Some(to)) = (&path.from_zone, &path.to_zone) {
                let sent = rates.entry((from.clone(), to.clone())).or_default();
                sent.attempts += calls.attempts as f64 / MILLI;
                sent.bytes += calls.bytes as f64;
            }
        }
        rates
    }

    /// The mean time until responses began, of calls from a region to another; `None` without any.
    pub fn response_time(&self, from: &Region, to: &Region) -> Option<Duration> {
        let calls = self.calls_from(from).iter().filter(|(path, _)| path.to.as_ref() == Some(to));
        mean_time(calls.map(|(_, rates)| rates))
    }

    /// What the mean time of calls from a region to another will be, as things are: as it is; or else the time of the servers
    /// there, or of all where those get no calls, with the distance. That servers respond more slowly under more load is
    /// not foretold. `None` where no call has a response, and of unknown distances.
    pub fn expected_time(&self, from: &Region, to: &Region, round_trips: &RoundTrips) -> Option<Duration> {
        self.response_time(from, to).or_else(|| {
            let servers = self.time_of_servers(Some(to), round_trips);
            let servers = servers.or_else(|| self.time_of_servers(None, round_trips))?;
            Some(servers + distance(round_trips, from, to)?)
        })
    }

    /// The mean time of the servers of a region, or of all, without the distance of their callers.
    fn time_of_servers(&self, of: Option<&Region>, round_trips: &RoundTrips) -> Option<Duration> {
        let (mut sum, mut answered) = (0.0, 0.0);
        for (path, rates) in &self.reports.calls {
            let Some(to) = path.to.as_ref().filter(|to| of.is_none_or(|of| of == *to)) else { continue };
            let times = mean_time([rates].into_iter()).zip(distance(round_trips, &path.from, to));
            if let Some((time, away)) = times {
                sum += time.saturating_sub(away).as_secs_f64() * rates.answered as f64;
                answered += rates.answered as f64;
            }
        }
        (answered > 0.0).then(|| Duration::from_secs_f64(sum / answered))
    }

    /// Bytes per call of callers in a region.
    pub fn bytes_per_call(&self, region: &Region) -> f64 {
        let calls = self.calls_from(region).iter();
        let (bytes, offered) = calls.fold((0, 0), |(bytes, offered): (u64, u64), (_, rates)| {
            (bytes.saturating_add(rates.bytes), offered.saturating_add(rates.offered))
        });
        if offered == 0 { 0.0 } else { bytes as f64 / (offered as f64 / MILLI) }
    }

    /// Utilisation of the servers of a region, and the calls per second that arrive there; `None` while fewer than half
    /// of them have reported.
    pub fn servers_in(&self, region: &Region) -> Option<(f64, f64)> {
        let rates = self.reports.servers.get(region)?;
        let serving = self.serving_in(region);
        let load = match &self.traffic.load {
            // A few of many servers say little of the others.
            None if rates.limit_millicores == 0 || rates.measured.saturating_mul(2) < serving => return None,
            None => rates.cpu_millicores as f64 / rates.limit_millicores as f64,
            Some(metric) => {
                let sum = rates.metrics.get(&metric.name)?;
                if sum.servers == 0 || sum.servers.saturating_mul(2) < serving {
                    return None;
                }
                let load = sum.sum / (f64::from(sum.servers) * f64::from(metric.full_scale));
                // A queue has no upper bound, and is longest where a plan is needed most.
                if load <= MAX_METRIC { load.min(MAX_LOAD) } else { load }
            }
        };
        // The others are taken for the same. Those that do not count get what their callers say they send.
        let missing = |reported: u32| (f64::from(serving) / f64::from(reported.max(1))).max(1.0);
        let received = match rates.counting {
            0 => self.sent_to(region),
            counting => rates.received as f64 / MILLI * missing(counting),
        };
        (rates.servers.saturating_mul(2) >= serving).then_some((load, received))
    }

    /// How unevenly the servers of a region are loaded; `None` if callers keep connections to all of them, or fewer than half of
    /// them report their CPU. Servers report the spread of no other measure of load.
    pub fn spread_in(&self, region: &Region) -> Option<Spread> {
        if self.traffic.load.is_some() {
            return None;
        }
        self.partial_subset(region)?;
        let rates = self.reports.servers.get(region)?;
        let reporting: u32 = rates.by_utilisation.iter().fold(0, |sum, count| sum.saturating_add(*count));
        let is_known = reporting > 0 && reporting.saturating_mul(2) >= self.serving_in(region);
        is_known.then(|| spread(&rates.by_utilisation, f64::from(reporting)))
    }

    fn sent_to(&self, region: &Region) -> f64 {
        // Not a sum, which is -0 of no calls.
        self.calls_to(region).fold(0.0, |sum, rates| sum + rates.attempts as f64 / MILLI)
    }

    /// Attempts per second to a region that ended, answered or shed.
    pub fn answered_in(&self, region: &Region) -> f64 {
        self.calls_to(region).fold(0.0, |sum, rates| sum + (rates.answered + rates.shed) as f64 / MILLI)
    }

    /// The share of calls to a region that its servers shed or that got no response, whichever is greater. Calls end later than they
    /// begin, so that it may be less than 0.
    pub fn failing_in(&self, region: &Region) -> f64 {
        // Callers of an old release do not count responses; of others, no response at all means that all calls fail.
        let by_source = self.reports.calls.chunk_by(|(path, _), (next, _)| path.from == next.from);
        let counting = by_source.filter(|calls| calls.iter().any(|(_, rates)| rates.answered > 0));
        let mut sum = CallRates::default();
        for (path, rates) in counting.flatten() {
            if path.to.as_ref() == Some(region) {
                sum += *rates;
            }
        }
        let servers = self.reports.servers.get(region).filter(|servers| servers.received > 0);
        let shed = servers.map_or(0.0, |servers| servers.refused as f64 / servers.received as f64);
        let lost = match sum.attempts {
            0 => 0.0,
            _ => 1.0 - sum.answered as f64 / sum.attempts as f64,
        };
        if shed > 0.0 { lost.max(shed.min(1.0)) } else { lost.max(-1.0) }
    }

    fn calls_to(&self, region: &Region) -> impl Iterator<Item = &CallRates> {
        let calls = self.reports.calls.iter().filter(|(path, _)| path.to.as_ref() == Some(region));
        calls.map(|(_, rates)| rates)
    }
}

/// Mean and 90th percentile of servers by utilisation, which are taken for evenly spread within a level.
fn spread(by_utilisation: &[u32; UTILISATION_LEVELS], servers: f64) -> Spread {
    let width = 1.0 / UTILISATION_LEVELS as f64;
    let (mut below, mut spread) = (0.0, Spread::default());
    for (level, count) in by_utilisation.iter().enumerate().filter(|(_, count)| **count > 0) {
        let (from, count) = (level as f64 * width, f64::from(*count));
        spread.mean += (from + width / 2.0) * count / servers;
        let part = (NINE_TENTHS * servers - below) / count;
        if (0.0..=1.0).contains(&part) {
            spread.p90 = from + part * width;
        }
        below += count;
    }
    spread
}

/// The round trip that calls between two regions take.
fn distance(round_trips: &RoundTrips, from: &Region, to: &Region) -> Option<Duration> {
    if from == to { Some(Duration::ZERO) } else { round_trips.get(from, to) }
}

/// The mean time until responses began, of calls with one.
fn mean_time<'a>(calls: impl Iterator<Item = &'a CallRates>) -> Option<Duration> {
    let mut sum = CallRates::default();
    calls.for_each(|rates| sum += *rates);
    // Microseconds per second, over thousandths of calls per second.
    let micros = u128::from(sum.time_us) * 1_000 / u128::from(sum.answered.max(1));
    (sum.answered > 0).then(|| Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

impl ServiceReports {
    /// A sum of reports, added up at `at_ms`, of which any named these regions.
    pub fn new(sum: ServiceSum, heard: BTreeSet<Region>, at_ms: u64) -> Self {
        let ServiceSum { calls, servers, is_incomplete } = sum;
        Self { at_ms, heard, calls, servers, is_incomplete }
    }

    /// Whether these are the reports of before, and only older.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        let older = Duration::from_millis(self.at_ms.saturating_sub(before.at_ms));
        let calls = before.calls.iter().zip(&self.calls).all(|((old_path, old), (path, now))| {
            let mut old = *old;
            old.grow_older(older);
            old_path == path && old == *now
        });
        let servers = before.servers.iter().zip(&self.servers).all(|((old_region, old), (region, now))| {
            let mut old = old.clone();
            old.grow_older(older);
            old_region == region && old == *now
        });
        (self.calls.len(), self.servers.len()) == (before.calls.len(), before.servers.len())
            && (self.is_incomplete, &self.heard) == (before.is_incomplete, &before.heard)
            && calls
            && servers
    }
}
