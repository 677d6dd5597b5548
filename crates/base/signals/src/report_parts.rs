use std::collections::BTreeMap;

use fairmesh_model::{
    MAX_CALL_PATHS, MAX_INCOMPLETE_SERVICES, MAX_SERVED_PATHS, MAX_SERVER_GROUPS, ServiceName, TrafficReport,
    arith::{hash_text, mix64},
};

/// The most parts of a report: they have room for the groups of servers of 1,000 services in 50 regions, also where hashing fills
/// them unevenly.
const MAX_PARTS: u64 = 256;

/// Divides the reports of one process into messages with room for all of their rows.
///
/// A part has all rows of its services, and its own number as a reporter: receivers add parts up like the reports of several
/// processes, also those of the release before, which know nothing of parts. A service stays in its part while the number of
/// parts stays the same. Parts that are filled one after the other were rejected: each new row would move other services, and
/// a receiver would miss them, or count them twice, between one message and the next.
#[derive(Debug)]
pub struct ReportParts {
    /// A power of two.
    parts: u64,
    /// The most parts that receivers may still have.
    sent: u64,
    /// Whether receivers have all parts since their number has changed.
    is_delivered: bool,
}

impl Default for ReportParts {
    fn default() -> Self {
        Self { parts: 1, sent: 1, is_delivered: true }
    }
}

impl ReportParts {
    /// The parts of a report, to be sent in this order. The first one has everything but rows of services.
    ///
    /// When the number of parts changes, receivers have services in two parts, or in none, until all parts have arrived. Until
    /// [`Self::delivered`] the first part therefore says that the services are incomplete.
    pub fn divide(&mut self, report: TrafficReport) -> Vec<TrafficReport> {
        let parts = self.needed(&report);
        self.is_delivered &= parts == self.parts;
        self.parts = parts;
        self.sent = self.sent.max(parts);
        if self.sent == 1 {
            return vec![report];
        }
        let TrafficReport { calls, servers, served, .. } = report;
        let rest = TrafficReport {
            calls: BTreeMap::new(),
            servers: BTreeMap::new(),
            served: BTreeMap::new(),
            ..report
        };
        let mut divided: Vec<TrafficReport> =
            (0..self.sent).map(|part| part_of(&rest, part, parts)).collect();
        if !self.is_delivered {
            let moved =
                calls.keys().map(|path| &path.service).chain(servers.keys().map(|(service, _)| service));
            let incomplete = &mut divided[0].incomplete;
            for service in moved {
                if incomplete.len() >= MAX_INCOMPLETE_SERVICES {
                    break;
                }
                incomplete.insert(service.clone());
            }
        }
        let mut position = Position { parts, last: None };
        for (path, rates) in calls {
            divided[position.of(&path.service)].calls.insert(path, rates);
        }
        for ((service, region), rates) in servers {
            divided[position.of(&service)].servers.insert((service, region), rates);
        }
        for (path, rates) in served {
            divided[position.of(&path.node.service)].served.insert(path, rates);
        }
        divided
    }

    /// Notes that the receiver has all parts of the last report.
    pub fn delivered(&mut self) {
        (self.sent, self.is_delivered) = (self.parts, true);
    }

    /// The number of parts that the report needs. It shrinks only when half of the parts would be half full, so that it does not
    /// change back and forth.
    fn needed(&self, report: &TrafficReport) -> u64 {
        let fits_one = Rows::of_all(report).fit(1);
        if self.parts == 1 && fits_one {
            return 1;
        }
        let by_service = rows_by_service(report);
        let fits = |parts: u64, room: usize| {
            let mut sums = vec![Rows::default(); parts as usize];
            by_service.iter().for_each(|(service, rows)| sums[part(service, parts)].add(rows));
            sums.iter().all(|rows| rows.fit(room))
        };
        let mut parts = self.parts;
        while parts < MAX_PARTS && !fits(parts, 1) {
            parts *= 2;
        }
        while parts > 1 && parts <= self.parts && fits(parts / 2, 2) {
            parts /= 2;
        }
        parts
    }
}

/// A part without rows. Parts that are not needed any more say nothing, so that receivers forget them.
fn part_of(rest: &TrafficReport, part: u64, parts: u64) -> TrafficReport {
    let reporter = if part == 0 { rest.reporter } else { mix64(rest.reporter ^ part) };
    match part {
        0 => rest.clone(),
        _ if part < parts => TrafficReport {
            reporter,
            interval: rest.interval,
            regions: rest.regions.clone(),
            ..TrafficReport::default()
        },
        _ => TrafficReport { reporter, ..TrafficReport::default() },
    }
}

/// The part of a service. The number of parts is a power of two.
fn part(service: &ServiceName, parts: u64) -> usize {
    // Below 256.
    (hash_text(&service.to_string()) & (parts - 1)) as usize
}

/// Finds the parts of services, fast where one comes several times in a row.
struct Position {
    parts: u64,
    last: Option<(ServiceName, usize)>,
}

impl Position {
    fn of(&mut self, service: &ServiceName) -> usize {
        match &self.last {
            Some((last, at)) if last == service => *at,
            _ => {
                let at = part(service, self.parts);
                self.last = Some((service.clone(), at));
                at
            }
        }
    }
}

/// Numbers of rows.
#[derive(Clone, Copy, Debug, Default)]
struct Rows {
    calls: usize,
    servers: usize,
    served: usize,
}

impl Rows {
    fn of_all(report: &TrafficReport) -> Self {
        Self { calls: report.calls.len(), servers: report.servers.len(), served: report.served.len() }
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.servers += other.servers;
        self.served += other.served;
    }

    /// Whether one of so many equal parts of a message has room for the rows.
    fn fit(&self, part: usize) -> bool {
        self.calls <= MAX_CALL_PATHS / part
            && self.servers <= MAX_SERVER_GROUPS / part
            && self.served <= MAX_SERVED_PATHS / part
    }
}

/// Rows of each service. One with more rows than a message has is no reason for more parts.
fn rows_by_service(report: &TrafficReport) -> BTreeMap<&ServiceName, Rows> {
    let mut by_service = BTreeMap::<&ServiceName, Rows>::new();
    report.calls.keys().for_each(|path| by_service.entry(&path.service).or_default().calls += 1);
    report.servers.keys().for_each(|(service, _)| by_service.entry(service).or_default().servers += 1);
    report.served.keys().for_each(|path| by_service.entry(&path.node.service).or_default().served += 1);
    by_service.retain(|_, rows| rows.fit(1));
    by_service
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use fairmesh_model::{CallPath, CallRates, Region, ServerRates};

    use super::*;
    use crate::{ReportSums, SumLimits, bound};

    /// A report of calls from a region to so many services, in all of so many regions.
    fn report(services: usize, regions: usize) -> TrafficReport {
        let region = |number: usize| Region::new(format!("r{number}")).unwrap();
        let mut report = TrafficReport {
            reporter: 7,
            interval: Duration::from_secs(1),
            regions: [region(0)].into(),
            ..TrafficReport::default()
        };
        for number in 0..services {
            let service = ServiceName::new(format!("shop/s{number}")).unwrap();
            for to in 0..regions {
                let path = CallPath {
                    service: service.clone(),
                    from: region(0),
                    to: Some(region(to)),
                    class: None,
                    caller: None,
                    from_zone: None,
                    to_zone: None,
                    parent: None,
                };
                report.calls.insert(path, CallRates { offered: 1_000, ..CallRates::default() });
                let servers = ServerRates { servers: 1, received: 1_000, ..ServerRates::default() };
                report.servers.insert((service.clone(), region(to)), servers);
            }
        }
        report
    }

    /// What a receiver has after these messages.
    fn received(sums: &mut ReportSums, parts: Vec<TrafficReport>) -> TrafficReport {
        for part in parts.into_iter().map(bound) {
            sums.record(part, 0);
        }
        sums.sum_of_all(0)
    }

    #[test]
    fn small_traffic_report_is_sent_as_one_unchanged_message() {
        let mut parts = ReportParts::default();
        assert_eq!(parts.divide(report(20, 50)), [report(20, 50)]);
    }

    #[test]
    fn divided_report_of_thousand_services_in_fifty_regions_loses_no_row() {
        let (mut parts, mut sums) = (ReportParts::default(), ReportSums::new(SumLimits::TREE));
        let whole = report(1_000, 50);
        let first = received(&mut sums, parts.divide(whole.clone()));
        assert!(first.is_incomplete(&ServiceName::new("shop/s1").unwrap()), "parts may be missing");
        parts.delivered();
        let divided = parts.divide(whole.clone());
        let reporters: BTreeSet<u64> = divided.iter().map(|part| part.reporter).collect();
        assert_eq!((divided.len(), reporters.len()), (128, 128));
        let sum = received(&mut sums, divided);
        assert_eq!((sum.calls, sum.servers, sum.left_out), (whole.calls, whole.servers, 0));
        assert!(sum.incomplete.is_empty() && !sum.all_incomplete);
    }

    #[test]
    fn calls_are_counted_once_when_number_of_report_parts_changes() {
        let (mut parts, mut sums) = (ReportParts::default(), ReportSums::new(SumLimits::TREE));
        for (services, messages) in [(20, 1), (100, 8), (90, 8), (8, 8), (8, 1)] {
            let divided = parts.divide(report(services, 50));
            assert_eq!(divided.len(), messages, "{services} services");
            let sum = received(&mut sums, divided);
            let (offered, expected): (u64, u64) =
                (sum.calls.values().map(|rates| rates.offered).sum(), 50_000);
            assert_eq!(offered, expected * services as u64);
            parts.delivered();
        }
        assert_eq!(sums.reporters(), 1, "receivers forget parts that are not needed");
    }

    #[test]
    fn services_are_marked_incomplete_until_all_report_parts_arrived() {
        let mut parts = ReportParts::default();
        let service = ServiceName::new("shop/s1").unwrap();
        let is_incomplete =
            |parts: &mut ReportParts| parts.divide(report(100, 50))[0].is_incomplete(&service);
        assert!(is_incomplete(&mut parts) && is_incomplete(&mut parts), "a message was lost");
        parts.delivered();
        assert!(!is_incomplete(&mut parts));
    }

    #[test]
    fn service_with_more_rows_than_one_message_adds_no_report_parts() {
        let mut parts = ReportParts::default();
        assert_eq!(parts.divide(report(1, MAX_CALL_PATHS + 1)).len(), 1);
    }
}
