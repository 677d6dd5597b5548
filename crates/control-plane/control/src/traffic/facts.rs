//! What a planning round of one service starts from, without anything of the process that collected it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{
    CallPath, CallRates, Endpoint, EndpointState, Hosts, Region, RegionDrain, RegionTable, Regions,
    RoundTrips, ServerRates, ServiceName, Traffic, TrafficReport, Zone,
};

use fairmesh_te::MAX_LOAD;

use super::lone_shards::LoneShards;

/// What a region that a topology declares as draining keeps: its own callers, and no others.
const KEEPS_OWN: f64 = 1.0 - 1e-6;
/// A declared metric up to this multiple of its full scale is that of an overloaded region; beyond, it is not believed.
const MAX_METRIC: f64 = 4.0;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// Facts of one service.
#[derive(Clone, Debug, Default)]
pub(super) struct ServiceFacts {
    /// The part of its policy that asks for a planner.
    pub(super) traffic: Traffic,
    /// Whether its calls may not leave their region.
    pub(super) local_only: bool,
    /// Whether its calls prefer the zone of their caller.
    pub(super) zone_first: bool,
    /// Its endpoints.
    pub(super) endpoints: BTreeMap<Region, RegionEndpoints>,
    /// Reports of callers and servers.
    pub(super) reports: ServiceReports,
    /// Its tables, by the region of the callers.
    pub(super) tables: BTreeMap<Region, StoredTable>,
    /// Its shards without a copy elsewhere, where a drain asks for them.
    pub(super) lone_shards: Arc<LoneShards>,
}

/// The endpoints of a service in one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RegionEndpoints {
    /// Number of those that serve.
    pub(super) serving: u32,
    /// Their power: weight times speed, 1 for an ordinary host.
    pub(super) power: f64,
    /// The same by zone; `None` is those without one.
    pub(super) zones: BTreeMap<Option<Zone>, f64>,
}

/// What callers of one zone send to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ZoneRates {
    /// Attempts per second.
    pub(super) attempts: f64,
    /// Bytes of responses per second.
    pub(super) bytes: f64,
}

/// A table as it stands in the routing information base.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredTable {
    pub(super) table: RegionTable,
    pub(super) revision: u64,
}

/// Regions and their distances.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TopologyFacts {
    pub(super) regions: Regions,
    pub(super) round_trips: RoundTrips,
    pub(super) hosts: Hosts,
    /// Drains of whole regions.
    pub(super) drains: BTreeMap<Region, StoredDrain>,
}

/// A drain as it stands in the routing information base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct StoredDrain {
    pub(super) drain: RegionDrain,
    pub(super) revision: u64,
}

impl TopologyFacts {
    /// The share of its own calls that a region may keep; below 1 it gets none of others.
    pub(super) fn keep(&self, region: &Region) -> f64 {
        let drains = self.regions.regions.get(region).is_some_and(|info| info.draining);
        let declared = if drains { KEEPS_OWN } else { 1.0 };
        let drained = self.drains.get(region).map(|stored| f64::from(stored.drain.keep.millionths()) / 1e6);
        drained.map_or(declared, |keep| keep.min(declared))
    }
}

/// The last reports on one service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServiceReports {
    /// Regions of which any process reports: callers there that are not named make no calls.
    pub(super) heard: BTreeSet<Region>,
    pub(super) calls: Vec<(CallPath, CallRates)>,
    pub(super) servers: BTreeMap<Region, ServerRates>,
    /// Whether this is not all: reports had no room for some of it.
    pub(super) is_incomplete: bool,
}

/// Calls per second of the callers of one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CallerRates {
    /// By class.
    pub(super) offered: Vec<f64>,
    /// Attempts by destination.
    pub(super) sent: BTreeMap<Region, f64>,
}

impl ServiceFacts {
    /// Adds endpoints up by region. Regions without a serving one are kept.
    pub(super) fn add_endpoint(&mut self, endpoint: &Endpoint, hosts: &Hosts) {
        let region = self.endpoints.entry(endpoint.location.region.clone()).or_default();
        if endpoint.state == EndpointState::Serving {
            region.serving += 1;
            let power = f64::from(hosts.power(endpoint)) / MILLI;
            region.power += power;
            *region.zones.entry(endpoint.location.zone.clone()).or_default() += power;
        }
    }

    /// The endpoints of a region.
    pub(super) fn endpoints_in(&self, region: &Region) -> RegionEndpoints {
        self.endpoints.get(region).cloned().unwrap_or_default()
    }

    /// The calls of callers in a region; `None` if nothing is heard of it.
    pub(super) fn callers_in(&self, region: &Region) -> Option<CallerRates> {
        self.reports.heard.contains(region).then(|| {
            let mut rates =
                CallerRates { offered: vec![0.0; self.traffic.classes.len() + 1], sent: BTreeMap::new() };
            let mut attempts = rates.offered.clone();
            for (path, calls) in self.reports.calls.iter().filter(|(path, _)| path.from == *region) {
                let class = path.class.as_ref();
                let class = class.and_then(|class| self.traffic.classes.iter().position(|c| c == class));
                let class = class.map_or(0, |at| at + 1);
                rates.offered[class] += calls.offered as f64 / MILLI;
                attempts[class] += calls.attempts as f64 / MILLI;
                if let Some(to) = &path.to {
                    *rates.sent.entry(to.clone()).or_default() += calls.attempts as f64 / MILLI;
                }
            }
            // Servers work on attempts, of which hedges and retries make more than one a call.
            for (offered, attempts) in rates.offered.iter_mut().zip(attempts) {
                *offered = offered.max(attempts);
            }
            rates
        })
    }

    /// How old the data of [`Self::callers_in`] is, on average; zero without calls, since reports
    /// that name a region without any are void soon.
    pub(super) fn age_of_callers(&self, region: &Region) -> Duration {
        let mut sum = CallRates::default();
        self.reports
            .calls
            .iter()
            .filter(|(path, _)| path.from == *region)
            .for_each(|(_, calls)| sum += *calls);
        sum.age()
    }

    /// How old the data of [`Self::servers_in`] is, on average.
    pub(super) fn age_of_servers(&self, region: &Region) -> Duration {
        self.reports.servers.get(region).map(ServerRates::age).unwrap_or_default()
    }

    /// Whether calls are made in a region that has serving endpoints for them.
    pub(super) fn has_local_calls(&self, region: &Region) -> bool {
        let mut calls = self.reports.calls.iter().filter(|(path, _)| path.from == *region);
        self.endpoints_in(region).serving > 0 && calls.any(|(_, rates)| rates.offered > 0)
    }

    /// Calls per second that callers in a region offer, by their zone. Each zone sends the same part of them to other regions.
    pub(super) fn zone_demand(&self, region: &Region) -> BTreeMap<Zone, f64> {
        let mut demand = BTreeMap::new();
        for (path, calls) in self.reports.calls.iter().filter(|(path, _)| path.from == *region) {
            if let Some(zone) = &path.from_zone {
                *demand.entry(zone.clone()).or_default() += calls.offered as f64 / MILLI;
            }
        }
        demand
    }

    /// What is sent between zones of a region.
    pub(super) fn zone_rates(&self, region: &Region) -> BTreeMap<(Zone, Zone), ZoneRates> {
        let mut rates = BTreeMap::<_, ZoneRates>::new();
        for (path, calls) in self.reports.calls.iter().filter(|(path, _)| path.from == *region) {
            if let (Some(from), Some(to)) = (&path.from_zone, &path.to_zone) {
                let sent = rates.entry((from.clone(), to.clone())).or_default();
                sent.attempts += calls.attempts as f64 / MILLI;
                sent.bytes += calls.bytes as f64;
            }
        }
        rates
    }

    /// The mean time until responses began, of calls from a region to another; `None` without any.
    pub(super) fn response_time(&self, from: &Region, to: &Region) -> Option<Duration> {
        let calls = self.reports.calls.iter().filter(|(path, _)| path.from == *from);
        mean_time(calls.filter(|(path, _)| path.to.as_ref() == Some(to)).map(|(_, rates)| rates))
    }

    /// What the mean time of calls from a region to another will be, as things are: as it is; or else the time of the servers
    /// there, or of all where those get no calls, with the distance. That servers respond more slowly under more load is
    /// not foretold. `None` where no call has a response, and of unknown distances.
    pub(super) fn expected_time(
        &self,
        from: &Region,
        to: &Region,
        round_trips: &RoundTrips,
    ) -> Option<Duration> {
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
    pub(super) fn bytes_per_call(&self, region: &Region) -> f64 {
        let calls = self.reports.calls.iter().filter(|(path, _)| path.from == *region);
        let (bytes, offered) = calls.fold((0, 0), |(bytes, offered): (u64, u64), (_, rates)| {
            (bytes.saturating_add(rates.bytes), offered.saturating_add(rates.offered))
        });
        if offered == 0 { 0.0 } else { bytes as f64 / (offered as f64 / MILLI) }
    }

    /// Utilisation of the servers of a region, and the calls per second that arrive there; `None` while fewer than half
    /// of them have reported.
    pub(super) fn servers_in(&self, region: &Region) -> Option<(f64, f64)> {
        let rates = self.reports.servers.get(region)?;
        let serving = self.endpoints_in(region).serving;
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

    fn sent_to(&self, region: &Region) -> f64 {
        let calls = self.reports.calls.iter().filter(|(path, _)| path.to.as_ref() == Some(region));
        // Not a sum, which is -0 of no calls.
        calls.fold(0.0, |sum, (_, rates)| sum + rates.attempts as f64 / MILLI)
    }
}

/// The round trip that calls between two regions take.
fn distance(round_trips: &RoundTrips, from: &Region, to: &Region) -> Option<Duration> {
    if from == to { Some(Duration::ZERO) } else { round_trips.get(from, to) }
}

/// The mean time until responses began, of calls with one.
pub(super) fn mean_time<'a>(calls: impl Iterator<Item = &'a CallRates>) -> Option<Duration> {
    let mut sum = CallRates::default();
    calls.for_each(|rates| sum += *rates);
    // Microseconds per second, over thousandths of calls per second.
    let micros = u128::from(sum.time_us) * 1_000 / u128::from(sum.answered.max(1));
    (sum.answered > 0).then(|| Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
}

impl ServiceReports {
    /// The part of a sum of reports that is of one service.
    pub(super) fn of(sum: &TrafficReport, service: &ServiceName) -> Self {
        let calls = sum.calls.iter().filter(|(path, _)| path.service == *service);
        let servers = sum.servers.iter().filter(|((name, _), _)| name == service);
        Self {
            heard: sum.regions.clone(),
            is_incomplete: sum.is_incomplete(service),
            calls: calls.map(|(path, rates)| (path.clone(), *rates)).collect(),
            servers: servers.map(|((_, region), rates)| (region.clone(), rates.clone())).collect(),
        }
    }
}
