//! Reports of regions about an interval, as agents' sums reach a control plane, including the scenario's faults.

use std::time::Duration;

use fairmesh_model::{
    CallNode, CallPath, CallRates, Label, Region, ServedPath, ServedRates, ServerRates, ServiceName,
    TrafficReport,
};

use super::{
    call_tree::CallTrees,
    counters::{CallCounts, Interval, PoolCounts},
};
use crate::{
    application::Scenario,
    engine::Placement,
    scenario::{RegionFault, RegionReportFault, SimTime},
};

/// Factor from one to thousandths.
const MILLI: f64 = 1_000.0;
/// Nanoseconds per microsecond.
const MICRO: f64 = 1_000.0;
/// Factor of reports that exaggerate or understate.
const LIE: u64 = 10;

/// Names of the parts of an application in the mesh.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(super) services: Vec<ServiceName>,
    pub(super) regions: Vec<Region>,
    /// Nodes by operation.
    pub(super) nodes: Vec<CallNode>,
    /// By edge: the called operation and the calling one.
    edges: Vec<(u16, Option<u16>)>,
    bytes: Vec<(f64, f64)>,
}

/// Reports in transit to the planner.
#[derive(Debug)]
pub(super) struct PendingReports {
    delay: u64,
    faults: Vec<RegionFault>,
    on_the_way: Vec<Arrival>,
}

#[derive(Debug)]
struct Arrival {
    at: u64,
    sent: u64,
    report: TrafficReport,
}

impl Names {
    pub(super) fn new(place: &Placement, trees: &CallTrees) -> Self {
        Self {
            services: place.services.clone(),
            regions: place.regions.clone(),
            nodes: trees.operations.iter().map(|operation| operation.node.clone()).collect(),
            edges: trees.edges.iter().map(|edge| (edge.operation, edge.parent)).collect(),
            bytes: trees.edges.iter().map(|edge| (edge.request_bytes, edge.response_bytes)).collect(),
        }
    }

    pub(super) fn position(&self, service: &ServiceName) -> Option<usize> {
        self.services.iter().position(|name| name == service)
    }

    /// The classes of a service with their own shares: all operations but the first.
    pub(super) fn classes(&self, service: &ServiceName) -> Vec<Label> {
        let nodes = self.nodes.iter().filter(|node| node.service == *service);
        nodes.filter_map(|node| node.class.clone()).collect()
    }

    /// Reports of all regions.
    pub(super) fn messages(&self, interval: &Interval, every: u64) -> Vec<TrafficReport> {
        let message = |region: usize| TrafficReport {
            reporter: region as u64,
            interval: Duration::from_nanos(every),
            regions: [self.regions[region].clone()].into(),
            ..TrafficReport::default()
        };
        let mut messages: Vec<TrafficReport> = (0..self.regions.len()).map(message).collect();
        for (region, message) in messages.iter_mut().enumerate() {
            self.add_calls(interval, region, message);
            self.add_served(interval, region, message);
            self.add_servers(interval, region, message);
        }
        messages
    }

    fn add_calls(&self, interval: &Interval, from: usize, message: &mut TrafficReport) {
        for edge in 0..self.edges.len() {
            for to in 0..self.regions.len() {
                let counts = interval.counts.call(edge, from, to);
                if counts.attempts + counts.answered > 0 {
                    let rates = self.rates(edge, counts, interval.seconds);
                    *message.calls.entry(self.path(edge, from, Some(to))).or_default() += rates;
                }
            }
            let dropped = interval.counts.dropped(edge, from);
            if dropped > 0 {
                let rate = (dropped as f64 * MILLI / interval.seconds) as u64;
                let rates = CallRates { offered: rate, shed: rate, ..CallRates::default() };
                *message.calls.entry(self.path(edge, from, None)).or_default() += rates;
            }
        }
    }

    fn rates(&self, edge: usize, counts: CallCounts, seconds: f64) -> CallRates {
        let milli = |count: u64| (count as f64 * MILLI / seconds) as u64;
        let (request, response) = self.bytes[edge];
        CallRates {
            offered: milli(counts.offered),
            attempts: milli(counts.attempts),
            answered: milli(counts.answered),
            time_us: (counts.nanos as f64 / MICRO / seconds) as u64,
            bytes: (counts.answered as f64 * response / seconds) as u64,
            request_bytes: (counts.attempts as f64 * request / seconds) as u64,
            ..CallRates::default()
        }
    }

    fn path(&self, edge: usize, from: usize, to: Option<usize>) -> CallPath {
        let (operation, parent) = self.edges[edge];
        let node = &self.nodes[usize::from(operation)];
        let parent = parent.map(|parent| self.nodes[usize::from(parent)].clone());
        CallPath {
            service: node.service.clone(),
            from: self.regions[from].clone(),
            to: to.map(|to| self.regions[to].clone()),
            class: node.class.clone(),
            caller: parent.as_ref().map(|parent| parent.service.clone()),
            from_zone: None,
            to_zone: None,
            parent,
        }
    }

    fn add_served(&self, interval: &Interval, region: usize, message: &mut TrafficReport) {
        for (operation, node) in self.nodes.iter().enumerate() {
            for (bucket, counts) in interval.counts.served(operation, region) {
                if counts.calls > 0 {
                    let path =
                        ServedPath { node: node.clone(), region: self.regions[region].clone(), bucket };
                    let calls = (counts.calls as f64 * MILLI / interval.seconds) as u64;
                    let exclusive_us = (counts.exclusive as f64 / MICRO / interval.seconds) as u64;
                    message.served.insert(path, ServedRates { calls, exclusive_us });
                }
            }
        }
    }

    fn add_servers(&self, interval: &Interval, region: usize, message: &mut TrafficReport) {
        for (service, name) in self.services.iter().enumerate() {
            let pool = interval.pools[service * self.regions.len() + region];
            if pool.servers > 0 {
                let key = (name.clone(), self.regions[region].clone());
                message.servers.insert(key, server_rates(pool, interval.seconds));
            }
        }
    }
}

fn server_rates(pool: PoolCounts, seconds: f64) -> ServerRates {
    ServerRates {
        servers: pool.servers,
        counting: pool.servers,
        received: (pool.received as f64 * MILLI / seconds) as u64,
        measured: pool.servers,
        cpu_millicores: (pool.busy * MILLI) as u64,
        limit_millicores: (pool.cores * MILLI) as u64,
        ..ServerRates::default()
    }
}

impl PendingReports {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let play = &scenario.play;
        Self { delay: play.report_delay.nanos(), faults: play.faults.clone(), on_the_way: Vec::new() }
    }

    /// Sends the reports of the interval that ends now.
    pub(super) fn send(&mut self, reports: Vec<TrafficReport>, now: u64) {
        for mut report in reports {
            let mut at = now + self.delay;
            let is_of =
                |fault: &&RegionFault| report.regions.iter().any(|region| fault.is_of(region.as_str(), now));
            let faults: Vec<&RegionFault> = self.faults.iter().filter(is_of).collect();
            at += faults.iter().filter_map(|fault| fault.by).map(SimTime::nanos).sum::<u64>();
            let is_lost = faults.iter().any(|fault| fault.are == RegionReportFault::Missing);
            faults.iter().for_each(|fault| damage(&mut report, fault.are));
            if !is_lost {
                self.on_the_way.push(Arrival { at, sent: now, report });
            }
        }
    }

    /// The reports that have arrived, with their current age.
    pub(super) fn arrived(&mut self, now: u64) -> Vec<TrafficReport> {
        let mut arrived: Vec<Arrival> = self.on_the_way.extract_if(.., |one| one.at <= now).collect();
        // The newer one of two reports from a region counts.
        arrived.sort_by_key(|arrival| arrival.sent);
        let aged = |Arrival { sent, mut report, .. }: Arrival| {
            let age = Duration::from_nanos(now - sent);
            report.calls.values_mut().for_each(|rates| rates.grow_older(age));
            report.servers.values_mut().for_each(|rates| rates.grow_older(age));
            report
        };
        arrived.into_iter().map(aged).collect()
    }
}

/// Applies a fault to an arriving report.
fn damage(report: &mut TrafficReport, fault: RegionReportFault) {
    for servers in report.servers.values_mut() {
        match fault {
            RegionReportFault::Tenfold => servers.cpu_millicores *= LIE,
            RegionReportFault::Tenth => servers.cpu_millicores /= LIE,
            RegionReportFault::Half => servers.cpu_millicores /= 2,
            RegionReportFault::Zero => servers.cpu_millicores = 0,
            RegionReportFault::Disagreeing => servers.received *= LIE,
            RegionReportFault::Missing | RegionReportFault::Late | RegionReportFault::Nan => {}
        }
    }
    if fault == RegionReportFault::Disagreeing {
        report.served.values_mut().for_each(|served| served.calls *= LIE);
    }
}
