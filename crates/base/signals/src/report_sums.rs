use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use fairmesh_model::{
    CallPath, CallRates, MAX_CALL_PATHS, MAX_CALLING_PROCESSES, MAX_INCOMPLETE_SERVICES,
    MAX_INCOMPLETE_TENANTS, MAX_REPORTED_REGIONS, MAX_SERVED_PATHS, MAX_SERVER_GROUPS, ServedPath,
    ServedRates, ServiceName, TrafficReport,
};

use crate::{
    missed_services::MissedServices,
    report_shares::{Holder, Loser, ReportShares, ReportSource},
    service_sums::ServiceSums,
};

/// Number of missed intervals after which a report expires.
const MISSED_INTERVALS: u64 = 3;
/// Additional time before a report expires, in milliseconds. Covers delays on the way.
const GRACE_MS: u64 = 500;
/// Bounds to which the interval in a report is clamped, in milliseconds.
const MIN_INTERVAL_MS: u64 = 100;
const MAX_INTERVAL_MS: u64 = 20_000;

/// Limits of the stored reports.
#[derive(Clone, Copy, Debug)]
pub struct SumLimits {
    /// Number of reporters.
    pub reporters: usize,
    /// Number of paths and groups of servers over all reporters.
    pub rows: usize,
    /// Number of rows of processed calls over all reporters. The limit is separate because regional planners do not
    /// need these rows.
    pub served: usize,
    /// Percentage of each limit that [limited senders](crate::ReportOwner::is_limited) together keep when others need room.
    pub limited_percent: usize,
}

impl SumLimits {
    /// Limits of an agent, which receives reports from the programs on one machine. Nearly all of them are limited.
    pub const AGENT: Self = Self { reporters: 2_000, rows: 20_000, served: 20_000, limited_percent: 100 };
    /// Limits of a replica or control plane, which receives reports from agents and replicas.
    pub const TREE: Self = Self { reporters: 20_000, rows: 200_000, served: 200_000, limited_percent: 50 };

    /// Shares of `room`, which is one of the limits.
    pub(crate) fn shares(self, room: usize) -> ReportShares {
        ReportShares::new(room, room * self.limited_percent / 100)
    }
}

/// Result of recording a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The report replaced its reporter's last report. If there were too many rows of processed calls, these rows
    /// were dropped.
    Kept,
    /// The report was refused: there are too many reporters or rows, and its sender has the most of those of
    /// the owner with the most.
    Full,
}

/// The last report of each reporter, and their sum.
#[derive(Debug)]
pub struct ReportSums {
    by_reporter: HashMap<Reporter, LiveReport>,
    reporters: ReportShares,
    rows: ReportShares,
    /// Rows of processed calls.
    served: ReportShares,
    missed: MissedServices,
}

/// A sender and the number of its reporter. A sender chooses the number, so it counts for that sender only. The owner is
/// not part of the key: it follows the sender's rights, and a report beside that of a former owner would count twice.
type Reporter = (Arc<str>, u64);

#[derive(Debug)]
struct LiveReport {
    source: ReportSource,
    report: TrafficReport,
    at_ms: u64,
    void_at_ms: u64,
}

impl ReportSums {
    /// Creates sums without reports.
    pub fn new(limits: SumLimits) -> Self {
        Self {
            by_reporter: HashMap::new(),
            reporters: limits.shares(limits.reporters),
            rows: limits.shares(limits.rows),
            served: limits.shares(limits.served),
            missed: MissedServices::default(),
        }
    }

    /// The number of reporters.
    pub fn reporters(&self) -> usize {
        self.by_reporter.len()
    }

    /// Number of paths and server groups for which reports had no room.
    pub fn left_out(&mut self, now_ms: u64) -> u32 {
        self.expire(now_ms);
        self.by_reporter.values().fold(0, |sum: u32, live| sum.saturating_add(live.report.left_out))
    }

    /// Records a report. An empty report removes its reporter. Incomplete services of tenants for which the sender does
    /// not report are ignored. Without room, reports of the owner that uses the most are dropped, first those of its sender
    /// that does. `now_ms` comes from a
    /// monotonic clock.
    pub fn record(&mut self, source: &ReportSource, mut report: TrafficReport, now_ms: u64) -> Taken {
        let (owner, key) = (&source.owner, (Arc::clone(&source.sender), report.reporter));
        report.incomplete.retain(|service| source.speaks_for(service));
        report.incomplete_tenants.retain(|tenant| source.speaks_for_tenant(tenant));
        if is_of_nothing(&report) {
            self.remove(&key);
            return Taken::Kept;
        }
        // The last report takes room of a former owner if the sender's rights have changed since.
        if self.by_reporter.get(&key).is_some_and(|live| live.source.owner != *owner) {
            self.remove(&key);
        }
        let interval = u64::try_from(report.interval.as_millis()).unwrap_or(u64::MAX);
        let interval = interval.clamp(MIN_INTERVAL_MS, MAX_INTERVAL_MS);
        let void_at_ms = now_ms.saturating_add(interval * MISSED_INTERVALS + GRACE_MS);
        // A full list of a limited sender stands for the services of its tenants.
        if owner.is_limited && std::mem::take(&mut report.all_incomplete) {
            self.missed.note_all_of(source, void_at_ms);
        }
        if self.lacking(source.holder(), &key, &report).is_some() {
            self.expire(now_ms);
        }
        while let Some(loser) = self.lacking(source.holder(), &key, &report) {
            if loser.is(source.holder()) || !self.drop_largest(&loser) {
                self.missed.note(source, &report, void_at_ms);
                return Taken::Full;
            }
        }
        self.remove(&key);
        self.make_room_for_served(source.holder(), &mut report);
        self.reporters.take(source.holder(), 1);
        self.rows.take(source.holder(), rows(&report));
        self.served.take(source.holder(), report.served.len());
        let source = source.clone();
        self.by_reporter.insert(key, LiveReport { source, report, at_ms: now_ms, void_at_ms });
        Taken::Kept
    }

    /// Returns the sum of all unexpired reports, without a size limit. The caller sets `reporter` and `interval`. The
    /// age of the data includes the time since its report arrived.
    pub fn sum_of_all(&mut self, now_ms: u64) -> TrafficReport {
        self.expire(now_ms);
        let incomplete = self.missed.names().cloned().collect();
        let incomplete_tenants = self.missed.tenants(now_ms).cloned().collect();
        let all_incomplete = self.missed.is_all(now_ms);
        let mut sum =
            TrafficReport { incomplete, incomplete_tenants, all_incomplete, ..TrafficReport::default() };
        for LiveReport { report, at_ms, .. } in self.by_reporter.values() {
            let kept = Duration::from_millis(now_ms.saturating_sub(*at_ms));
            sum.regions.extend(report.regions.iter().cloned());
            sum.left_out = sum.left_out.saturating_add(report.left_out);
            sum.incomplete.extend(report.incomplete.iter().cloned());
            sum.incomplete_tenants.extend(report.incomplete_tenants.iter().cloned());
            sum.all_incomplete |= report.all_incomplete;
            for (path, rates) in &report.calls {
                let mut rates = *rates;
                rates.grow_older(kept);
                *sum.calls.entry(path.clone()).or_default() += rates;
            }
            for (key, names) in &report.processes {
                let sum = sum.processes.entry(key.clone()).or_default();
                sum.extend(names.iter().cloned());
                while sum.len() > MAX_CALLING_PROCESSES {
                    sum.pop_last();
                }
            }
            for (group, rates) in &report.servers {
                let sum = sum.servers.entry(group.clone()).or_default();
                let mut now = rates.clone();
                now.grow_older(kept);
                *sum += &now;
            }
            for (path, rates) in &report.served {
                *sum.served.entry(path.clone()).or_default() += *rates;
            }
        }
        // Also those of a tenant whose missed services have no room for their names: receivers of the previous release
        // know no incomplete tenants.
        let called = sum.calls.keys().map(|path| &path.service);
        let named = called.chain(sum.servers.keys().map(|(service, _)| service));
        let missed: BTreeSet<_> = named.filter(|service| self.missed.has(service, now_ms)).cloned().collect();
        sum.incomplete.extend(missed);
        sum
    }

    /// Returns a separate sum of all unexpired reports for each of `services`.
    pub fn sums_by_service<'a>(
        &'a mut self,
        services: &'a BTreeSet<ServiceName>,
        now_ms: u64,
    ) -> ServiceSums<'a> {
        self.expire(now_ms);
        let live = self.by_reporter.values();
        let reports =
            live.map(|live| (&live.report, Duration::from_millis(now_ms.saturating_sub(live.at_ms))));
        let mut sums = ServiceSums::group(reports, services);
        let missed = services.iter().filter(|service| self.missed.has(service, now_ms));
        missed.for_each(|service| sums.note_incomplete(service));
        sums
    }

    /// The sender that has to lose a report before `report` of `holder` has room; `None` if it has room.
    fn lacking(&self, holder: Holder<'_>, key: &Reporter, report: &TrafficReport) -> Option<Loser> {
        let old = self.by_reporter.get(key).map(|live| rows(&live.report));
        let place = self.reporters.check(holder, old.map_or(0, |_| 1), 1);
        place.and_then(|()| self.rows.check(holder, old.unwrap_or_default(), rows(report))).err()
    }

    /// Drops the report of a sender with the most rows, and marks its services as incomplete. Returns whether there
    /// was one.
    fn drop_largest(&mut self, loser: &Loser) -> bool {
        let own = self.by_reporter.iter().filter(|(_, live)| loser.is(live.source.holder()));
        let largest = own.max_by_key(|(_, live)| rows(&live.report)).map(|(key, _)| key.clone());
        let Some(lost) = largest.and_then(|key| self.remove(&key)) else { return false };
        self.missed.note(&lost.source, &lost.report, lost.void_at_ms);
        true
    }

    /// Drops rows of processed calls until those of the report have room, or those of the report itself.
    fn make_room_for_served(&mut self, holder: Holder<'_>, report: &mut TrafficReport) {
        while let Err(loser) = self.served.check(holder, 0, report.served.len()) {
            let of_loser = self.by_reporter.values_mut().filter(|live| loser.is(live.source.holder()));
            let largest = of_loser.map(|live| &mut live.report.served).max_by_key(|served| served.len());
            match largest.filter(|served| !loser.is(holder) && !served.is_empty()) {
                Some(served) => self.served.free((&loser.owner, &loser.sender), std::mem::take(served).len()),
                None => return report.served.clear(),
            }
        }
    }

    fn expire(&mut self, now_ms: u64) {
        self.missed.expire(now_ms);
        let void = self.by_reporter.iter().filter(|(_, live)| now_ms >= live.void_at_ms);
        let void: Vec<_> = void.map(|(key, _)| key.clone()).collect();
        void.iter().for_each(|key| drop(self.remove(key)));
    }

    /// Removes the report of a reporter, and frees its room.
    fn remove(&mut self, key: &Reporter) -> Option<LiveReport> {
        let removed = self.by_reporter.remove(key)?;
        let holder = removed.source.holder();
        self.reporters.free(holder, 1);
        self.rows.free(holder, rows(&removed.report));
        self.served.free(holder, removed.report.served.len());
        Some(removed)
    }
}

/// The same report within the bounds of a message. With too many paths, [parents, then callers](merge_paths) are combined. Remaining
/// excess is dropped from the end by name and counted, and its services are marked incomplete. If too many services are
/// incomplete, all are: a service with missing data must never look like one with fewer calls.
pub fn bound(mut report: TrafficReport) -> TrafficReport {
    report.calls = merge_paths(report.calls);
    let paths = report.calls.keys().skip(MAX_CALL_PATHS).map(|path| &path.service);
    let groups = report.servers.keys().skip(MAX_SERVER_GROUPS).map(|(service, _)| service);
    let mut beyond: u32 = 0;
    for service in paths.chain(groups) {
        beyond = beyond.saturating_add(1);
        report.incomplete.insert(service.clone());
    }
    report.left_out = report.left_out.saturating_add(beyond);
    bound_tenants(&mut report);
    report.all_incomplete |= report.incomplete.len() >= MAX_INCOMPLETE_SERVICES;
    report.incomplete = report.incomplete.into_iter().take(MAX_INCOMPLETE_SERVICES).collect();
    report.regions = report.regions.into_iter().take(MAX_REPORTED_REGIONS).collect();
    report.calls = report.calls.into_iter().take(MAX_CALL_PATHS).collect();
    report.servers = report.servers.into_iter().take(MAX_SERVER_GROUPS).collect();
    report.served = bound_served(report.served);
    report
}

/// Leaves no more tenants in a report than one message has room for. If too many are incomplete, all services are.
pub(crate) fn bound_tenants(report: &mut TrafficReport) {
    if report.incomplete_tenants.len() > MAX_INCOMPLETE_TENANTS {
        report.incomplete_tenants.clear();
        report.all_incomplete = true;
    }
}

/// Merges calls of different parents, then of different callers, until they fit into [`MAX_CALL_PATHS`]. Regional
/// planners need neither.
pub fn merge_paths(calls: BTreeMap<CallPath, CallRates>) -> BTreeMap<CallPath, CallRates> {
    let merge = |calls: BTreeMap<CallPath, CallRates>, path: fn(CallPath) -> CallPath| {
        if calls.len() <= MAX_CALL_PATHS {
            return calls;
        }
        let mut merged = BTreeMap::<CallPath, CallRates>::new();
        for (key, rates) in calls {
            *merged.entry(path(key)).or_default() += rates;
        }
        merged
    };
    let calls = merge(calls, |path| CallPath { parent: None, ..path });
    merge(calls, |path| CallPath { caller: None, ..path })
}

/// Bounds processed calls to [`MAX_SERVED_PATHS`] rows. Merges the utilisation buckets first, then drops the last
/// services by name. A service is dropped as a whole, since some of its rows would look like fewer calls.
fn bound_served(served: BTreeMap<ServedPath, ServedRates>) -> BTreeMap<ServedPath, ServedRates> {
    if served.len() <= MAX_SERVED_PATHS {
        return served;
    }
    let mut merged = BTreeMap::<ServedPath, ServedRates>::new();
    for (path, rates) in served {
        *merged.entry(ServedPath { bucket: None, ..path }).or_default() += rates;
    }
    if let Some(path) = merged.keys().nth(MAX_SERVED_PATHS).cloned() {
        merged.retain(|kept, _| kept.node.service < path.node.service);
    }
    merged
}

fn is_of_nothing(report: &TrafficReport) -> bool {
    let says_nothing = report.regions.is_empty() && report.left_out == 0 && !report.all_incomplete;
    rows(report) == 0 && report.served.is_empty() && says_nothing
}

fn rows(report: &TrafficReport) -> usize {
    let incomplete = report.incomplete.len() + report.incomplete_tenants.len();
    report.calls.len() + report.servers.len() + incomplete
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{CallNode, CallPath, CallRates, Region, ServerRates, ServiceName};

    use super::*;

    fn report(reporter: u64, region: &str, calls: u64) -> TrafficReport {
        let region = Region::new(region).unwrap();
        let service = ServiceName::new("shop/cart").unwrap();
        let path = CallPath {
            service: service.clone(),
            from: region.clone(),
            to: Some(region.clone()),
            class: None,
            caller: None,
            from_zone: None,
            to_zone: None,
            parent: None,
        };
        let rates = CallRates { offered: calls, ..CallRates::default() };
        let servers = ServerRates { servers: 1, received: calls, ..ServerRates::default() };
        TrafficReport {
            reporter,
            interval: Duration::from_secs(1),
            regions: [region.clone()].into(),
            calls: [(path, rates)].into(),
            servers: [((service, region), servers)].into(),
            ..TrafficReport::default()
        }
    }

    fn sums(reporters: usize, rows: usize) -> ReportSums {
        ReportSums::new(SumLimits { reporters, rows, served: 2, limited_percent: 50 })
    }

    /// Rows of calls to a service without a class, one per utilisation bucket.
    fn served(service: &ServiceName, buckets: u8) -> impl Iterator<Item = (ServedPath, ServedRates)> {
        let row = move |bucket| {
            let node = CallNode { service: service.clone(), class: None };
            let path = ServedPath { node, region: Region::new("eu").unwrap(), bucket: Some(bucket) };
            (path, ServedRates { calls: 1, exclusive_us: 1 })
        };
        (0..buckets).map(row)
    }

    fn offered(sums: &mut ReportSums, now_ms: u64) -> u64 {
        bound(sums.sum_of_all(now_ms)).calls.values().map(|rates| rates.offered).sum()
    }

    #[test]
    fn traffic_report_replaces_previous_one_of_same_reporter() {
        let mut sums = sums(10, 100);
        for (reporter, region, calls) in
            [(1, "eu", 10), (2, "eu", 5), (3, "us", 7), (1, "eu", 20), (1, "eu", 20)]
        {
            assert_eq!(
                sums.record(&ReportSource::of_mesh(), report(reporter, region, calls), 0),
                Taken::Kept
            );
        }
        let sum = bound(sums.sum_of_all(0));
        assert_eq!((sum.calls.len(), sum.servers.len(), sum.regions.len()), (2, 2, 2));
        assert_eq!(offered(&mut sums, 0), 32);
        assert_eq!(sum.servers.values().map(|rates| rates.servers).sum::<u32>(), 3);
    }

    #[test]
    fn traffic_report_expires_after_three_intervals() {
        let mut sums = sums(10, 100);
        sums.record(&ReportSource::of_mesh(), report(1, "eu", 10), 0);
        sums.record(
            &ReportSource::of_mesh(),
            TrafficReport { interval: Duration::MAX, ..report(2, "us", 5) },
            0,
        );
        assert_eq!(offered(&mut sums, 3_400), 15);
        assert_eq!(offered(&mut sums, 3_500), 5);
        assert_eq!(offered(&mut sums, 60_500), 0, "an absurd interval is bounded");
        assert_eq!((sums.reporters(), sums.rows.used()), (0, 0));
    }

    #[test]
    fn traffic_report_data_ages_while_stored() {
        let (mut agent, mut above) = (sums(10, 100), sums(10, 100));
        agent.record(&ReportSource::of_mesh(), report(1, "eu", 30), 5_000);
        agent.record(&ReportSource::of_mesh(), report(2, "eu", 10), 7_000);
        let mut sum = bound(agent.sum_of_all(7_000));
        let age = |sum: &TrafficReport| {
            let (calls, servers) = (sum.calls.values().next().unwrap(), sum.servers.values().next().unwrap());
            (calls.age().as_millis(), servers.age().as_millis())
        };
        assert_eq!(age(&sum), (1_500, 1_000), "by calls, and by servers");
        sum.interval = Duration::from_secs(1);
        above.record(&ReportSource::of_mesh(), sum, 100);
        assert_eq!(age(&bound(above.sum_of_all(800))), (2_200, 1_700));
        assert_eq!(
            age(&bound(above.sum_of_all(1_800))),
            (3_200, 2_700),
            "the report is the same, and its data is older"
        );
    }

    #[test]
    fn too_many_call_paths_are_merged_first_by_parent_then_by_caller() {
        let path = report(1, "eu", 1).calls.keys().next().unwrap().clone();
        let rates = CallRates { offered: 1, ..CallRates::default() };
        let calls = |parents: usize, callers: usize| {
            let node = |service| Some(CallNode { service, class: None });
            let parents = || named("p", parents).map(node);
            let callers = named("c", callers).flat_map(|caller| parents().map(move |p| (caller.clone(), p)));
            let key = |(caller, parent)| CallPath { caller: Some(caller), parent, ..path.clone() };
            callers.map(|pair| (key(pair), rates)).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(merge_paths(calls(64, 64)), calls(64, 64));
        let without_parents = merge_paths(calls(65, 64));
        assert_eq!(without_parents.len(), 64);
        assert!(without_parents.iter().all(|(path, sum)| path.caller.is_some() && sum.offered == 65));
        let merged = merge_paths(calls(1, MAX_CALL_PATHS + 1));
        assert_eq!(merged.values().map(|sum| sum.offered).collect::<Vec<_>>(), [4_097]);
    }

    #[test]
    fn call_paths_beyond_limit_are_reported_as_incomplete_at_every_level() {
        let mut sums = sums(10, 100_000);
        let mut many = report(1, "eu", 1);
        let path = many.calls.keys().next().unwrap().clone();
        for n in 0..MAX_CALL_PATHS + 6 {
            let service = ServiceName::new(format!("shop/s{n}")).unwrap();
            many.calls.insert(CallPath { service, ..path.clone() }, CallRates::default());
        }
        sums.record(&ReportSource::of_mesh(), many, 0);
        let sum = bound(sums.sum_of_all(0));
        assert_eq!((sum.calls.len(), sum.left_out), (MAX_CALL_PATHS, 7));
        let is_complete = |service: &ServiceName| sum.calls.keys().any(|path| path.service == *service);
        assert_eq!(sum.incomplete.len(), 7);
        assert!(!sum.incomplete.iter().any(is_complete), "{:?}", sum.incomplete);
        let incomplete = sum.incomplete.clone();
        let mut above = ReportSums::new(SumLimits::TREE);
        above.record(&ReportSource::of_mesh(), sum, 0);
        above.record(&ReportSource::of_mesh(), report(2, "us", 1), 0);
        assert_eq!((above.sum_of_all(0).left_out, above.left_out(0)), (7, 7));
        assert_eq!(above.sum_of_all(0).incomplete, incomplete);
    }

    fn named(prefix: &str, count: usize) -> impl Iterator<Item = ServiceName> {
        (0..count).map(move |n| ServiceName::new(format!("shop/{prefix}{n}")).unwrap())
    }

    #[test]
    fn too_many_incomplete_services_mark_all_services_incomplete() {
        let other = ServiceName::new("shop/zoo").unwrap();
        let path = report(1, "eu", 1).calls.keys().next().unwrap().clone();
        let full = |sums: &mut ReportSums, beyond: usize| {
            let mut many = report(1, "eu", 1);
            for service in named("s", MAX_CALL_PATHS - 1 + beyond) {
                many.calls.insert(CallPath { service, ..path.clone() }, CallRates::default());
            }
            sums.record(&ReportSource::of_mesh(), many, 0);
            bound(sums.sum_of_all(0))
        };
        let some = full(&mut sums(10, 100_000), MAX_INCOMPLETE_SERVICES - 1);
        assert!(!some.all_incomplete && !some.is_incomplete(&other), "{}", some.incomplete.len());
        let all = full(&mut sums(10, 100_000), MAX_INCOMPLETE_SERVICES + 1);
        assert_eq!(all.incomplete.len(), MAX_INCOMPLETE_SERVICES);
        assert!(all.is_incomplete(&other), "one service more has no name");
        let mut above = ReportSums::new(SumLimits::TREE);
        above.record(&ReportSource::of_mesh(), TrafficReport { reporter: 7, ..all }, 0);
        assert!(above.sum_of_all(0).is_incomplete(&other), "all the way up");

        // Each report has room for the names of all its services.
        let mut above = ReportSums::new(SumLimits::TREE);
        for (reporter, prefix) in [(1, "a"), (2, "b")] {
            let incomplete = named(prefix, MAX_INCOMPLETE_SERVICES - 1).collect();
            above.record(
                &ReportSource::of_mesh(),
                TrafficReport { incomplete, ..report(reporter, "eu", 1) },
                0,
            );
        }
        assert!(!above.sum_of_all(0).is_incomplete(&other));
        assert!(bound(above.sum_of_all(0)).is_incomplete(&other), "their sum has not");

        let mut no_room = sums(10, 1);
        let incomplete = named("c", MAX_INCOMPLETE_SERVICES + 1).collect();
        assert_eq!(
            no_room.record(&ReportSource::of_mesh(), TrafficReport { incomplete, ..report(1, "eu", 1) }, 0),
            Taken::Full
        );
        assert!(no_room.sum_of_all(0).is_incomplete(&other), "of a report that is not taken");
        assert!(!no_room.sum_of_all(60_500).is_incomplete(&other), "until it would be void");
    }

    #[test]
    fn traffic_reporters_and_rows_are_bounded() {
        let mut few = sums(2, 100);
        assert_eq!(
            [1, 2, 3, 2].map(|reporter| few.record(&ReportSource::of_mesh(), report(reporter, "eu", 1), 0)),
            [Taken::Kept, Taken::Kept, Taken::Full, Taken::Kept]
        );
        let cart = ServiceName::new("shop/cart").unwrap();
        assert_eq!(
            bound(few.sum_of_all(0)).incomplete,
            [cart].into(),
            "of what is not taken, the service is known"
        );
        assert!(bound(few.sum_of_all(3_500)).incomplete.is_empty(), "until it would be void");
        assert_eq!(
            few.record(&ReportSource::of_mesh(), report(3, "eu", 1), 5_000),
            Taken::Kept,
            "the others are void"
        );
        let mut small = sums(10, 3);
        assert_eq!(small.record(&ReportSource::of_mesh(), report(1, "eu", 1), 0), Taken::Kept);
        assert_eq!(small.record(&ReportSource::of_mesh(), report(2, "eu", 1), 0), Taken::Full, "four rows");
        small.record(&ReportSource::of_mesh(), TrafficReport { reporter: 2, ..TrafficReport::default() }, 0);
        assert_eq!((small.reporters(), small.rows.used()), (1, 2), "a report of nothing takes no room");
        small.record(&ReportSource::of_mesh(), TrafficReport { reporter: 1, ..TrafficReport::default() }, 0);
        assert_eq!((small.reporters(), small.rows.used()), (0, 0), "and makes some");
    }

    #[test]
    fn served_call_rows_without_room_do_not_affect_rest_of_report() {
        let (cart, mut sums) = (ServiceName::new("shop/cart").unwrap(), sums(10, 4));
        let with = |reporter, buckets| TrafficReport {
            served: served(&cart, buckets).collect(),
            ..report(reporter, "eu", 5)
        };
        let taken = [with(1, 2), with(2, 2), with(1, 2)]
            .map(|report| sums.record(&ReportSource::of_mesh(), report, 0));
        assert_eq!(taken, [Taken::Kept; 3]);
        let sum = bound(sums.sum_of_all(0));
        assert_eq!((offered(&mut sums, 0), sum.served.len(), sum.left_out), (10, 2, 0));
        assert!(sum.incomplete.is_empty(), "{:?}", sum.incomplete);
        sums.record(&ReportSource::of_mesh(), report(1, "eu", 5), 0);
        sums.record(&ReportSource::of_mesh(), with(2, 1), 0);
        assert_eq!(
            (bound(sums.sum_of_all(0)).served.len(), sums.served.used()),
            (1, 1),
            "the room of the others is free again"
        );
        sums.expire(60_000);
        assert_eq!((sums.rows.used(), sums.served.used()), (0, 0));
    }

    #[test]
    fn excess_served_call_rows_lose_utilisation_then_whole_services() {
        let rows = |services, buckets| -> BTreeMap<_, _> {
            let names: Vec<_> = named("s", services).collect();
            names.iter().flat_map(|name| served(name, buckets).collect::<Vec<_>>()).collect()
        };
        assert_eq!(bound_served(rows(409, 10)), rows(409, 10));
        let merged = bound_served(rows(410, 10));
        assert_eq!(merged.len(), 410);
        assert!(merged.iter().all(|(path, sum)| path.bucket.is_none() && sum.calls == 10));
        let mut cut = rows(MAX_SERVED_PATHS, 1);
        let last = cut.keys().next_back().unwrap().clone();
        let other = ServedPath { region: Region::new("us").unwrap(), ..last.clone() };
        cut.insert(other, ServedRates::default());
        let kept = bound_served(cut);
        assert_eq!(kept.len(), MAX_SERVED_PATHS - 1, "half of the last service would read as fewer calls");
        assert!(kept.keys().all(|path| path.node.service != last.node.service));
    }
}
