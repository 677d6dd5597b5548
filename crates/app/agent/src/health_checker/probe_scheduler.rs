use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, UNIX_EPOCH},
};

use fairmesh_model::{
    HealthCheck, Region, ServiceName, Verdict,
    arith::{hash_text, mix_pair},
    bounded_cause,
};
use fairmesh_wire::{
    handshake::Connection,
    transport::{EndpointAddress, ExpectedPeer},
    v1::{JudgeRequest, Judgement},
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tonic::{Code, Status};

use super::{
    Counts,
    checked_endpoints::{CheckedAddress, CheckedEndpoints, EndpointId, UpdateQueue},
    probe::probe_once,
    verdict_tracker::{Finding, VerdictTracker},
};
use crate::disk_writer::wall_clock;

/// Maximum number of concurrent probes. If a region has more endpoints than can be probed within their intervals,
/// they are probed more slowly.
const MAX_CONCURRENT_PROBES: usize = 64;
/// Maximum number of verdicts in one report.
const MAX_VERDICTS_PER_CALL: usize = 500;
/// Timeout of a report, and pause after a failed one.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
const REPORT_RETRY: Duration = Duration::from_secs(1);

/// Schedules probes and reports verdicts during one term of leadership.
pub(super) struct ProbeScheduler {
    region: Region,
    term: u64,
    connection: Connection,
    checked_endpoints: CheckedEndpoints,
    counts: Arc<Counts>,
    targets: HashMap<EndpointId, Target>,
    /// Endpoints by the time of their next probe, except those whose probe is in flight.
    due: BTreeSet<(Instant, EndpointId)>,
    probes: JoinSet<ProbeResult>,
    /// Verdicts that the control plane has not accepted yet.
    unreported: BTreeMap<EndpointId, Verdict>,
    reporting: JoinSet<(BTreeMap<EndpointId, Verdict>, Result<(), Status>)>,
    report_at: Instant,
}

struct Target {
    address: CheckedAddress,
    check: HealthCheck,
    judge: VerdictTracker,
    /// Number of probes started. With the endpoint's name, it seeds the jitter.
    begun: u64,
    since_ms: u64,
}

/// A finished probe.
struct ProbeResult {
    id: EndpointId,
    /// Number of the probe for its target. The numbers restart at zero if the target is replaced.
    number: u64,
    began: Instant,
    outcome: Result<(), String>,
}

impl ProbeScheduler {
    pub(super) fn new(
        region: Region,
        term: u64,
        connection: Connection,
        checked_endpoints: CheckedEndpoints,
        counts: Arc<Counts>,
    ) -> Self {
        Self {
            region,
            term,
            connection,
            checked_endpoints,
            counts,
            targets: HashMap::new(),
            due: BTreeSet::new(),
            probes: JoinSet::new(),
            unreported: BTreeMap::new(),
            reporting: JoinSet::new(),
            report_at: Instant::now(),
        }
    }

    /// Probes and reports until another agent is elected.
    pub(super) async fn run(
        mut self,
        updates: UpdateQueue,
        mut services: watch::Receiver<BTreeSet<ServiceName>>,
    ) {
        let listed = services.borrow_and_update().clone();
        self.checked_endpoints.follow(listed);
        loop {
            self.report();
            let next =
                self.due.first().map(|(at, _)| *at).filter(|_| self.probes.len() < MAX_CONCURRENT_PROBES);
            let waiting = !self.unreported.is_empty() && self.reporting.is_empty();
            tokio::select! {
                update = updates.next() => {
                    self.checked_endpoints.update(&update);
                    self.refresh();
                }
                Ok(()) = services.changed() => {
                    let listed = services.borrow_and_update().clone();
                    self.checked_endpoints.follow(listed);
                    self.refresh();
                }
                () = sleep_until(next.unwrap_or(self.report_at)), if next.is_some() => self.probe(),
                Some(Ok(probed)) = self.probes.join_next() => self.take(probed),
                Some(Ok((report, response))) = self.reporting.join_next() => {
                    if !self.on_reported(report, response) {
                        return;
                    }
                }
                () = sleep_until(self.report_at), if waiting => {}
            }
        }
    }

    /// Updates the targets to match the records. The first probe of a new target is at a random time within its
    /// interval.
    fn refresh(&mut self) {
        let now = Instant::now();
        let wanted: HashMap<EndpointId, (CheckedAddress, HealthCheck)> = self
            .checked_endpoints
            .wanted()
            .map(|(id, address, check)| (id, (address, check.clone())))
            .collect();
        self.targets.retain(|id, target| {
            wanted
                .get(id)
                .is_some_and(|(address, check)| *address == target.address && *check == target.check)
        });
        self.due.retain(|(_, id)| self.targets.contains_key(id));
        self.unreported.retain(|id, _| self.targets.contains_key(id));
        for (id, (address, check)) in wanted {
            if !self.targets.contains_key(&id) {
                let chance = chance(&id, 0);
                let within = check.interval.as_nanos().max(1);
                let wait = Duration::from_nanos((u128::from(chance) % within) as u64);
                self.due.insert((now + wait, id.clone()));
                let target =
                    Target { address, check, judge: VerdictTracker::default(), begun: 0, since_ms: 0 };
                self.targets.insert(id, target);
            }
        }
        self.counts.endpoints.store(self.targets.len() as u64, Relaxed);
    }

    /// Starts the next probe that is due.
    fn probe(&mut self) {
        let Some((_, id)) = self.due.pop_first() else { return };
        let Some(target) = self.targets.get_mut(&id) else { return };
        target.begun += 1;
        let (number, address) = (target.begun, target.address);
        let (probe, patience) = (target.check.probe.clone(), target.check.timeout);
        self.counts.probes.fetch_add(1, Relaxed);
        let transport = self.connection.transport().clone();
        self.probes.spawn(async move {
            let began = Instant::now();
            let CheckedAddress { address, mtls, accepts_plaintext } = address;
            let endpoint = EndpointAddress {
                address,
                peer: mtls.then_some(ExpectedPeer::Service(&id.0)),
                accepts_plaintext,
                from: None,
            };
            let outcome = probe_once(&transport, &probe, endpoint, patience).await;
            ProbeResult { id, number, began, outcome }
        });
    }

    /// Records the result of a probe and schedules the next one.
    fn take(&mut self, ProbeResult { id, number, began, outcome }: ProbeResult) {
        if outcome.is_err() {
            self.counts.failures.fetch_add(1, Relaxed);
        }
        let Some(target) = self.targets.get_mut(&id).filter(|target| target.begun == number) else { return };
        if let Some(finding) = target.judge.sample(outcome.is_ok(), &target.check) {
            let verdict = target.verdict(finding, outcome.err());
            let (service, instance) = &id;
            let Verdict { healthy, cause, .. } = &verdict;
            tracing::info!(%service, %instance, healthy, cause, "verdict changed");
            self.unreported.insert(id.clone(), verdict);
        }
        let next = began + target.wait(&id);
        self.due.insert((next.max(Instant::now()), id));
    }

    /// Reports new verdicts to the control plane, one call at a time.
    fn report(&mut self) {
        if self.unreported.is_empty() || !self.reporting.is_empty() || Instant::now() < self.report_at {
            return;
        }
        let mut report = BTreeMap::new();
        while report.len() < MAX_VERDICTS_PER_CALL {
            let Some((id, verdict)) = self.unreported.pop_first() else { break };
            report.insert(id, verdict);
        }
        let judgement = |((service, instance), verdict): (&EndpointId, &Verdict)| Judgement {
            service: service.to_string(),
            instance: instance.to_string(),
            verdict: Some(verdict.clone().into()),
        };
        let judgements = report.iter().map(judgement).collect();
        let request = JudgeRequest { region: self.region.to_string(), term: self.term, judgements };
        let mut checker = self.connection.checker();
        self.reporting.spawn(async move {
            let response = timeout(REPORT_TIMEOUT, checker.judge(request)).await;
            let late = |_| Err(Status::deadline_exceeded("no response from the control plane"));
            (report, response.unwrap_or_else(late).map(drop))
        });
    }

    /// Handles the outcome of a report. Returns false when the leadership is lost.
    fn on_reported(&mut self, report: BTreeMap<EndpointId, Verdict>, response: Result<(), Status>) -> bool {
        match response {
            Ok(()) => _ = self.counts.verdicts.fetch_add(report.len() as u64, Relaxed),
            Err(status) if status.code() == Code::FailedPrecondition => return false,
            Err(status) => {
                tracing::warn!(%status, "control plane did not accept verdicts; retrying");
                for (id, verdict) in report.into_iter().filter(|(id, _)| self.targets.contains_key(id)) {
                    // A verdict found meanwhile is newer.
                    self.unreported.entry(id).or_insert(verdict);
                }
                self.report_at = Instant::now() + REPORT_RETRY;
            }
        }
        true
    }
}

impl Target {
    fn verdict(
        &mut self,
        Finding { healthy, confidence, turned }: Finding,
        cause: Option<String>,
    ) -> Verdict {
        if turned {
            let since = wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        }
        let cause = bounded_cause(&cause.unwrap_or_default());
        Verdict { healthy, since_ms: self.since_ms, confidence, cause, stale: false }
    }

    /// Returns the time between the starts of two probes: the interval with jitter.
    fn wait(&self, id: &EndpointId) -> Duration {
        let jitter = self.check.jitter_percent;
        let percent = 100 - jitter + (chance(id, self.begun) % u64::from(2 * jitter + 1)) as u32;
        self.check.interval * percent / 100
    }
}

/// Returns a pseudorandom number derived from the endpoint's name and the probe's number, so that tests can repeat
/// it.
fn chance((service, instance): &EndpointId, number: u64) -> u64 {
    mix_pair(mix_pair(hash_text(service.service.as_str()), hash_text(instance.as_str())), number)
}
