use fairmesh_te::{CallerReport, ServerReport};

use crate::{registry::Registry, scenario::RegionReportFault, server::Server};

/// What one region reports of one interval.
#[derive(Clone, Debug)]
pub(crate) struct RegionReport {
    pub(crate) servers: Option<ServerReport>,
    pub(crate) callers: Option<CallerReport>,
}

/// Counts of the present interval, by region.
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    regions: usize,
    classes: usize,
    /// Calls offered by source and class, and those of them that a table dropped.
    offered: Vec<u64>,
    dropped: Vec<u64>,
    /// Attempts by source and destination.
    sent: Vec<u64>,
    /// By server, at the start of the interval: busy time, requests.
    starts: Vec<(f64, u64)>,
    /// When the interval began.
    began: u64,
}

/// Sums of an interval, per second.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Utilisation by region; 0 where no server runs.
    pub(crate) loads: Vec<f64>,
    /// The share of attempts that stayed in their region, by source; 1 without attempts.
    pub(crate) local: Vec<f64>,
    /// The same over all sources.
    pub(crate) all_local: f64,
    /// The dropped share by class.
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
            sent: vec![0; regions * regions],
            starts: Vec::new(),
            began: 0,
        }
    }

    pub(crate) fn record_offered(&mut self, source: u16, class: usize) {
        self.offered[usize::from(source) * self.classes + class] += 1;
    }

    pub(crate) fn record_dropped(&mut self, source: u16, class: usize) {
        self.dropped[usize::from(source) * self.classes + class] += 1;
    }

    pub(crate) fn record_sent(&mut self, source: u16, to: u16) {
        self.sent[usize::from(source) * self.regions + usize::from(to)] += 1;
    }

    /// Begins an interval.
    pub(crate) fn begin(&mut self, servers: &mut [Server], now: u64) {
        let starts = servers.iter_mut().map(|server| (server.busy(now), server.received)).collect();
        *self = Self { starts, began: now, ..Self::new(self.regions, self.classes) };
    }

    /// The sums of the interval that ends now.
    pub(crate) fn end(&self, servers: &mut [Server], registry: &Registry, now: u64) -> Interval {
        let seconds = (now - self.began) as f64 / 1e9;
        let mut all = vec![(0.0, 0.0, 0_u64); self.regions];
        for (id, (server, start)) in servers.iter_mut().zip(&self.starts).enumerate() {
            if server.up && registry.serves(id as u32) {
                let (busy, cores, received) = &mut all[usize::from(server.region)];
                *busy += server.busy(now) - start.0;
                *cores += server.cores;
                *received += server.received - start.1;
            }
        }
        let at_ms = now / 1_000_000;
        let report = |(busy, cores, received): &(f64, f64, u64)| ServerReport {
            at_ms,
            load: busy / (cores * seconds * 1e9),
            received: *received as f64 / seconds,
        };
        let servers: Vec<Option<ServerReport>> =
            all.iter().map(|sums| (sums.1 > 0.0).then(|| report(sums))).collect();
        let rate = |count: &u64| *count as f64 / seconds;
        let callers = |source: usize| CallerReport {
            at_ms,
            offered: self.offered[source * self.classes..][..self.classes].iter().map(rate).collect(),
            sent: self.sent[source * self.regions..][..self.regions].iter().map(rate).collect(),
            pinned: 0.0,
        };
        let report = |(source, servers): (usize, &Option<ServerReport>)| RegionReport {
            servers: *servers,
            callers: Some(callers(source)),
        };
        Interval {
            loads: servers.iter().map(|report| report.map_or(0.0, |report| report.load)).collect(),
            local: (0..self.regions).map(|source| self.local([source])).collect(),
            all_local: self.local(0..self.regions),
            dropped: (0..self.classes).map(|class| self.dropped_share(class)).collect(),
            reports: servers.iter().enumerate().map(report).collect(),
        }
    }

    fn local(&self, sources: impl IntoIterator<Item = usize>) -> f64 {
        let (mut local, mut all) = (0, 0);
        for source in sources {
            let row = &self.sent[source * self.regions..][..self.regions];
            local += row[source];
            all += row.iter().sum::<u64>();
        }
        if all > 0 { local as f64 / all as f64 } else { 1.0 }
    }

    fn dropped_share(&self, class: usize) -> f64 {
        let of = |counts: &[u64]| counts.iter().skip(class).step_by(self.classes).sum::<u64>() as f64;
        of(&self.dropped) / of(&self.offered).max(1.0)
    }
}

/// Injects a fault.
pub(crate) fn damage(report: &mut RegionReport, fault: RegionReportFault) {
    if fault == RegionReportFault::Missing {
        *report = RegionReport { servers: None, callers: None };
        return;
    }
    let Some(servers) = &mut report.servers else { return };
    match fault {
        RegionReportFault::Missing | RegionReportFault::Late => {}
        RegionReportFault::Tenfold => servers.load *= 10.0,
        RegionReportFault::Tenth => servers.load /= 10.0,
        RegionReportFault::Zero => servers.load = 0.0,
        RegionReportFault::Nan => servers.load = f64::NAN,
        RegionReportFault::Disagreeing => servers.received *= 10.0,
    }
}
