//! Reports of calls and servers. A process sends a report for itself, or the sum of the reports that it receives.
//!
//! All numbers are rates over the reporting process's interval. Rates of processes add up even if their intervals
//! differ, and a lost or repeated report has no effect once the next one arrives. Counter totals and counts by
//! interval were rejected: each loss, repetition and restart becomes a spike.
//!
//! The age of a sum is the mean age of its data, weighted by amount. The maximum age was rejected: one hanging
//! program would make its whole region look outdated.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::AddAssign,
    time::Duration,
};

use crate::{Label, Region, ServiceName, Tenant, Zone};

/// Maximum number of call paths in a report.
pub const MAX_CALL_PATHS: usize = 4_096;
/// Maximum number of server groups in a report.
pub const MAX_SERVER_GROUPS: usize = 1_024;
/// Maximum number of regions in a report.
pub const MAX_REPORTED_REGIONS: usize = 256;

/// Maximum number of services that a report can name as incomplete. A report with this many may have omitted further
/// ones.
pub const MAX_INCOMPLETE_SERVICES: usize = 1_024;

/// Maximum number of tenants that a report can name as incomplete.
pub const MAX_INCOMPLETE_TENANTS: usize = 1_024;

/// Maximum number of processes that a report names for calls without a calling service. With this many, there may be more.
pub const MAX_CALLING_PROCESSES: usize = 4;

/// Maximum rate in a report: a billion per second, in thousandths. Sums are capped at this rate, so that the receiver
/// accepts every sum.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// The report of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrafficReport {
    /// Random number of the process, equal in all its reports.
    pub reporter: u64,
    /// Time until the next report. The report expires after a few intervals.
    pub interval: Duration,
    /// Regions of all covered processes. A listed region without calls is known to have none.
    pub regions: BTreeSet<Region>,
    /// Calls to planned or watched services.
    pub calls: BTreeMap<CallPath, CallRates>,
    /// Processes that make calls without a calling service, by called service and their region, as they name themselves.
    pub processes: BTreeMap<(ServiceName, Region), BTreeSet<String>>,
    /// Servers, by service and region.
    pub servers: BTreeMap<(ServiceName, Region), ServerRates>,
    /// Calls that servers processed.
    pub served: BTreeMap<ServedPath, ServedRates>,
    /// Paths and groups that did not fit into this report or into the summed reports.
    pub left_out: u32,
    /// Services whose data is incomplete because paths or groups are missing.
    pub incomplete: BTreeSet<ServiceName>,
    /// Tenants of which any service's data may be incomplete, because further incomplete services did not fit.
    pub incomplete_tenants: BTreeSet<Tenant>,
    /// Whether any service's data may be incomplete, because further incomplete services did not fit.
    pub all_incomplete: bool,
}

impl TrafficReport {
    /// Whether a service's data may be incomplete.
    pub fn is_incomplete(&self, service: &ServiceName) -> bool {
        let is_named = self.incomplete.contains(service) || self.incomplete_tenants.contains(&service.tenant);
        self.all_incomplete || is_named
    }
}

/// A node of the call graph: calls of one class to one service (SLATE, 3.2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNode {
    /// The called service.
    pub service: ServiceName,
    /// The traffic class of the calls; `None` for calls without a class.
    pub class: Option<Label>,
}

/// Source and destination of calls, and further properties by which calls are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallPath {
    /// The called service.
    pub service: ServiceName,
    /// The region of the callers.
    pub from: Region,
    /// The servers' region; `None` if no server was picked.
    pub to: Option<Region>,
    /// The traffic class set by the call's route.
    pub class: Option<Label>,
    /// The calling service, if known.
    pub caller: Option<ServiceName>,
    /// The callers' zone, for services that prefer zones.
    pub from_zone: Option<Zone>,
    /// The servers' zone, for services that prefer zones and servers in the callers' region.
    pub to_zone: Option<Zone>,
    /// The node of the call during which these calls were made, if known: the service that processed it, and its
    /// class there.
    pub parent: Option<CallNode>,
}

/// Rates of calls on one path: thousandths per second, unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallRates {
    /// Calls, counted by their first attempt, or without any attempt.
    pub offered: u64,
    /// Attempts, including retries and hedged attempts.
    pub attempts: u64,
    /// Attempts with a response.
    pub answered: u64,
    /// Attempts that servers refused because of overload. For paths without a destination, calls that a table
    /// dropped.
    pub shed: u64,
    /// Sum of the time until responses began, in microseconds per second.
    pub time_us: u64,
    /// Bytes of response bodies, per second.
    pub bytes: u64,
    /// Bytes of request bodies, per second. Bodies of unknown length count as empty.
    pub request_bytes: u64,
    /// Summed age of the data; see [`Self::age`].
    pub aged: SummedAge,
}

/// A sum of ages in milliseconds, each weighted by the amount of its data. The mean age is this sum divided by the
/// total amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummedAge(u64);

/// Number of entries of [`ServerRates::by_utilisation`]: twentieths of the CPU limit.
pub const UTILISATION_LEVELS: usize = 20;

/// Rates of the servers of one service in one region.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerRates {
    /// Number of servers.
    pub servers: u32,
    /// Number of servers that count calls.
    pub counting: u32,
    /// Calls received, including refused calls, in thousandths per second.
    pub received: u64,
    /// Calls refused because of overload, in thousandths per second.
    pub refused: u64,
    /// Number of servers with known CPU usage and limit.
    pub measured: u32,
    /// CPU usage of the measured servers, in thousandths of a core.
    pub cpu_millicores: u64,
    /// CPU limits of the measured servers, in thousandths of a core.
    pub limit_millicores: u64,
    /// Number of servers by utilisation of their CPU limit, a mean over about ten seconds: entry `n` counts servers at
    /// `n` to `n + 1` parts of [`UTILISATION_LEVELS`], and the last entry also all higher values. Servers of earlier
    /// releases are in no entry.
    pub by_utilisation: [u32; UTILISATION_LEVELS],
    /// Metrics of the program, by name.
    pub metrics: BTreeMap<String, MetricSum>,
    /// Summed age of the data; see [`Self::age`].
    pub aged: SummedAge,
}

/// Number of utilisation buckets in [`ServedPath`]: tenths of the limit. The last bucket also has all higher values
/// (SLATE, 4.2).
pub const UTILISATION_BUCKETS: u8 = 10;
/// Maximum number of rows of processed calls in a report.
pub const MAX_SERVED_PATHS: usize = 4_096;

/// Calls that servers in one region processed at about the same utilisation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServedPath {
    /// The service, and the class that its servers determined from the routes of its policy.
    pub node: CallNode,
    /// The region of the servers.
    pub region: Region,
    /// Utilisation at the end of the calls, in tenths of the CPU limit, below [`UTILISATION_BUCKETS`]; `None` if
    /// unknown.
    pub bucket: Option<u8>,
}

/// Rates of the calls on one [`ServedPath`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServedRates {
    /// Calls whose response began, in thousandths per second.
    pub calls: u64,
    /// Exclusive time: the time until responses began without the time in which child calls were in flight, in
    /// microseconds per second.
    pub exclusive_us: u64,
}

/// The sum of one metric over servers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MetricSum {
    /// The sum; not necessarily finite.
    pub sum: f64,
    /// Number of servers that report the metric.
    pub servers: u32,
}

/// Maximum recorded age. Older data is useless.
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
        // Without data, the age is zero.
        let mean = self.0.checked_div(amount).unwrap_or_default();
        Duration::from_millis(mean).min(MAX_REPORT_AGE)
    }
}

impl CallRates {
    /// Mean age of the data, weighted by [`Self::offered`] and [`Self::attempts`].
    pub fn age(&self) -> Duration {
        self.aged.mean(self.amount())
    }

    /// Increases the age of the data by `by`.
    pub fn grow_older(&mut self, by: Duration) {
        self.aged.grow_older(by, self.amount());
    }

    fn amount(&self) -> u64 {
        self.offered.saturating_add(self.attempts)
    }
}

impl ServerRates {
    /// Maximum number of metrics of a program.
    pub const MAX_METRICS: usize = 8;

    /// Mean time since the servers' counters were read.
    pub fn age(&self) -> Duration {
        self.aged.mean(self.servers.into())
    }

    /// Increases the age of the data by `by`.
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
        add(&mut self.request_bytes, other.request_bytes);
        self.aged.add(other.aged);
    }
}

impl AddAssign for ServedRates {
    fn add_assign(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls).min(MAX_RATE);
        self.exclusive_us = self.exclusive_us.saturating_add(other.exclusive_us);
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
        for (sum, more) in self.by_utilisation.iter_mut().zip(other.by_utilisation) {
            *sum = sum.saturating_add(more);
        }
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
