use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{Region, ServiceName};
use fairmesh_rib::upstream::{Backoff, Handle, Upstream, UpstreamConfig};
use fairmesh_wire::{
    transport::Address,
    v1::{HoldRequest, HoldResponse},
};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::{
    Counts,
    facts::{Facts, Inbox},
    rounds::Rounds,
};

/// How long to wait before the office is applied for again.
const AGAIN: Duration = Duration::from_millis(500);
/// The same at a control plane that knows of no such office.
const MUCH_LATER: Duration = Duration::from_secs(60);

/// Who applies, and where what is to be checked can be followed.
#[derive(Clone, Debug)]
pub(crate) struct Applicant {
    pub(crate) region: Region,
    pub(crate) name: String,
    pub(crate) upstreams: Vec<Address>,
    pub(crate) counts: Arc<Counts>,
}

/// Applies for the office of checker and fills it whenever it is given, until `stopping`.
pub(crate) async fn seek(applicant: Applicant, upstream: Handle, stopping: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stopping.cancelled() => return,
            ended = applicant.apply(&upstream) => ended,
        };
        applicant.counts.office.store(0, Relaxed);
        applicant.counts.endpoints.store(0, Relaxed);
        let pause = match ended {
            Err(status) if status.code() == Code::Unimplemented => MUCH_LATER,
            _ => AGAIN,
        };
        tokio::select! {
            () = stopping.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

impl Applicant {
    /// Applies once; returns when the office is lost, or cannot be applied for.
    async fn apply(&self, upstream: &Handle) -> Result<(), Status> {
        let connection = upstream.connected().await;
        let request = HoldRequest { region: self.region.to_string(), name: self.name.clone() };
        let mut office = connection.checker().hold(request).await?.into_inner();
        let Some(HoldResponse { term, services }) = office.message().await? else { return Ok(()) };
        tracing::info!(region = %self.region, "this agent checks the endpoints of the region");
        self.counts.office.store(1, Relaxed);
        let (listed, services) = watch::channel(named(&services));
        let (inbox, updates) = mpsc::unbounded_channel();
        let follower = UpstreamConfig {
            addresses: self.upstreams.clone(),
            software: format!("agent {} (health checker)", self.name),
            backoff: Backoff::default(),
            refuse_lagging: false,
        };
        let facts = Facts::new(self.region.clone(), Upstream::spawn(follower, Inbox(inbox)));
        let rounds = Rounds::new(self.region.clone(), term, connection, facts, self.counts.clone());
        let ended = tokio::select! {
            ended = keep_listed(&mut office, &listed) => ended,
            () = rounds.run(updates, services) => Ok(()),
        };
        tracing::info!(region = %self.region, "this agent no longer checks the region");
        ended
    }
}

/// Takes in which services are checked, as long as the office is held.
async fn keep_listed(
    office: &mut Streaming<HoldResponse>,
    listed: &watch::Sender<BTreeSet<ServiceName>>,
) -> Result<(), Status> {
    while let Some(HoldResponse { services, .. }) = office.message().await? {
        listed.send_replace(named(&services));
    }
    Ok(())
}

/// The services by name; a name of a newer form is passed over.
fn named(services: &[String]) -> BTreeSet<ServiceName> {
    services.iter().filter_map(|name| ServiceName::new(name).ok()).collect()
}
