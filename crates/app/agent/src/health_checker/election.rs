use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{Region, ServiceName};
use fairmesh_rib::follower::{Backoff, Follower, FollowerConfig, FollowerHandle};
use fairmesh_wire::{
    transport::Address,
    v1::{CampaignRequest, CampaignResponse},
};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    Counts,
    checked_endpoints::{CheckedEndpoints, UpdateQueue},
    distance_prober::{DistanceProber, DistanceTarget},
    probe_scheduler::ProbeScheduler,
};

/// Pause before this agent stands for election again.
const CAMPAIGN_RETRY: Duration = Duration::from_millis(500);
/// Pause if the control plane runs no election, has too many candidates, or does not permit this agent.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// This agent as a candidate for checker, and the upstreams from which it would follow the checked endpoints.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) region: Region,
    pub(crate) name: String,
    pub(crate) upstreams: Vec<Address>,
    /// The local address for measuring distances, if given.
    pub(crate) local_address: Option<IpAddr>,
    pub(crate) counts: Arc<Counts>,
}

/// Stands for election as checker, and probes while elected, until `stopping`.
pub(crate) async fn campaign(candidate: Candidate, upstream: FollowerHandle, stopping: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stopping.cancelled() => return,
            ended = candidate.campaign_once(&upstream) => ended,
        };
        candidate.counts.elected.store(0, Relaxed);
        candidate.counts.endpoints.store(0, Relaxed);
        candidate.counts.distance_targets.store(0, Relaxed);
        let pause = match ended {
            Err(status)
                if matches!(
                    status.code(),
                    Code::Unimplemented | Code::ResourceExhausted | Code::PermissionDenied
                ) =>
            {
                REFUSED_RETRY
            }
            _ => CAMPAIGN_RETRY,
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

impl Candidate {
    /// Runs one campaign. Returns when the leadership is lost or the call fails.
    async fn campaign_once(&self, upstream: &FollowerHandle) -> Result<(), Status> {
        let connection = upstream.connected().await;
        let request = CampaignRequest { region: self.region.to_string(), name: self.name.clone() };
        let mut leadership = connection.checker().campaign(request).await?.into_inner();
        let Some(first) = leadership.message().await? else { return Ok(()) };
        let term = first.term;
        tracing::info!(region = %self.region, "this agent checks the endpoints of the region");
        self.counts.elected.store(1, Relaxed);
        let (lists, services, targets) = Lists::new(&first);
        let distances = DistanceProber {
            region: self.region.clone(),
            term,
            local_address: self.local_address,
            connection: connection.clone(),
            counts: self.counts.clone(),
        };
        let updates = UpdateQueue::default();
        let follower = FollowerConfig {
            transport: connection.transport().clone(),
            addresses: self.upstreams.clone(),
            software: format!("agent {} (health checker)", self.name),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let checked_endpoints =
            CheckedEndpoints::new(self.region.clone(), Follower::spawn(follower, updates.clone()));
        let probe_scheduler = ProbeScheduler::new(
            self.region.clone(),
            term,
            connection,
            checked_endpoints,
            self.counts.clone(),
        );
        let ended = tokio::select! {
            ended = lists.follow(&mut leadership) => ended,
            () = probe_scheduler.run(updates, services) => Ok(()),
            () = distances.run(targets) => Ok(()),
        };
        tracing::info!(region = %self.region, "this agent no longer checks the region");
        ended
    }
}

/// Lists that the control plane updates for the elected checker.
struct Lists {
    services: watch::Sender<BTreeSet<ServiceName>>,
    targets: watch::Sender<BTreeSet<DistanceTarget>>,
}

impl Lists {
    fn new(
        first: &CampaignResponse,
    ) -> (Self, watch::Receiver<BTreeSet<ServiceName>>, watch::Receiver<BTreeSet<DistanceTarget>>) {
        let (services, services_now) = watch::channel(service_names(&first.services));
        let (targets, targets_now) = watch::channel(DistanceTarget::of_all(&first.targets));
        (Self { services, targets }, services_now, targets_now)
    }

    /// Follows the lists until the leadership is lost.
    async fn follow(&self, leadership: &mut Streaming<CampaignResponse>) -> Result<(), Status> {
        while let Some(CampaignResponse { services, targets, .. }) = leadership.message().await? {
            self.services.send_replace(service_names(&services));
            self.targets.send_replace(DistanceTarget::of_all(&targets));
        }
        Ok(())
    }
}

/// Parses service names; names that this version cannot parse are skipped.
fn service_names(services: &[String]) -> BTreeSet<ServiceName> {
    services.iter().filter_map(|name| ServiceName::new(name).ok()).collect()
}
