//! Reported work by shard, averaged over about the last minute. Pure: callers pass `now`.
//!
//! Windows are kept in memory only: after a restart the control plane refills them within seconds, and plans need no
//! history. At most [`MAX_REPORTED_SHARDS`] shards of a server and [`MAX_SERVERS`] servers are tracked separately. A
//! map of millions of shards therefore costs no more than a map of thousands.

use std::collections::{BTreeMap, HashMap};

use fairmesh_model::{InstanceId, Invalid, MAX_REPORTED_SHARDS, Role, ServiceName, ShardId};

use super::region_pool::Work;
use crate::{InstanceClaim, InstanceRef};

/// Maximum number of servers with a load window: about 100 MB at worst, with [`MAX_REPORTED_SHARDS`] shards each.
pub(super) const MAX_SERVERS: usize = 20_000;
/// Time without a report after which a server's load is unknown. Servers report every 10 s.
pub(super) const SILENT_MS: u64 = 45_000;
/// Time without a report after which the window is dropped.
const FORGOTTEN_MS: u64 = 600_000;
/// Time constant of the decay: after a minute of new reports, older ones weigh about a third.
const DECAY_MS: u64 = 60_000;
/// Longest period that a report may cover.
const MAX_PERIOD_MS: u32 = 60_000;
/// Maximum concurrent calls of one server. Reports with more are refused.
const MAX_IN_FLIGHT: u64 = 1_000_000;
/// Maximum calls per second of one server. Reports with more are refused.
const MAX_CALLS: u64 = 10_000_000;

/// One server's report of its calls with shard keys in one period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Sequence number of the report within its process, from 1.
    pub sequence: u64,
    /// The length of the period, in milliseconds; 1 to 60,000.
    pub period_ms: u32,
    /// The shards with the most work, at most [`MAX_REPORTED_SHARDS`].
    pub shards: Vec<ShardWork>,
    /// Total duration of calls for all other shards, in microseconds.
    pub rest_us: u64,
    /// Number of all calls in the period.
    pub calls: u64,
}

/// Calls for the keys of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardWork {
    /// The shard.
    pub shard: ShardId,
    /// The role in which the server handled them.
    pub role: Role,
    /// Total duration of the calls, in microseconds.
    pub busy_us: u64,
}

impl LoadReport {
    /// Checks that the values are possible.
    pub fn validate(&self) -> Result<(), Invalid> {
        let absurd = |field: &str, problem: String| Err(Invalid::new(field, problem, "send measured values"));
        let Self { sequence, period_ms, shards, rest_us, calls } = self;
        if *sequence == 0 {
            return absurd("sequence", "0 is not a sequence number".into());
        }
        if !(1..=MAX_PERIOD_MS).contains(period_ms) {
            return absurd("period_ms", format!("{period_ms} is not within 1 to {MAX_PERIOD_MS}"));
        }
        if shards.len() > MAX_REPORTED_SHARDS {
            return absurd("shards", format!("there are {}, more than {MAX_REPORTED_SHARDS}", shards.len()));
        }
        let busy = shards.iter().fold(*rest_us, |sum, shard| sum.saturating_add(shard.busy_us));
        let period_us = u64::from(*period_ms) * 1000;
        if busy > period_us * MAX_IN_FLIGHT || *calls > period_us * MAX_CALLS / 1_000_000 {
            return absurd("shards", format!("{calls} calls took {busy} µs within {period_us} µs"));
        }
        Ok(())
    }
}

/// The outcome of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportOutcome {
    /// The report was recorded.
    Counted,
    /// A newer report of the same process, or of its successor, arrived earlier.
    Late,
    /// The server is not registered, or the report comes from another process than the registered one.
    Unknown,
    /// The values are impossible.
    Absurd,
    /// The maximum number of servers is reached.
    Full,
}

impl ReportOutcome {
    /// Every outcome, in the order of `Counts`.
    pub const ALL: [Self; 5] = [Self::Counted, Self::Late, Self::Unknown, Self::Absurd, Self::Full];

    /// The label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counted => "counted",
            Self::Late => "late",
            Self::Unknown => "unknown",
            Self::Absurd => "invalid",
            Self::Full => "full",
        }
    }
}

/// Work per second of one server, measured on its own host.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadWindow {
    incarnation: u64,
    sequence: u64,
    received_ms: u64,
    pub(super) shards: HashMap<(ShardId, Role), Work>,
    pub(super) rest: Work,
    /// Calls per thousand seconds.
    pub(super) calls: u64,
}

impl LoadWindow {
    /// The age of the last report.
    pub(super) fn age_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.received_ms)
    }

    /// Averages a report into the window. The first report, or the first after a gap, replaces the window.
    fn add(&mut self, report: &LoadReport, now_ms: u64) {
        let period = u64::from(report.period_ms);
        let fresh = self.sequence == 0 || self.age_ms(now_ms) > SILENT_MS;
        let decay = if fresh { 0 } else { DECAY_MS };
        // The old value weighs `decay`, the new value `period`.
        let average = |old: u64, new_sum: u64, scale: u64| {
            let new = u128::from(new_sum) * u128::from(scale);
            let all = (u128::from(old) * u128::from(decay) + new) / u128::from(decay + period);
            u64::try_from(all).unwrap_or(u64::MAX)
        };
        self.shards.values_mut().for_each(|work| *work = average(*work, 0, 0));
        for shard in &report.shards {
            let work = self.shards.entry((shard.shard, shard.role.clone())).or_default();
            *work = work.saturating_add(average(0, shard.busy_us, 1000));
        }
        self.rest = average(self.rest, report.rest_us, 1000);
        self.calls = average(self.calls, report.calls, 1_000_000);
        (self.sequence, self.received_ms) = (report.sequence, now_ms);
        self.keep_largest();
    }

    /// Keeps the shards with the most work, and adds the work of the others to the rest.
    fn keep_largest(&mut self) {
        self.shards.retain(|_, work| *work > 0);
        if self.shards.len() <= MAX_REPORTED_SHARDS {
            return;
        }
        let mut all: Vec<_> = std::mem::take(&mut self.shards).into_iter().collect();
        all.sort_unstable_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        let rest: Work = all.drain(MAX_REPORTED_SHARDS..).map(|(_, work)| work).sum();
        self.rest = self.rest.saturating_add(rest);
        self.shards = all.into_iter().collect();
    }
}

/// The windows of all services.
#[derive(Debug, Default)]
pub(crate) struct LoadWindows {
    services: BTreeMap<ServiceName, BTreeMap<InstanceId, LoadWindow>>,
    servers: usize,
    counts: [u64; 5],
}

impl LoadWindows {
    /// Records a report of a registered server.
    pub(super) fn add(&mut self, claim: &InstanceClaim, report: &LoadReport, now_ms: u64) -> ReportOutcome {
        if report.validate().is_err() {
            return ReportOutcome::Absurd;
        }
        let InstanceRef { service, instance } = &claim.instance;
        let known = self.services.get(service).is_some_and(|servers| servers.contains_key(instance));
        if !known && self.servers >= MAX_SERVERS {
            self.drop_silent(now_ms);
            if self.servers >= MAX_SERVERS {
                return ReportOutcome::Full;
            }
        }
        self.servers += usize::from(!known);
        let window = self.services.entry(service.clone()).or_default().entry(instance.clone()).or_default();
        if window.incarnation == claim.incarnation && report.sequence <= window.sequence {
            return ReportOutcome::Late;
        }
        if window.incarnation != claim.incarnation {
            *window = LoadWindow { incarnation: claim.incarnation, ..LoadWindow::default() };
        }
        window.add(report, now_ms);
        ReportOutcome::Counted
    }

    /// Counts the outcome of a report.
    pub(super) fn count(&mut self, taken: ReportOutcome) {
        self.counts[taken as usize] += 1;
    }

    /// Returns the number of reports by outcome.
    pub(super) fn counts(&self) -> [(ReportOutcome, u64); 5] {
        std::array::from_fn(|at| (ReportOutcome::ALL[at], self.counts[at]))
    }

    /// Returns the number of servers with a recent report, and of servers without one.
    pub(super) fn servers(&self, now_ms: u64) -> (usize, usize) {
        let all = self.services.values().flat_map(BTreeMap::values);
        let silent = all.filter(|window| window.age_ms(now_ms) > SILENT_MS).count();
        (self.servers - silent, silent)
    }

    /// Returns the windows of a service by instance.
    pub(super) fn of(&self, service: &ServiceName) -> BTreeMap<InstanceId, LoadWindow> {
        self.services.get(service).cloned().unwrap_or_default()
    }

    /// Drops the window of a server.
    pub(crate) fn forget(&mut self, instance: &InstanceRef) {
        let Some(servers) = self.services.get_mut(&instance.service) else { return };
        self.servers -= usize::from(servers.remove(&instance.instance).is_some());
        if servers.is_empty() {
            self.services.remove(&instance.service);
        }
    }

    fn drop_silent(&mut self, now_ms: u64) {
        for servers in self.services.values_mut() {
            servers.retain(|_, window| window.age_ms(now_ms) <= FORGOTTEN_MS);
        }
        self.services.retain(|_, servers| !servers.is_empty());
        self.servers = self.services.values().map(BTreeMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(instance: &str, incarnation: u64) -> InstanceClaim {
        InstanceClaim { instance: crate::testing::instance_ref(instance), incarnation }
    }

    /// A report of ten seconds, with calls for shard 7 that took `busy_us`.
    fn report(sequence: u64, busy_us: u64) -> LoadReport {
        let work = ShardWork { shard: ShardId(7), role: "primary".parse().unwrap(), busy_us };
        LoadReport { sequence, period_ms: 10_000, shards: vec![work], rest_us: 1_000_000, calls: 500 }
    }

    fn work(windows: &LoadWindows, shard: u32) -> Option<Work> {
        let window = &windows.of(&crate::testing::cart())["a"];
        window.shards.get(&(ShardId(shard), "primary".parse().unwrap())).copied()
    }

    #[test]
    fn first_shard_load_report_counts_fully_and_later_ones_are_averaged() {
        let mut windows = LoadWindows::default();
        let mut take = |sequence, busy_us, now_ms| {
            let taken = windows.add(&claim("a", 1), &report(sequence, busy_us), now_ms);
            assert_eq!(taken, ReportOutcome::Counted);
            work(&windows, 7)
        };
        assert_eq!(take(1, 7_000_000, 0), Some(700_000));
        // 60 s of the old window and 10 s of the new report.
        assert_eq!(take(2, 0, 10_000), Some(600_000));
        assert_eq!(take(3, 14_000_000, 20_000), Some(714_285));
        // After a gap, older reports do not count.
        assert_eq!(take(4, 1_000_000, 20_000 + SILENT_MS + 1), Some(100_000));
    }

    #[test]
    fn late_and_impossible_shard_load_reports_are_ignored() {
        let mut windows = LoadWindows::default();
        let mut take = |incarnation, report: &LoadReport| windows.add(&claim("a", incarnation), report, 0);
        assert_eq!(take(1, &report(2, 7_000_000)), ReportOutcome::Counted);
        assert_eq!(take(1, &report(2, 0)), ReportOutcome::Late);
        assert_eq!(take(1, &report(1, 0)), ReportOutcome::Late);
        let too_long = LoadReport { period_ms: 3_600_000, ..report(3, 0) };
        let too_much = report(3, u64::MAX);
        let too_many = LoadReport {
            shards: vec![report(3, 1).shards[0].clone(); MAX_REPORTED_SHARDS + 1],
            ..report(3, 0)
        };
        for absurd in [&too_long, &too_much, &too_many, &report(0, 0)] {
            assert_eq!(take(1, absurd), ReportOutcome::Absurd, "{absurd:?}");
        }
        assert_eq!(work(&windows, 7), Some(700_000));
        // A new process under the same name starts a new window.
        assert_eq!(windows.add(&claim("a", 2), &report(1, 0), 0), ReportOutcome::Counted);
        assert_eq!(work(&windows, 7), None);
    }

    #[test]
    fn shards_beyond_load_report_limit_are_counted_together() {
        let mut windows = LoadWindows::default();
        let shards = |from: u32| {
            let one = |shard| ShardWork {
                shard: ShardId(shard),
                role: "primary".parse().unwrap(),
                busy_us: 1_000_000 + u64::from(shard),
            };
            (from..from + u32::try_from(MAX_REPORTED_SHARDS).unwrap()).map(one).collect()
        };
        let first = LoadReport { shards: shards(0), ..report(1, 0) };
        let next = LoadReport { shards: shards(1000), ..report(2, 0) };
        windows.add(&claim("a", 1), &first, 0);
        windows.add(&claim("a", 1), &next, 10_000);
        let window = &windows.of(&crate::testing::cart())["a"];
        assert_eq!(window.shards.len(), MAX_REPORTED_SHARDS);
        assert_eq!(work(&windows, 3), Some(85_714), "a minute ago they had more than the new ones have yet");
        // The rest of both reports, plus the new shards beyond the limit: they had 10 s of the 70 s.
        assert!(window.rest > 100_000 + 128 * 14_000, "{}", window.rest);
    }

    #[test]
    fn shard_load_windows_are_bounded_in_number_of_servers() {
        let mut windows = LoadWindows::default();
        for server in 0..MAX_SERVERS {
            assert_eq!(
                windows.add(&claim(&format!("s{server}"), 1), &report(1, 0), 0),
                ReportOutcome::Counted
            );
        }
        assert_eq!(windows.add(&claim("more", 1), &report(1, 0), 0), ReportOutcome::Full);
        assert_eq!(windows.add(&claim("s5", 1), &report(2, 0), FORGOTTEN_MS + 1), ReportOutcome::Counted);
        assert_eq!(windows.add(&claim("more", 1), &report(1, 0), FORGOTTEN_MS + 1), ReportOutcome::Counted);
        assert_eq!(windows.servers(FORGOTTEN_MS + 1), (2, 0));
        windows.forget(&crate::testing::instance_ref("more"));
        assert_eq!(windows.servers(FORGOTTEN_MS + 1), (1, 0));
    }
}
