//! Probes between agents. This agent answers the probes of other agents, and probes the agents that the control plane
//! names. The results tell a bad network from a bad service. Once per round the agent reports its results, and the
//! response names the targets of the next round.
//!
//! Probes are plaintext and carry no data. Mutual TLS would make probes fail because of certificates, which other
//! metrics already show.

mod probe;
mod probe_responder;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_model::{Location, check_reachable};
use fairmesh_probes::{MAX_TARGETS, Outcomes, Protocol, ROUND};
use fairmesh_rib::follower::FollowerHandle;
use fairmesh_wire::v1::{ProbeResult, ProtocolOutcome, ReportProbesRequest, ReportProbesResponse};
use tokio::{
    net::TcpListener,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::{AgentConfig, AgentError};

/// Timeout of a report.
const REPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next report to a control plane that does not accept reports.
const REFUSED_RETRY: Duration = Duration::from_secs(60);
/// Maximum pause between reports that a control plane may request.
const MAX_INTERVAL: Duration = Duration::from_mins(5);

/// Counters of probes between agents, for metrics.
#[derive(Debug, Default)]
pub(crate) struct ZoneProbeCounts {
    pub(crate) targets: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) report_failures: AtomicU64,
}

/// This agent's side of the probes between agents.
pub(crate) struct ZoneProber {
    listener: TcpListener,
    address: SocketAddr,
    location: Location,
    /// The local address to probe from, if given.
    local_address: Option<IpAddr>,
    counts: Arc<ZoneProbeCounts>,
}

impl ZoneProber {
    /// Opens the listener at which other agents probe this one. `None` if this agent does not take part in probes.
    ///
    /// # Errors
    /// When other agents cannot reach the address, or listening fails.
    pub(crate) async fn bind(config: &AgentConfig) -> Result<Option<Self>, AgentError> {
        let Some(address) = config.probes else { return Ok(None) };
        check_reachable("--zone-probes", address).map_err(AgentError::Probes)?;
        let bound = probe_responder::bind(address).await;
        let listener = bound.map_err(|source| AgentError::ProbeListener { address, source })?;
        let (location, local_address) = (config.location.clone(), config.local_address);
        Ok(Some(Self { listener, address, location, local_address, counts: Arc::default() }))
    }

    /// The counters, for metrics.
    pub(crate) fn counts(&self) -> Arc<ZoneProbeCounts> {
        Arc::clone(&self.counts)
    }

    /// Answers probes, probes others and reports until `stopping`.
    pub(crate) async fn run(self, upstream: FollowerHandle, stopping: CancellationToken) {
        let Self { listener, address, location, local_address, counts } = self;
        let probing = Probing { address, location, local_address, counts, upstream };
        tokio::select! {
            () = stopping.cancelled() => {}
            () = probe_responder::serve(listener) => {}
            () = probing.rounds() => {}
        }
        // Tell the control plane that this agent is leaving. If that fails, other agents find out by failing probes.
        let _ = probing.report(Vec::new(), true).await;
    }
}

/// The part that probes other agents and reports.
struct Probing {
    address: SocketAddr,
    location: Location,
    local_address: Option<IpAddr>,
    counts: Arc<ZoneProbeCounts>,
    upstream: FollowerHandle,
}

impl Probing {
    /// Probes and reports in rounds. While no control plane responds, the last targets are probed, so that the first
    /// report afterwards has current results.
    async fn rounds(&self) {
        let mut targets = Vec::new();
        self.upstream.connected().await;
        loop {
            let began = Instant::now();
            self.counts.targets.store(targets.len() as u64, Relaxed);
            let results = self.probe_all(&targets).await;
            let pause = match self.report(results, false).await {
                Ok(response) => {
                    targets = self.targets(&response);
                    Duration::from_millis(response.interval_ms.into()).clamp(ROUND, MAX_INTERVAL)
                }
                Err(status) => {
                    self.counts.report_failures.fetch_add(1, Relaxed);
                    let is_refused = matches!(status.code(), Code::Unimplemented | Code::PermissionDenied);
                    if is_refused { REFUSED_RETRY } else { ROUND }
                }
            };
            sleep_until(began + pause).await;
        }
    }

    /// The targets in a response that are plausible addresses of other agents.
    fn targets(&self, response: &ReportProbesResponse) -> Vec<SocketAddr> {
        let targets = response.targets.iter().filter_map(|address| address.parse().ok());
        let is_allowed =
            |target: &SocketAddr| *target != self.address && check_reachable("target", *target).is_ok();
        targets.filter(is_allowed).take(MAX_TARGETS).collect()
    }

    async fn probe_all(&self, targets: &[SocketAddr]) -> Vec<ProbeResult> {
        let mut probes = JoinSet::new();
        for target in targets.iter().copied() {
            let from = self.local_address;
            probes.spawn(async move { (target, probe::probe(target, from).await) });
        }
        let mut results = Vec::with_capacity(targets.len());
        // A panic was reported; its target has no result in this round.
        while let Some(ended) = probes.join_next().await {
            let Ok((target, outcomes)) = ended else { continue };
            self.counts.probes.fetch_add(1, Relaxed);
            if let Some(protocol) = outcomes.fault() {
                self.counts.failures.fetch_add(1, Relaxed);
                tracing::debug!(%target, protocol = protocol.as_str(), "another agent cannot be reached");
            }
            results.push(ProbeResult { target: target.to_string(), outcomes: messages(&outcomes) });
        }
        results
    }

    async fn report(&self, results: Vec<ProbeResult>, leaving: bool) -> Result<ReportProbesResponse, Status> {
        let connection =
            self.upstream.connection().ok_or_else(|| Status::unavailable("no control plane is connected"))?;
        let request = ReportProbesRequest {
            region: self.location.region.to_string(),
            zone: self.location.zone.as_ref().map(ToString::to_string).unwrap_or_default(),
            address: self.address.to_string(),
            results,
            leaving,
        };
        let mut checker = connection.checker();
        let reported = timeout(REPORT_TIMEOUT, checker.report_probes(request)).await;
        reported
            .map_err(|_| Status::deadline_exceeded("no response in time"))?
            .map(tonic::Response::into_inner)
    }
}

fn messages(outcomes: &Outcomes) -> Vec<ProtocolOutcome> {
    let tried = Protocol::ALL.into_iter().filter_map(|protocol| {
        let took = outcomes.took(protocol);
        (took.is_some() || outcomes.has_failed(protocol)).then(|| ProtocolOutcome {
            protocol: protocol.as_str().to_owned(),
            failed: took.is_none(),
            took_us: took.map_or(0, |took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
        })
    });
    tried.collect()
}
