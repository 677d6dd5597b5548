//! Board of the latest loads of all gateway replicas, and the overload alerts of their backends.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use fairmesh_model::{Label, ServiceName};

use crate::{
    cause::{Cause, Evidence, served},
    crashes::{CRASHED_FOR, Crashed},
    limited_services::{Limited, LimitedServices},
    replica_report::{EntryLoad, MAX_SERVICES, Report},
    trend::{Frozen, ServiceTrend, Trend, per_second},
};

/// How often a replica reports, if there are [`REPORTS_PER_SECOND`] replicas or fewer.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// The most reports in a second. Each takes tens of microseconds, and the lock of the board: more replicas report less often, since an
/// overload that lasts is worth its relief ten seconds late too.
pub const REPORTS_PER_SECOND: u32 = 200;
/// The share of its CPU limit from which on a backend has an alert.
pub const ALERT_LEVEL: f64 = 0.8;
/// CPU utilisation below which an alert ends. Hysteresis: a load that oscillates around [`ALERT_LEVEL`] does not toggle
/// the alert.
pub const SAFE_LEVEL: f64 = 0.6;
/// Maximum number of tracked replicas. Reports of further replicas are dropped.
pub const MAX_REPLICAS: usize = 2_000;
/// How many times its usual rate a service gets of new connections while it is limited: its own callers connect again meanwhile.
const LIMIT_OF_USUAL: f64 = 2.0;
/// The least limit of new connections a second, for services that are usually quiet.
const LEAST_LIMIT: u32 = 5;
/// When a replica that is left out reports again.
const LEFT_OUT_INTERVAL: Duration = Duration::from_mins(1);
/// A replica that has missed so many reports counts no more.
const MISSED_REPORTS: u32 = 3;
/// The time that a report may take in addition: its time limit, and a pause of a replica that lacks CPU.
const REPORT_TAKES: Duration = Duration::from_secs(3);
/// What was usual for a silent replica is kept for so long. A replica that lacks CPU reports late, and others get its calls meanwhile.
const KEPT_MS: u64 = 120_000;
/// The least rate of requests and connections at which a service had calls just before a crash: about one in the last ten seconds.
const CALLED_RATE: f64 = 0.005;
/// Minimum interval of a report. Shorter ones count as this long, since rates over tiny spans are meaningless.
const MIN_SPAN: Duration = Duration::from_millis(100);

/// Loads of all replicas of a gateway.
#[derive(Clone, Debug, Default)]
pub struct LoadBoard {
    replicas: BTreeMap<SocketAddr, Replica>,
    alerts: BTreeMap<Label, Alert>,
    limited: LimitedServices,
    /// Replicas that have ended without a word.
    crashes: BTreeMap<SocketAddr, Crash>,
    left_out: u64,
}

/// The end of a replica that did not say that it leaves.
#[derive(Clone, Debug)]
struct Crash {
    backend: Label,
    /// In monotonic milliseconds.
    at_ms: u64,
    /// The services that had calls just before.
    callers: BTreeSet<ServiceName>,
}

#[derive(Clone, Debug)]
struct Replica {
    backend: Option<Label>,
    since_ms: u64,
    at_ms: u64,
    /// The time until its next report, as it was told.
    interval: Duration,
    /// Cores in use, and the limit.
    cores: Trend,
    limit: Option<f64>,
    memory: u64,
    open: u64,
    accepted: Trend,
    /// Requests, errors and connections of all services.
    all: ServiceTrend,
    services: BTreeMap<ServiceName, ServiceTrend>,
    /// Whether its silence counts as a crash already.
    is_crashed: bool,
    entry: Option<EntryLoad>,
}

/// An alert: a backend uses too much of its CPU limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Start of the alert, in monotonic milliseconds.
    pub since_ms: u64,
    /// Cause of the overload, as far as it is known.
    pub cause: Cause,
}

/// Current load of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaLoad {
    /// Address at which nodes connect.
    pub address: SocketAddr,
    /// Backend of the replica. `None` if the replica serves all services.
    pub backend: Option<Label>,
    /// Time since the last report.
    pub age: Duration,
    /// Cores in use.
    pub cores: f64,
    /// CPU limit in cores. `None` if unknown.
    pub limit: Option<f64>,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Open connections.
    pub open: u64,
    /// Requests per second, over all services.
    pub requests: f64,
    /// Responses with a status of 4xx or 5xx per second, over all services.
    pub errors: f64,
    /// The address that the replicas of its backend share, if they do.
    pub entry: Option<EntryLoad>,
}

/// Sum of the live replicas of one backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackendLoad {
    /// Number of live replicas.
    pub replicas: usize,
    /// Time since the first report of the newest replica.
    pub known_for: Duration,
    /// Cores in use by the replicas with a known limit.
    pub cores: Trend,
    /// Sum of the known CPU limits, in cores.
    pub limit: f64,
    /// New connections per second.
    pub accepted: Trend,
    /// Sum over all services. `services` has only the busiest ones.
    pub all: ServiceTrend,
    /// Services with recent calls.
    pub services: BTreeMap<ServiceName, ServiceTrend>,
}

impl BackendLoad {
    /// Used share of the CPU limit. `None` if no limit is known.
    pub fn utilisation(&self) -> Option<f64> {
        (self.limit > 0.0).then(|| self.cores.recent / self.limit)
    }
}

impl LoadBoard {
    /// Adds a report, and returns the time until the replica's next report. Services beyond [`MAX_SERVICES`] in one
    /// report are ignored.
    pub fn exchange(&mut self, report: Report, now_ms: u64) -> Duration {
        if report.is_leaving {
            self.replicas.remove(&report.address);
            return INTERVAL;
        }
        if self.replicas.len() >= MAX_REPLICAS && !self.replicas.contains_key(&report.address) {
            self.left_out += 1;
            return LEFT_OUT_INTERVAL;
        }
        let is_alert = report.backend.as_ref().is_some_and(|backend| self.alerts.contains_key(backend));
        let before = self.replicas.remove(&report.address);
        self.note_restart(&report, before.as_ref(), now_ms);
        // A replica that moved to another backend starts without history.
        let before = before.filter(|before| before.backend == report.backend);
        let address = report.address;
        let mut replica = match before {
            Some(before) => before.take(report, now_ms, (is_alert, &self.limited)),
            None => Replica::first(report, now_ms),
        };
        replica.bound_usual(&self.limited);
        self.replicas.insert(address, replica);
        let interval = self.interval();
        if let Some(replica) = self.replicas.get_mut(&address) {
            replica.interval = interval;
        }
        interval
    }

    /// Sets the services whose connections are limited, from the next report on. Their usual rates of connections stay what they are until
    /// a minute after the limit: what a limit refuses is reported too, and an attack that goes on would become usual.
    pub fn set_limited(&mut self, limited: Limited, now_ms: u64) {
        self.limited.set(limited, now_ms);
        self.replicas.values_mut().for_each(|replica| replica.bound_usual(&self.limited));
    }

    /// How often each replica reports now: less often the more there are.
    pub fn interval(&self) -> Duration {
        let replicas = u32::try_from(self.replicas.len()).unwrap_or(u32::MAX);
        INTERVAL.max(INTERVAL * replicas / REPORTS_PER_SECOND)
    }

    /// Live replicas, ordered by address.
    pub fn replicas(&self, now_ms: u64) -> impl Iterator<Item = ReplicaLoad> {
        let live = self.replicas.iter().filter(move |(_, one)| one.is_live(now_ms));
        live.map(move |(address, one)| one.load(*address, now_ms))
    }

    /// Loads of backends by name. Replicas without a backend are left out.
    pub fn backends(&self, now_ms: u64) -> BTreeMap<Label, BackendLoad> {
        let mut backends = BTreeMap::<Label, BackendLoad>::new();
        for replica in self.replicas.values().filter(|one| one.is_live(now_ms)) {
            let Some(name) = &replica.backend else { continue };
            let sum = backends.entry(name.clone()).or_default();
            let known_for = Duration::from_millis(now_ms.saturating_sub(replica.since_ms));
            sum.known_for = if sum.replicas == 0 { known_for } else { sum.known_for.min(known_for) };
            sum.replicas += 1;
            if let Some(limit) = replica.limit {
                sum.cores += replica.cores;
                sum.limit += limit;
            }
            sum.accepted += replica.accepted;
            sum.all += replica.all;
            for (service, trend) in &replica.services {
                *sum.services.entry(service.clone()).or_default() += *trend;
            }
        }
        backends
    }

    /// Alerts by backend, as of the last [`review`](Self::review).
    pub fn alerts(&self) -> &BTreeMap<Label, Alert> {
        &self.alerts
    }

    /// The limit of new connections a second at each replica that leaves a service about twice what was usual, where it is busiest.
    pub fn connection_limit(&self, service: &ServiceName, now_ms: u64) -> u32 {
        let live = self.replicas.values().filter(|one| one.is_live(now_ms));
        let usual = live.filter_map(|one| Some(one.services.get(service)?.connections.usual));
        let most = (LIMIT_OF_USUAL * usual.fold(0.0, f64::max)).ceil();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast of floats saturates"
        )]
        let limit = most as u32;
        limit.max(LEAST_LIMIT)
    }

    /// Backends with a replica that ended without a word in the last [`CRASHED_FOR`], as of the last [`review`](Self::review). Each has
    /// the services with calls at every such replica just before; those that its reports did not list have none.
    pub fn crashed(&self) -> Crashed {
        let mut crashed = Crashed::new();
        for Crash { backend, callers, .. } in self.crashes.values() {
            let all = crashed.entry(backend.clone()).or_insert_with(|| callers.clone());
            all.retain(|service| callers.contains(service));
        }
        crashed
    }

    /// Reports that were left out, since there were too many replicas.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Starts and ends alerts, determines their causes, and removes replicas that were silent for two minutes. An alert
    /// of a backend without reports stays until its replicas are removed.
    pub fn review(&mut self, now_ms: u64) {
        self.note_crashes(now_ms);
        self.replicas.retain(|_, one| now_ms.saturating_sub(one.at_ms) < KEPT_MS);
        let backends = self.backends(now_ms);
        let level = |name: &Label| backends.get(name).and_then(BackendLoad::utilisation);
        let known: BTreeSet<&Label> = self.replicas.values().filter_map(|one| one.backend.as_ref()).collect();
        self.alerts.retain(|name, _| match level(name) {
            Some(level) => level >= SAFE_LEVEL,
            None => known.contains(name),
        });
        for name in backends.keys().filter(|name| level(name) >= Some(ALERT_LEVEL)) {
            let alert = Alert { since_ms: now_ms, cause: Cause::Undetermined };
            self.alerts.entry(name.clone()).or_insert(alert);
        }
        if self.alerts.is_empty() {
            return;
        }
        let (alerted, totals) = (self.alerts.keys().cloned().collect(), self.totals(now_ms));
        let evidence = Evidence { backends: &backends, alerted: &alerted, totals: &totals };
        for (name, alert) in &mut self.alerts {
            alert.cause = evidence.cause(name);
        }
    }

    /// Notes whether a replica has crashed since its last report.
    fn note_restart(&mut self, report: &Report, before: Option<&Replica>, now_ms: u64) {
        let Some(before) = before else { return };
        match (report.is_first, before.is_crashed) {
            (true, false) => note_crash(&mut self.crashes, report.address, before.crash(now_ms)),
            // It lacked CPU.
            (false, true) => drop(self.crashes.remove(&report.address)),
            _ => {}
        }
    }

    /// Notes which replicas have been silent for long without leaving.
    fn note_crashes(&mut self, now_ms: u64) {
        let silent = self.replicas.iter_mut().filter(|(_, one)| !one.is_crashed && one.is_gone(now_ms));
        for (address, replica) in silent {
            replica.is_crashed = true;
            note_crash(&mut self.crashes, *address, replica.crash(now_ms));
        }
        let is_recent = |at_ms: u64| Duration::from_millis(now_ms.saturating_sub(at_ms)) < CRASHED_FOR;
        self.crashes.retain(|_, crash| is_recent(crash.at_ms));
    }

    /// Served requests by service. Silent replicas contribute their usual rate but no recent one.
    fn totals(&self, now_ms: u64) -> BTreeMap<ServiceName, Trend> {
        let mut totals = BTreeMap::<ServiceName, Trend>::new();
        for replica in self.replicas.values() {
            let is_live = replica.is_live(now_ms);
            for (service, trend) in &replica.services {
                let total = totals.entry(service.clone()).or_default();
                let trend = served(trend);
                total.usual += trend.usual;
                if is_live {
                    total.recent += trend.recent;
                }
            }
        }
        totals
    }
}

/// Adds a crash. A replica that ends again at once has reported no calls in between, so the services that had calls before
/// its last end stay.
fn note_crash(crashes: &mut BTreeMap<SocketAddr, Crash>, address: SocketAddr, crash: Option<Crash>) {
    let Some(mut crash) = crash else { return };
    let before = crashes.remove(&address).filter(|before| before.backend == crash.backend);
    crash.callers.extend(before.into_iter().flat_map(|before| before.callers));
    crashes.insert(address, crash);
}

impl Replica {
    fn first(report: Report, now_ms: u64) -> Self {
        let span = report.span.max(MIN_SPAN);
        let services = report.services.into_iter().take(MAX_SERVICES);
        let services = services.map(|(name, counts)| (name, ServiceTrend::first(counts.rates(span))));
        Self {
            backend: report.backend,
            since_ms: now_ms,
            at_ms: now_ms,
            interval: INTERVAL,
            cores: Trend::first(report.cpu.as_secs_f64() / span.as_secs_f64()),
            limit: cores(report.limit_millicores),
            memory: report.memory,
            open: report.open,
            accepted: Trend::first(per_second(report.accepted, span)),
            all: ServiceTrend::first(report.all.rates(span)),
            services: services.collect(),
            is_crashed: false,
            entry: report.entry.map(|entry| entry.per_second(span)),
        }
    }

    fn take(mut self, report: Report, now_ms: u64, (is_alert, limited): (bool, &LimitedServices)) -> Self {
        let span = report.span.max(MIN_SPAN);
        let counts: BTreeMap<_, _> = report.services.into_iter().take(MAX_SERVICES).collect();
        // Where one service is limited, the sum has its connections too.
        let is_limited = counts.keys().any(|name| limited.is_frozen(name, now_ms));
        let frozen = Frozen { all: is_alert, connections: is_alert || is_limited };
        self.cores.take(report.cpu.as_secs_f64() / span.as_secs_f64(), span, is_alert);
        self.accepted.take(per_second(report.accepted, span), span, frozen.connections);
        self.all.take(report.all.rates(span), span, frozen);
        // A full report (`MAX_SERVICES` entries) may have dropped services with calls, so missing ones do not count as
        // zero. They have at most what the quietest service in the report has.
        let rates = counts.values().map(|counts| counts.rates(span).weight());
        let most = if counts.len() < MAX_SERVICES { 0.0 } else { rates.fold(f64::INFINITY, f64::min) };
        let missing = self.services.iter().filter(|(name, _)| !counts.contains_key(*name));
        let missing: Vec<_> =
            missing.map(|(name, trend)| (name.clone(), trend.recent().up_to(most))).collect();
        let reported = counts.into_iter().map(|(name, counts)| (name, counts.rates(span)));
        for (name, rates) in reported.chain(missing) {
            let frozen = Frozen { all: is_alert, connections: is_alert || limited.is_frozen(&name, now_ms) };
            self.services.entry(name).or_default().take(rates, span, frozen);
        }
        self.services.retain(|_, trend| !trend.is_quiet());
        self.bound_services();
        Self {
            at_ms: now_ms,
            limit: cores(report.limit_millicores),
            memory: report.memory,
            open: report.open,
            is_crashed: false,
            entry: report.entry.map(|entry| entry.per_second(span)),
            ..self
        }
    }

    /// Bounds the usual rates of services with a limit that the controller set: it began at [`LIMIT_OF_USUAL`] times the usual rate. A
    /// replica or a control plane that starts meanwhile would take an attack for usual.
    fn bound_usual(&mut self, limited: &LimitedServices) {
        for (name, first) in limited.first() {
            let Some(trend) = self.services.get_mut(name) else { continue };
            let usual = &mut trend.connections.usual;
            *usual = usual.min(f64::from(first) / LIMIT_OF_USUAL);
        }
    }

    /// Keeps only the services with the most requests and connections. A replica that names new services in every
    /// report cannot exhaust memory.
    fn bound_services(&mut self) {
        if self.services.len() <= 2 * MAX_SERVICES {
            return;
        }
        let mut by_weight: Vec<_> =
            self.services.iter().map(|(name, trend)| (trend.recent().weight(), name.clone())).collect();
        by_weight.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        for (_, name) in by_weight.split_off(MAX_SERVICES) {
            self.services.remove(&name);
        }
    }

    /// Its end without a word; `None` if it serves all services.
    fn crash(&self, now_ms: u64) -> Option<Crash> {
        let had_calls = |trend: &ServiceTrend| trend.recent().weight() >= CALLED_RATE;
        let callers = self.services.iter().filter(|(_, trend)| had_calls(trend));
        let callers = callers.map(|(service, _)| service.clone()).collect();
        Some(Crash { backend: self.backend.clone()?, at_ms: now_ms, callers })
    }

    fn is_live(&self, now_ms: u64) -> bool {
        self.silent(now_ms) < self.interval * MISSED_REPORTS + REPORT_TAKES
    }

    /// Whether it has been silent for so long that it ended rather than lacks CPU.
    fn is_gone(&self, now_ms: u64) -> bool {
        self.silent(now_ms) >= (self.interval * MISSED_REPORTS + REPORT_TAKES) * 2
    }

    fn silent(&self, now_ms: u64) -> Duration {
        Duration::from_millis(now_ms.saturating_sub(self.at_ms))
    }

    fn load(&self, address: SocketAddr, now_ms: u64) -> ReplicaLoad {
        ReplicaLoad {
            address,
            backend: self.backend.clone(),
            age: Duration::from_millis(now_ms.saturating_sub(self.at_ms)),
            cores: self.cores.recent,
            limit: self.limit,
            memory: self.memory,
            open: self.open,
            requests: self.all.requests.recent,
            errors: self.all.errors.recent,
            entry: self.entry.clone(),
        }
    }
}

fn cores(millicores: Option<u32>) -> Option<f64> {
    millicores.filter(|limit| *limit > 0).map(|limit| f64::from(limit) / 1_000.0)
}

#[cfg(test)]
mod tests;
