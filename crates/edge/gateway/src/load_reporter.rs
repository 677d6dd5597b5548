//! Reports the load of this replica to the control plane, once a second or less often if it asks for that: CPU, memory, and the
//! requests of its services.
//!
//! The reporter only reads counters, so requests do no extra work. Seconds without a control plane are not
//! reported later: the next report states the current load.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_edge::counter::increment;
use fairmesh_kernel::PacketCounts;
use fairmesh_model::{Label, ServiceName};
use fairmesh_pages::resident_memory;
use fairmesh_server::{Cpu, CpuTime};
use fairmesh_wire::v1::{GatewayEntry, GatewayServiceCounts, ReportGatewayRequest, ReportGatewayResponse};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::{entry::SharedAddress, node_connections::Connections};

/// Interval between reports, unless the control plane asks for a longer one.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval that a control plane may ask for.
const MAX_INTERVAL: Duration = Duration::from_mins(1);
/// Time limit of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next report after a control plane has refused one.
const REFUSED_RETRY: Duration = Duration::from_mins(1);
/// Maximum number of services in a report.
const MAX_SERVICES: usize = 64;

/// Reports the load, and remembers the last reported counters.
pub(crate) struct LoadReporter {
    /// Address to which nodes connect; it identifies the replica.
    address: SocketAddr,
    backend: Option<Label>,
    cpu: Cpu,
    /// Maximum CPU that the threads can use, in thousandths of a core.
    most_millicores: u32,
    last: Option<Counted>,
    /// Whether no report has arrived yet, and this process has taken over from no running one: the one that ran before has crashed if it did
    /// not say that it leaves.
    is_first: bool,
    /// Why the last report failed. Each reason is logged once.
    failure: Option<String>,
    /// The address that the replicas of the backend share, and its counts when the last report was made.
    entry: Option<(Arc<SharedAddress>, PacketCounts)>,
}

/// Counters since the start.
struct Counted {
    at: Instant,
    cpu: Option<CpuTime>,
    /// Connections of identified peers, and refused ones.
    accepted: u64,
    /// Connections whose peer left before it said who it is.
    left: u64,
    /// Requests and errors by service.
    services: HashMap<ServiceName, [u64; 2]>,
}

impl LoadReporter {
    /// Creates a reporter. `None` if the address does not identify this replica.
    pub(crate) fn new(
        address: SocketAddr,
        backend: Option<Label>,
        cores: usize,
        is_first: bool,
    ) -> Option<Self> {
        if address.ip().is_unspecified() || address.port() == 0 {
            tracing::warn!(listen = %address, "the load of this gateway is not reported: give --listen the address that nodes connect to");
            return None;
        }
        let most_millicores = u32::try_from(cores).unwrap_or(u32::MAX).saturating_mul(1_000);
        Some(Self {
            address,
            backend,
            cpu: Cpu::of_this_program(),
            most_millicores,
            last: None,
            is_first,
            failure: None,
            entry: None,
        })
    }

    /// Reports what comes to the shared address, too.
    pub(crate) fn with_entry(self, entry: Option<Arc<SharedAddress>>) -> Self {
        Self { entry: entry.map(|entry| (entry, PacketCounts::default())), ..self }
    }

    /// What came to the shared address since the last report.
    fn entry_counts(&mut self) -> Option<GatewayEntry> {
        let (entry, before) = self.entry.as_mut()?;
        let now = entry.read();
        let since = |count: fn(&PacketCounts) -> u64| count(&now.counts).saturating_sub(count(&*before));
        let message = GatewayEntry {
            address: entry.address.to_string(),
            head_buckets: u32::try_from(now.head_buckets).unwrap_or(u32::MAX),
            buckets: u32::try_from(now.buckets).unwrap_or(u32::MAX),
            begun: since(|counts| counts.begun),
            passed_on: since(|counts| counts.passed_on),
            unclaimed: since(|counts| counts.unclaimed),
            unreachable: now.unreachable.iter().map(ToString::to_string).collect(),
        };
        *before = now.counts;
        Some(message)
    }

    /// Reports while connections are accepted. At the end, reports that the replica leaves, unless a
    /// successor has taken over its address.
    pub(crate) async fn run(
        mut self,
        connections: Weak<Connections>,
        is_ready: Arc<AtomicBool>,
        stopping: CancellationToken,
    ) {
        let mut pause = INTERVAL;
        // Counts from before the first interval are not reported.
        self.last = connections.upgrade().map(|connections| Counted::read(&connections, &self.cpu));
        loop {
            let is_stopping = tokio::select! {
                () = sleep(pause) => false,
                () = stopping.cancelled() => true,
            };
            let Some(connections) = connections.upgrade() else { return };
            if is_stopping {
                if !is_ready.load(Relaxed) {
                    let leaving = ReportGatewayRequest { leaving: true, ..self.message() };
                    // Without this report, the control plane would notice only after three missing reports.
                    let _ = send(&connections, leaving).await;
                }
                return;
            }
            if is_ready.load(Relaxed) {
                pause = self.report(&connections).await;
            }
        }
    }

    /// Reports what was counted since the last report. Returns the pause until the next report.
    async fn report(&mut self, connections: &Connections) -> Duration {
        let now = Counted::read(connections, &self.cpu);
        let opened = connections.take_opened();
        let Some(before) = self.last.replace(now) else { return INTERVAL };
        let message = self.difference(&before, opened, connections);
        let entry = self.entry_counts();
        match message {
            Some(message) => match send(connections, ReportGatewayRequest { entry, ..message }).await {
                Ok(response) => {
                    (self.failure, self.is_first) = (None, false);
                    Duration::from_millis(response.next_report_ms.into()).clamp(INTERVAL, MAX_INTERVAL)
                }
                Err(status) => {
                    increment(&connections.metrics.failed_reports);
                    if self.failure.as_deref() != Some(status.message()) {
                        self.failure = Some(status.message().to_owned());
                        tracing::warn!(reason = status.message(), "the load of this gateway is not reported");
                    }
                    let is_refused = matches!(status.code(), Code::Unimplemented | Code::PermissionDenied);
                    if is_refused { REFUSED_RETRY } else { INTERVAL }
                }
            },
            None => INTERVAL,
        }
    }

    fn difference(
        &self,
        before: &Counted,
        opened: BTreeMap<ServiceName, u64>,
        connections: &Connections,
    ) -> Option<ReportGatewayRequest> {
        let now = self.last.as_ref()?;
        let (cpu, limit) = match (before.cpu, now.cpu) {
            (Some(before), Some(now)) if before.epoch == now.epoch => {
                (now.used_us.saturating_sub(before.used_us), now.limit_millicores.min(self.most_millicores))
            }
            _ => (0, 0),
        };
        let open = connections.tenants.all().iter().map(|(_, tenant)| tenant.open()).sum();
        let services = now.since(before, opened);
        let sum = |count: fn(&GatewayServiceCounts) -> u64| services.iter().map(count).sum();
        Some(ReportGatewayRequest {
            requests: sum(|one| one.requests),
            errors: sum(|one| one.errors),
            span_ms: u32::try_from((now.at - before.at).as_millis()).unwrap_or(u32::MAX),
            cpu_us: cpu,
            limit_millicores: limit,
            memory_bytes: resident_memory().unwrap_or_default(),
            open,
            accepted: now.opened(before),
            services: most_used(services),
            first: self.is_first,
            ..self.message()
        })
    }

    fn message(&self) -> ReportGatewayRequest {
        ReportGatewayRequest {
            address: self.address.to_string(),
            backend: self.backend.as_ref().map(ToString::to_string).unwrap_or_default(),
            ..ReportGatewayRequest::default()
        }
    }
}

impl Counted {
    fn read(connections: &Connections, cpu: &Cpu) -> Self {
        let mut services = HashMap::new();
        let refused = [&connections.metrics.refused_peers, &connections.metrics.refused_connections];
        let mut accepted = refused.iter().map(|counter| counter.load(Relaxed)).sum::<u64>();
        for (_, tenant) in connections.tenants.all() {
            accepted += [&tenant.accepted, &tenant.refused, &tenant.refused_by_rate]
                .map(|counter| counter.load(Relaxed))
                .iter()
                .sum::<u64>();
            for (name, target) in tenant.server.forwarder.services.all() {
                let classes = target.metrics.responses.classes();
                services.insert(name, [classes.iter().sum(), classes[3] + classes[4]]);
            }
        }
        let left = connections.metrics.left_peers.load(Relaxed);
        Self { at: Instant::now(), cpu: cpu.read(), accepted, left, services }
    }

    /// New connections since `before`. Where this replica is slow, nodes try another one beside it, and leave the slower one: so one
    /// that was left for each accepted one is no load of its own. More of them are a flood of handshakes.
    fn opened(&self, before: &Self) -> u64 {
        let accepted = self.accepted.saturating_sub(before.accepted);
        accepted + self.left.saturating_sub(before.left).saturating_sub(accepted)
    }

    /// The difference to the counters in `before`, by service. A counter that has shrunk was restarted, and
    /// counts in full.
    fn since(&self, before: &Self, opened: BTreeMap<ServiceName, u64>) -> Vec<GatewayServiceCounts> {
        let mut counts = BTreeMap::<&ServiceName, GatewayServiceCounts>::new();
        for (name, now) in &self.services {
            let began = [0; 2];
            let before = before.services.get(name).filter(|before| before[0] <= now[0]).unwrap_or(&began);
            if now[0] > before[0] {
                let one = counts.entry(name).or_default();
                (one.requests, one.errors) = (now[0] - before[0], now[1].saturating_sub(before[1]));
            }
        }
        for (name, connections) in &opened {
            counts.entry(name).or_default().connections = *connections;
        }
        counts
            .into_iter()
            .map(|(name, one)| GatewayServiceCounts { service: name.to_string(), ..one })
            .collect()
    }
}

/// The services with the most requests and connections.
fn most_used(mut services: Vec<GatewayServiceCounts>) -> Vec<GatewayServiceCounts> {
    if services.len() > MAX_SERVICES {
        services.sort_by_key(|one| Reverse(one.requests + one.connections));
        services.truncate(MAX_SERVICES);
    }
    services
}

async fn send(
    connections: &Connections,
    report: ReportGatewayRequest,
) -> Result<ReportGatewayResponse, Status> {
    let upstream = connections.directory.upstream();
    let connection = upstream.connection().ok_or_else(|| Status::unavailable("no agent answers"))?;
    let mut signals = connection.signals();
    let reported = timeout(REPORT_TIMEOUT, signals.report_gateway(report)).await;
    reported.map_err(|_| Status::deadline_exceeded("it took too long"))?.map(tonic::Response::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(services: &[(&str, [u64; 2])]) -> Counted {
        let services =
            services.iter().map(|(name, counts)| (ServiceName::new(*name).unwrap(), *counts)).collect();
        Counted { at: Instant::now(), cpu: None, accepted: 0, left: 0, services }
    }

    #[test]
    fn peers_that_left_count_as_connections_beyond_one_for_each_accepted_one() {
        let before = Counted { accepted: 100, left: 50, ..counted(&[]) };
        for (accepted, left, opened) in [(10, 0, 10), (10, 10, 10), (10, 500, 500), (0, 500, 500)] {
            let now = Counted { accepted: 100 + accepted, left: 50 + left, ..counted(&[]) };
            assert_eq!(now.opened(&before), opened, "{accepted} accepted, {left} left");
        }
    }

    #[test]
    fn gateway_load_report_counts_requests_since_last_report() {
        let before = counted(&[("red/idle", [5, 0]), ("red/web", [10, 1]), ("red/again", [90, 9])]);
        let now = counted(&[
            ("red/idle", [5, 0]),
            ("red/web", [30, 4]),
            ("red/again", [7, 1]),
            ("red/new", [2, 0]),
        ]);
        let opened = [(ServiceName::new("red/attacked").unwrap(), 50)].into();
        let counts: Vec<_> = now
            .since(&before, opened)
            .into_iter()
            .map(|one| (one.service, one.requests, one.errors, one.connections))
            .collect();
        let row =
            |name: &str, requests, errors, connections| (name.to_owned(), requests, errors, connections);
        let expected = [
            row("red/again", 7, 1, 0),
            row("red/attacked", 0, 0, 50),
            row("red/new", 2, 0, 0),
            row("red/web", 20, 3, 0),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn gateway_load_report_is_limited_to_most_used_services() {
        let service = |i: u64| GatewayServiceCounts {
            service: format!("red/s{i}"),
            requests: i / 2,
            connections: i - i / 2,
            ..Default::default()
        };
        let kept = most_used((0..200).map(service).collect());
        assert_eq!(kept.len(), MAX_SERVICES);
        assert!(kept.iter().all(|one| one.requests + one.connections >= 136));
    }

    #[test]
    fn gateway_replica_listening_on_all_addresses_does_not_report() {
        assert!(LoadReporter::new("0.0.0.0:7440".parse().unwrap(), None, 1, true).is_none());
        assert!(LoadReporter::new("10.77.0.1:7440".parse().unwrap(), None, 1, true).is_some());
    }
}
