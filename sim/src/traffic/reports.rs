use std::{collections::BTreeMap, time::Duration};

use fairmesh_model::{
    CallPath, CallRates, LoadMetric, MetricSum, ServerRates, TrafficReport, UTILISATION_LEVELS,
};
use fairmesh_signals::MeanUtilisation;

use super::Names;
use crate::{registry::Registry, scenario::RegionReportFault, server::Server};

/// Factor from one to thousandths.
const MILLI: f64 = 1_000.0;
/// Reported load of a fully loaded server.
const FULL_SCALE: u32 = 100;
const METRIC: &str = "utilisation";

/// The load metric of servers. Unlike CPU, it can be any number, or none.
pub(crate) fn load_metric() -> LoadMetric {
    LoadMetric { name: METRIC.to_owned(), full_scale: FULL_SCALE }
}

/// Report of one region about one interval.
#[derive(Clone, Debug)]
pub(crate) struct RegionReport {
    /// End of the interval, in nanoseconds.
    pub(crate) at: u64,
    servers: Option<ServerSums>,
    /// Calls per second by class.
    offered: Vec<f64>,
    /// Attempts by class and destination.
    attempts: Vec<Vec<AttemptSums>>,
}

/// Attempts of one source, class and destination: counts, or rates per second.
#[derive(Clone, Copy, Debug, Default)]
struct AttemptSums {
    sent: f64,
    /// Attempts with a response, and the total time of responses in nanoseconds.
    answered: f64,
    time: f64,
}

/// Servers of one region.
#[derive(Clone, Copy, Debug, Default)]
struct ServerSums {
    count: u32,
    cores: f64,
    /// Mean utilisation.
    load: f64,
    /// Received calls per second.
    received: f64,
    /// Servers by utilisation, as in reports.
    by_utilisation: [u32; UTILISATION_LEVELS],
}

/// Counters of the current interval, by region.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    regions: usize,
    classes: usize,
    /// Offered calls by source and class, and the ones that a table dropped.
    offered: Vec<u64>,
    dropped: Vec<u64>,
    /// Attempts by source, class and destination.
    attempts: Vec<AttemptSums>,
    /// State of each server at the start of the interval: busy time and requests.
    starts: Vec<(f64, u64)>,
    /// Utilisation of each server, as it reports it.
    utilisations: Vec<MeanUtilisation>,
    /// Start of the interval.
    began: u64,
}

/// Sums of an interval, per second.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Utilisation by region; 0 if no server runs.
    pub(crate) loads: Vec<f64>,
    /// The share of attempts that stayed in their region, by source; 1 without attempts.
    pub(crate) local: Vec<f64>,
    /// The share of local attempts over all sources.
    pub(crate) all_local: f64,
    /// Dropped share by class.
    pub(crate) dropped: Vec<f64>,
    pub(crate) reports: Vec<RegionReport>,
}

impl Counters {
    pub(crate) fn new(regions: usize, classes: usize) -> Self {
        let rows = regions * classes;
        Self {
            regions,
            classes,
            offered: vec![0; rows],
            dropped: vec![0; rows],
            attempts: vec![AttemptSums::default(); rows * regions],
            starts: Vec::new(),
            utilisations: Vec::new(),
            began: 0,
        }
    }

    pub(crate) fn record_offered(&mut self, source: u16, class: usize) {
        self.offered[usize::from(source) * self.classes + class] += 1;
    }

    pub(crate) fn record_dropped(&mut self, source: u16, class: usize) {
        self.dropped[usize::from(source) * self.classes + class] += 1;
    }

    pub(crate) fn record_sent(&mut self, source: u16, class: usize, to: u16) {
        self.attempts_to(source, class, to).sent += 1.0;
    }

    /// Records a response that took `time` nanoseconds.
    pub(crate) fn record_answered(&mut self, source: u16, class: usize, (to, time): (u16, u64)) {
        let sums = self.attempts_to(source, class, to);
        sums.answered += 1.0;
        sums.time += time as f64;
    }

    fn attempts_to(&mut self, source: u16, class: usize, to: u16) -> &mut AttemptSums {
        let row = usize::from(source) * self.classes + class;
        &mut self.attempts[row * self.regions + usize::from(to)]
    }

    /// Starts an interval.
    pub(crate) fn begin(&mut self, servers: &mut [Server], now: u64) {
        let starts = servers.iter_mut().map(|server| (server.busy(now), server.received)).collect();
        let mut utilisations = std::mem::take(&mut self.utilisations);
        utilisations.resize(servers.len(), MeanUtilisation::default());
        *self = Self { starts, utilisations, began: now, ..Self::new(self.regions, self.classes) };
    }

    /// The sums of the interval that ends now.
    pub(crate) fn end(&mut self, servers: &mut [Server], registry: &Registry, now: u64) -> Interval {
        let seconds = (now - self.began) as f64 / 1e9;
        let servers = self.servers(servers, registry, now);
        let rate = |count: &u64| *count as f64 / seconds;
        let per_second = |sums: &AttemptSums| AttemptSums {
            sent: sums.sent / seconds,
            answered: sums.answered / seconds,
            time: sums.time / seconds,
        };
        let report = |(source, servers): (usize, &Option<ServerSums>)| RegionReport {
            at: now,
            servers: *servers,
            offered: self.offered[source * self.classes..][..self.classes].iter().map(rate).collect(),
            attempts: self.rows(source).map(|row| row.iter().map(per_second).collect()).collect(),
        };
        Interval {
            loads: servers.iter().map(|sums| sums.map_or(0.0, |sums| sums.load)).collect(),
            local: (0..self.regions).map(|source| self.local([source])).collect(),
            all_local: self.local(0..self.regions),
            dropped: (0..self.classes).map(|class| self.dropped_share(class)).collect(),
            reports: servers.iter().enumerate().map(report).collect(),
        }
    }

    /// Sums of the servers in each region; `None` if none runs.
    fn servers(&mut self, servers: &mut [Server], registry: &Registry, now: u64) -> Vec<Option<ServerSums>> {
        let elapsed = now - self.began;
        let seconds = elapsed as f64 / 1e9;
        let mut all = vec![ServerSums::default(); self.regions];
        let known = self.starts.iter().zip(&mut self.utilisations);
        for (id, (server, (start, utilisation))) in servers.iter_mut().zip(known).enumerate() {
            if server.up && registry.serves(id as u32) {
                let sums = &mut all[usize::from(server.region)];
                let busy = server.busy(now) - start.0;
                sums.cores += server.cores;
                sums.count += 1;
                sums.load += busy;
                sums.received += (server.received - start.1) as f64 / seconds;
                let level = utilisation.observe(busy / (server.cores * elapsed as f64), elapsed / 1_000_000);
                sums.by_utilisation[level] += 1;
            }
        }
        let mean = |sums: ServerSums| ServerSums { load: sums.load / (sums.cores * elapsed as f64), ..sums };
        all.into_iter().map(|sums| (sums.cores > 0.0).then(|| mean(sums))).collect()
    }

    /// Attempts of a source by destination, one row per class.
    fn rows(&self, source: usize) -> impl Iterator<Item = &[AttemptSums]> {
        let rows = self.attempts.chunks(self.regions);
        rows.skip(source * self.classes).take(self.classes)
    }

    fn local(&self, sources: impl IntoIterator<Item = usize>) -> f64 {
        let (mut local, mut all) = (0.0, 0.0);
        for source in sources {
            for row in self.rows(source) {
                local += row[source].sent;
                all += row.iter().map(|sums| sums.sent).sum::<f64>();
            }
        }
        if all > 0.0 { local / all } else { 1.0 }
    }

    fn dropped_share(&self, class: usize) -> f64 {
        let of = |counts: &[u64]| counts.iter().skip(class).step_by(self.classes).sum::<u64>() as f64;
        of(&self.dropped) / of(&self.offered).max(1.0)
    }
}

impl RegionReport {
    /// The report in the form that the control plane gets, with the age of its data.
    pub(crate) fn message(
        &self,
        source: usize,
        names: &Names,
        (interval, age): (Duration, Duration),
    ) -> TrafficReport {
        let place = &names.places[source];
        let rates = |offered: f64, sums: AttemptSums| {
            let [offered, attempts, answered] =
                [offered, sums.sent, sums.answered].map(|rate| (rate * MILLI) as u64);
            let time_us = (sums.time / 1e3) as u64;
            let mut rates = CallRates { offered, attempts, answered, time_us, ..CallRates::default() };
            rates.grow_older(age);
            rates
        };
        let offered = self.offered.iter().enumerate();
        let offered = offered
            .map(|(class, rate)| (names.path(source, class, None), rates(*rate, AttemptSums::default())));
        let sent = self.attempts.iter().enumerate().flat_map(|(class, row)| {
            let row = row.iter().enumerate();
            row.map(move |(to, sums)| (names.path(source, class, Some(to)), rates(0.0, *sums)))
        });
        let called = |(_, rates): &(CallPath, CallRates)| rates.offered + rates.attempts + rates.answered > 0;
        let servers = self.servers.map(|sums| {
            let mut rates = sums.rates();
            rates.grow_older(age);
            ((names.service.clone(), place.region.clone()), rates)
        });
        TrafficReport {
            reporter: source as u64,
            interval,
            regions: [place.region.clone()].into(),
            calls: offered.chain(sent).filter(called).collect(),
            servers: servers.into_iter().collect(),
            ..TrafficReport::default()
        }
    }

    /// Injects a fault. Returns false if the report is lost.
    pub(crate) fn damage(&mut self, fault: RegionReportFault) -> bool {
        let Some(servers) = &mut self.servers else { return fault != RegionReportFault::Missing };
        match fault {
            RegionReportFault::Missing => return false,
            RegionReportFault::Late => {}
            RegionReportFault::Tenfold => servers.load *= 10.0,
            RegionReportFault::Tenth => servers.load /= 10.0,
            RegionReportFault::Half => servers.load /= 2.0,
            RegionReportFault::Zero => servers.load = 0.0,
            RegionReportFault::Nan => servers.load = f64::NAN,
            RegionReportFault::Disagreeing => servers.received *= 10.0,
        }
        true
    }
}

impl ServerSums {
    fn rates(self) -> ServerRates {
        let sum = self.load * f64::from(self.count) * f64::from(FULL_SCALE);
        ServerRates {
            servers: self.count,
            measured: self.count,
            cpu_millicores: (self.load * self.cores * MILLI) as u64,
            limit_millicores: (self.cores * MILLI) as u64,
            counting: self.count,
            received: (self.received * MILLI) as u64,
            by_utilisation: self.by_utilisation,
            metrics: BTreeMap::from([(METRIC.to_owned(), MetricSum { sum, servers: self.count })]),
            ..ServerRates::default()
        }
    }
}
