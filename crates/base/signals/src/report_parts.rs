use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use fairmesh_model::{
    MAX_CALL_PATHS, MAX_INCOMPLETE_SERVICES, MAX_SERVED_PATHS, MAX_SERVER_GROUPS, ServiceName, TrafficReport,
    arith::mix64,
};

use crate::report_sums::bound_tenants;

/// The most parts of a report: they have room for the groups of servers of 1,000 services in 50 regions, also where hashing fills
/// them unevenly.
const MAX_PARTS: u64 = 256;

/// Divides the reports of one process into messages with room for all of their rows.
///
/// A part has all rows of its services, and its own number as a reporter: receivers add parts up like the reports of several
/// processes, also those of the release before, which know nothing of parts. A service stays in its part while the number of
/// parts stays the same. Parts that are filled one after the other were rejected: each new row would move other services, and
/// a receiver would miss them, or count them twice, between one message and the next.
///
/// Names of incomplete services that do not fit into the first part get messages of their own, also with numbers of their own.
/// A full list of names was rejected: it stands for all services, so that whoever reports calls to many services would
/// mark those of everyone.
#[derive(Debug)]
pub struct ReportParts {
    /// A power of two.
    parts: u64,
    /// The most parts that receivers may still have.
    sent: u64,
    /// Messages of names in the last report, and the most that receivers may still have.
    names: u64,
    names_sent: u64,
    /// Whether receivers have all parts since their number has changed.
    is_delivered: bool,
}

impl Default for ReportParts {
    fn default() -> Self {
        Self { parts: 1, sent: 1, names: 0, names_sent: 0, is_delivered: true }
    }
}

impl ReportParts {
    /// The messages of a report, to be sent in this order: [names](Self::names), the first part, which has everything but rows
    /// of other parts, and the other parts.
    ///
    /// When the number of parts changes, receivers have services in two parts, or in none, until all parts have arrived. Until
    /// [`Self::delivered`] the messages before the parts therefore say that the services are incomplete.
    pub fn divide(&mut self, mut report: TrafficReport) -> Vec<TrafficReport> {
        let parts = self.needed(&report);
        self.is_delivered &= parts == self.parts;
        self.parts = parts;
        self.sent = self.sent.max(parts);
        if !self.is_delivered {
            let called = report.calls.keys().map(|path| &path.service);
            let served = report.servers.keys().map(|(service, _)| service);
            report.incomplete.extend(called.chain(served).cloned().collect::<Vec<_>>());
        }
        let mut messages = self.take_names(&mut report);
        if self.sent == 1 {
            messages.push(report);
            return messages;
        }
        let TrafficReport { calls, processes, servers, served, .. } = report;
        let rest = TrafficReport {
            calls: BTreeMap::new(),
            processes: BTreeMap::new(),
            servers: BTreeMap::new(),
            served: BTreeMap::new(),
            ..report
        };
        let mut divided: Vec<TrafficReport> =
            (0..self.sent).map(|part| part_of(&rest, part, parts)).collect();
        let mut position = Position { reporter: rest.reporter, parts, last: None };
        for (path, rates) in calls {
            divided[position.of(&path.service)].calls.insert(path, rates);
        }
        for ((service, region), names) in processes {
            divided[position.of(&service)].processes.insert((service, region), names);
        }
        for ((service, region), rates) in servers {
            divided[position.of(&service)].servers.insert((service, region), rates);
        }
        for (path, rates) in served {
            divided[position.of(&path.node.service)].served.insert(path, rates);
        }
        messages.extend(divided);
        messages
    }

    /// Number of messages at the start of the last report that have only names. Receivers need them before the parts.
    pub fn names(&self) -> usize {
        usize::try_from(self.names_sent).unwrap_or(usize::MAX)
    }

    /// Notes that the receiver has all messages of the last report.
    pub fn delivered(&mut self) {
        (self.sent, self.names_sent, self.is_delivered) = (self.parts, self.names, true);
    }

    /// Leaves as many names in the report as one message has room for, and returns messages with the others. Messages that are
    /// not needed any more say nothing, so that receivers forget them.
    fn take_names(&mut self, report: &mut TrafficReport) -> Vec<TrafficReport> {
        // One name more would stand for all services.
        const ROOM: usize = MAX_INCOMPLETE_SERVICES - 1;
        bound_tenants(report);
        // A report of which all services are incomplete needs no names. Receivers of the previous release know it by a full list.
        let room = if report.all_incomplete { MAX_INCOMPLETE_SERVICES } else { ROOM };
        let mut beyond = Vec::new();
        if let Some(first) = report.incomplete.iter().nth(room).cloned() {
            beyond = report.incomplete.split_off(&first).into_iter().collect();
        }
        if report.all_incomplete {
            beyond.clear();
        }
        let mut chunks = beyond.chunks(ROOM);
        self.names = chunks.len() as u64;
        self.names_sent = self.names_sent.max(self.names);
        let of_names = |number: u64| match chunks.next() {
            Some(names) => TrafficReport {
                incomplete: names.iter().cloned().collect(),
                ..part_of(report, MAX_PARTS + number, u64::MAX)
            },
            None => part_of(report, MAX_PARTS + number, 0),
        };
        (0..self.names_sent).map(of_names).collect()
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
            by_service
                .iter()
                .for_each(|(service, rows)| sums[part(report.reporter, service, parts)].add(rows));
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

/// The part of a service. The number of parts is a power of two. The reporter's number keeps senders of rows from choosing
/// names that are all in one part.
fn part(reporter: u64, service: &ServiceName, parts: u64) -> usize {
    let mut hash = DefaultHasher::new();
    (reporter, service).hash(&mut hash);
    // Below 256.
    (hash.finish() & (parts - 1)) as usize
}

/// Finds the parts of services, fast where one comes several times in a row.
struct Position {
    reporter: u64,
    parts: u64,
    last: Option<(ServiceName, usize)>,
}

impl Position {
    fn of(&mut self, service: &ServiceName) -> usize {
        match &self.last {
            Some((last, at)) if last == service => *at,
            _ => {
                let at = part(self.reporter, service, self.parts);
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
    use crate::{ReportSource, ReportSums, SumLimits, bound};

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
            sums.record(&ReportSource::of_mesh(), part, 0);
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
    fn changed_number_of_parts_marks_its_services_incomplete_and_no_other() {
        let (mut parts, mut sums) = (ReportParts::default(), ReportSums::new(SumLimits::TREE));
        let service = |name: &str| ServiceName::new(name).unwrap();
        let whole = report(5_000, 2);
        let divided = parts.divide(whole.clone());
        assert_eq!(parts.names(), 4, "of 5,000 names, the first part has 1,023");
        let names: BTreeSet<_> =
            divided[..=4].iter().flat_map(|message| message.incomplete.clone()).collect();
        assert_eq!(names.len(), 5_000, "known before any rows of other parts");
        let sum = received(&mut sums, divided);
        assert!(sum.is_incomplete(&service("shop/s4999")));
        assert!(!sum.is_incomplete(&service("bank/vault")), "which no row names");
        parts.delivered();
        let sum = received(&mut sums, parts.divide(whole.clone()));
        assert!(sum.incomplete.is_empty() && !sum.all_incomplete);
        assert_eq!(sum.calls, whole.calls);
        parts.delivered();
        assert_eq!(parts.divide(whole)[0].reporter, 7, "messages of names are not needed any more");
    }

    #[test]
    fn many_incomplete_services_below_stay_named_one_by_one() {
        let (mut parts, mut sums) = (ReportParts::default(), ReportSums::new(SumLimits::TREE));
        let many = TrafficReport {
            incomplete: report(3_000, 1).calls.into_keys().map(|path| path.service).collect(),
            ..report(1, 1)
        };
        let sum = received(&mut sums, parts.divide(many.clone()));
        assert_eq!((sum.incomplete.len(), sum.all_incomplete), (3_000, false));
        parts.delivered();
        let all = received(&mut sums, parts.divide(TrafficReport { all_incomplete: true, ..many }));
        assert!(all.is_incomplete(&ServiceName::new("bank/vault").unwrap()), "what is unknown stays unknown");
    }

    #[test]
    fn service_with_more_rows_than_one_message_adds_no_report_parts() {
        let mut parts = ReportParts::default();
        assert_eq!(parts.divide(report(1, MAX_CALL_PATHS + 1)).len(), 1);
    }
}
