//! Reports of calls and servers, as one process sends them for itself or as the sum of those below it.
//!
//! All numbers are rates over the interval of the counting process. Rates of processes add up whenever each of them began and
//! ended its interval, and a report that is lost or sent twice changes nothing once the next one arrives. Growing
//! counters and counts of an interval were rejected: each loss, repetition and restart on the way becomes a spike.
//!
//! Sums have the mean age of their data, weighted by what they are of. The greatest age was rejected: one program that
//! hangs would make the data of its whole region look old.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
    time::Duration,
};

use crate::{Label, Region, ServiceName, Zone};

/// The most paths of calls in a report.
pub const MAX_CALL_PATHS: usize = 4_096;
/// The most groups of servers in a report.
pub const MAX_SERVER_GROUPS: usize = 1_024;
/// The most regions of a report.
pub const MAX_REPORTED_REGIONS: usize = 256;

/// The most services that a report names as incomplete. One that names as many had no room for further names.
pub const MAX_INCOMPLETE_SERVICES: usize = 1_024;

/// The largest rate of a report: a billion per second, in thousandths. Sums stay at it, so that a process above takes the sum
/// of all that it would take one by one.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// What one process reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficReport {
    /// A random number of the process, the same in all its reports.
    pub reporter: u64,
    /// The time until its next report: this one is void after a few of them.
    pub interval: Duration,
    /// The regions of all processes that it is of. One that is named and has no calls has none.
    pub regions: BTreeSet<Region>,
    /// Calls of services that are planned for.
    pub calls: BTreeMap<CallPath, CallRates>,
    /// Servers, by service and region.
    pub servers: BTreeMap<(ServiceName, Region), ServerRates>,
    /// Paths and groups that had no room, in this report or in those that it is the sum of.
    pub left_out: u32,
    /// The services of which these are: what is reported of them is not all.
    pub incomplete: BTreeSet<ServiceName>,
    /// Whether there are further ones, whose names had no room: of any service, what is reported may not be all.
    pub all_incomplete: bool,
}

impl TrafficReport {
    /// Whether what is reported of a service may not be all.
    pub fn is_incomplete(&self, service: &ServiceName) -> bool {
        self.all_incomplete || self.incomplete.contains(service)
    }
}

/// Where calls come from and go to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallPath {
    /// The called service.
    pub service: ServiceName,
    /// The region of the callers.
    pub from: Region,
    /// The region of the servers; `None` of calls for which no server was picked.
    pub to: Option<Region>,
    /// The traffic class that the route of the call sets.
    pub class: Option<Label>,
    /// The calling service, if the callers are one.
    pub caller: Option<ServiceName>,
    /// The zone of the callers, of services that prefer it.
    pub from_zone: Option<Zone>,
    /// The zone of the servers, of such services and where the servers are of the callers' region.
    pub to_zone: Option<Zone>,
}

/// Calls of one path: thousandths per second, unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRates {
    /// Calls by their first attempt, or without any.
    pub offered: u64,
    /// Attempts, retries and hedges included.
    pub attempts: u64,
    /// Attempts with a response.
    pub answered: u64,
    /// Attempts that servers refused because of overload; without a destination, calls that a table dropped.
    pub shed: u64,
    /// Time until responses began, in microseconds per second.
    pub time_us: u64,
    /// Bytes of the bodies of responses, per second. Those of requests are not counted.
    pub bytes: u64,
    /// The age of the data, see [`Self::age`].
    pub aged: SummedAge,
}

/// Ages in milliseconds, each times the amount of the data that has it: a sum, from which a mean follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummedAge(u64);

/// The servers of one service and region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerRates {
    /// Number of servers.
    pub servers: u32,
    /// Those of them that count calls.
    pub counting: u32,
    /// Calls that arrived, in thousandths per second, with those that were refused.
    pub received: u64,
    /// Calls refused because of overload, in thousandths per second.
    pub refused: u64,
    /// Those of the servers whose CPU and limit are known.
    pub measured: u32,
    /// CPU in use, in thousandths of a core, of those.
    pub cpu_millicores: u64,
    /// Their limits.
    pub limit_millicores: u64,
    /// Metrics of the program, by name.
    pub metrics: BTreeMap<String, MetricSum>,
    /// The age of the data, see [`Self::age`].
    pub aged: SummedAge,
}

/// The sum of one metric.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricSum {
    /// The sum; not necessarily a sensible number.
    pub sum: f64,
    /// The servers that report it.
    pub servers: u32,
}

/// The greatest age that is told apart from a greater one: data of this age is of no use.
pub const MAX_REPORT_AGE: Duration = Duration::from_secs(600);

impl SummedAge {
    fn grow_older(&mut self, by: Duration, amount: u64) {
        let by = u64::try_from(by.min(MAX_REPORT_AGE).as_millis()).unwrap_or(u64::MAX);
        self.add(Self(by.saturating_mul(amount)));
    }

    fn add(&mut self, other: Self) {
        self.0 = self.0.saturating_add(other.0);
    }

    fn mean(self, amount: u64) -> Duration {
        // Nothing is of no age.
        let mean = self.0.checked_div(amount).unwrap_or_default();
        Duration::from_millis(mean).min(MAX_REPORT_AGE)
    }
}

impl CallRates {
    /// The time since the counting of these calls ended, as a mean over [`Self::offered`] and [`Self::attempts`].
    pub fn age(&self) -> Duration {
        self.aged.mean(self.amount())
    }

    /// Notes that these rates were kept for some time.
    pub fn grow_older(&mut self, by: Duration) {
        self.aged.grow_older(by, self.amount());
    }

    fn amount(&self) -> u64 {
        self.offered.saturating_add(self.attempts)
    }
}

impl ServerRates {
    /// The most metrics of a program.
    pub const MAX_METRICS: usize = 8;

    /// The time since the counters of these servers were read, as a mean over them.
    pub fn age(&self) -> Duration {
        self.aged.mean(self.servers.into())
    }

    /// Notes that these rates were kept for some time.
    pub fn grow_older(&mut self, by: Duration) {
        self.aged.grow_older(by, self.servers.into());
    }
}

impl AddAssign for CallRates {
    fn add_assign(&mut self, other: Self) {
        let rate = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more).min(MAX_RATE);
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        rate(&mut self.offered, other.offered);
        rate(&mut self.attempts, other.attempts);
        rate(&mut self.answered, other.answered);
        rate(&mut self.shed, other.shed);
        add(&mut self.time_us, other.time_us);
        add(&mut self.bytes, other.bytes);
        self.aged.add(other.aged);
    }
}

impl AddAssign<&Self> for ServerRates {
    fn add_assign(&mut self, other: &Self) {
        let rate = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more).min(MAX_RATE);
        self.servers = self.servers.saturating_add(other.servers);
        self.counting = self.counting.saturating_add(other.counting);
        self.measured = self.measured.saturating_add(other.measured);
        rate(&mut self.received, other.received);
        rate(&mut self.refused, other.refused);
        rate(&mut self.cpu_millicores, other.cpu_millicores);
        rate(&mut self.limit_millicores, other.limit_millicores);
        self.aged.add(other.aged);
        for (name, more) in &other.metrics {
            if self.metrics.len() < Self::MAX_METRICS || self.metrics.contains_key(name) {
                let sum = self.metrics.entry(name.clone()).or_default();
                sum.sum = (sum.sum + more.sum).min(f64::MAX);
                sum.servers = sum.servers.saturating_add(more.servers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_a_sum_is_the_mean_over_its_calls() {
        let calls = |offered, age_ms| {
            let mut rates = CallRates { offered, attempts: offered, ..CallRates::default() };
            rates.grow_older(Duration::from_millis(age_ms));
            rates
        };
        let mut sum = calls(3_000, 100);
        sum += calls(1_000, 3_100);
        assert_eq!(sum.age(), Duration::from_millis(850));
        sum.grow_older(Duration::from_millis(150));
        assert_eq!(sum.age(), Duration::from_secs(1));
        sum.grow_older(Duration::MAX);
        assert_eq!(sum.age(), MAX_REPORT_AGE);
        let mut none = CallRates::default();
        none.grow_older(Duration::from_secs(5));
        assert_eq!((none, none.age()), (CallRates::default(), Duration::ZERO), "no calls have no age");
    }

    #[test]
    fn a_server_that_hangs_makes_those_beside_it_little_older() {
        let mut sum = ServerRates { servers: 99, ..ServerRates::default() };
        let mut hanging = ServerRates { servers: 1, ..ServerRates::default() };
        hanging.grow_older(Duration::from_secs(20));
        sum += &hanging;
        assert_eq!(sum.age(), Duration::from_millis(200));
    }
}
