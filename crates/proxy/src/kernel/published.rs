//! Services whose requests the kernel sends.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairmesh_client::{ServiceHandle, proxy_support::ExportedService};
use fairmesh_kernel::{KernelSender, Policy, PublishedPolicy, program_clock};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::kernel::{
    attached::Attached,
    endpoint::{PublishedEndpoint, ServiceConnections},
    pooled::IDLE_TIMEOUT,
};

/// How long a request may wait until its service is published: an endpoint that takes longer to connect to is published later.
const PUBLISH_WAIT: Duration = Duration::from_millis(250);
/// How long a service that could not be published, or an endpoint that could not be connected to, is left alone.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The entry of a service.
#[derive(Clone, Debug)]
pub(super) enum Publication {
    /// It is published, or about to be.
    Published(Arc<PublishedService>),
    /// It could not be published, at this time.
    Failed(Instant),
}

/// A service whose requests the kernel sends.
#[derive(Debug)]
pub(super) struct PublishedService {
    /// The candidates of its policy.
    endpoints: Mutex<Vec<Arc<PublishedEndpoint>>>,
    connections: Arc<ServiceConnections>,
}

impl Publication {
    /// Whether a request of the service has been waiting for its response for this long.
    pub(super) fn has_waiting(&self, at_least: Duration) -> bool {
        let Self::Published(service) = self else { return false };
        service.endpoints().iter().any(|endpoint| endpoint.slots.has_waiting(at_least))
    }
}

impl Attached {
    /// Has the kernel send requests to this service, where they need only a pick; opens further connections where all are in use.
    pub(super) async fn publish(self: &Arc<Self>, handle: &ServiceHandle) {
        if self.stopped().is_cancelled() {
            return;
        }
        let publication = self.published().get(handle.name()).cloned();
        match publication {
            Some(Publication::Published(service)) => {
                service.endpoints().iter().for_each(|endpoint| endpoint.open_if_wanted(self));
            }
            Some(Publication::Failed(at)) if at.elapsed() < RETRY_AFTER => {}
            Some(Publication::Failed(_)) | None => self.begin(handle).await,
        }
    }

    async fn begin(self: &Arc<Self>, handle: &ServiceHandle) {
        let Some(sender) = self.sender() else { return };
        let Some(exported) = handle.exported() else { return };
        // All memory is in use by other services.
        let Some(policy) = policy_of(sender, &exported) else { return };
        let connections = Arc::new(ServiceConnections::new(self.stopped().child_token()));
        let service = Arc::new(PublishedService { endpoints: Mutex::default(), connections });
        service.set_endpoints(sender, &exported, &policy);
        if !self.claim(handle, &service) {
            return;
        }
        let (attached, handle) = (Arc::clone(self), handle.clone());
        let (published, wait) = oneshot::channel();
        tokio::spawn(async move {
            let Some(entry) = service.insert(&attached, &exported, &policy).await else {
                attached.published().insert(handle.name().clone(), Publication::Failed(Instant::now()));
                return service.connections.withdrawn.cancel();
            };
            // The request may not wait any more.
            let _ = published.send(());
            service.follow(&attached, &handle, exported, &entry).await;
            drop(entry);
            service.connections.withdrawn.cancel();
            attached.published().remove(handle.name());
        });
        // It is published later if it takes longer.
        let _ = timeout(PUBLISH_WAIT, wait).await;
    }

    /// Makes the entry of a service, unless another task just did.
    fn claim(&self, handle: &ServiceHandle, service: &Arc<PublishedService>) -> bool {
        let mut published = self.published();
        if matches!(published.get(handle.name()), Some(Publication::Published(_))) {
            return false;
        }
        published.insert(handle.name().clone(), Publication::Published(Arc::clone(service)));
        true
    }
}

impl PublishedService {
    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<PublishedEndpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the only endpoint, if there is but one, and publishes the policy. Of several endpoints, each is connected to when
    /// the kernel has picked it.
    async fn insert(
        &self,
        attached: &Arc<Attached>,
        exported: &ExportedService,
        policy: &Policy,
    ) -> Option<PublishedPolicy> {
        let only = match &self.endpoints()[..] {
            [only] => Some(Arc::clone(only)),
            _ => None,
        };
        if let Some(only) = only {
            only.open(attached).await?;
        }
        attached.sender()?.publish(exported.authority(), policy)
    }

    /// Keeps the policy current, until requests need more than a pick, no connection is left, or the kernel is to send none.
    async fn follow(
        &self,
        attached: &Attached,
        handle: &ServiceHandle,
        mut exported: ExportedService,
        entry: &PublishedPolicy,
    ) {
        loop {
            tokio::select! {
                () = exported.outdated() => {
                    let (Some(next), Some(sender)) = (handle.exported(), attached.sender()) else { return };
                    let Some(policy) = policy_of(sender, &next) else { return };
                    self.set_endpoints(sender, &next, &policy);
                    entry.update(&policy);
                    exported = next;
                }
                () = self.connections.withdrawn.cancelled() => return,
                () = sleep(IDLE_TIMEOUT) => if self.connections.is_empty() {
                    return;
                },
            }
        }
    }

    /// Takes the candidates over; connections to endpoints that are none any more are closed when they are idle.
    fn set_endpoints(&self, sender: &KernelSender, exported: &ExportedService, policy: &Policy) {
        let mut endpoints = self.endpoints();
        let before = std::mem::take(&mut *endpoints);
        for index in exported.numbers.indices() {
            let Some(endpoint) = exported.endpoint(index) else { continue };
            let kept = before.iter().find(|one| one.endpoint.index() == index && one.endpoint.is(&endpoint));
            let made = || {
                let slots = sender.endpoint(policy.block, index)?;
                Some(Arc::new(PublishedEndpoint::new(endpoint, slots, &self.connections)))
            };
            endpoints.extend(kept.cloned().or_else(made));
        }
        for gone in before.iter().filter(|one| !endpoints.iter().any(|kept| Arc::ptr_eq(kept, one))) {
            gone.withdrawn.cancel();
        }
    }
}

/// The policy by which the kernel picks. `None` if all memory for counts is in use.
fn policy_of(sender: &KernelSender, exported: &ExportedService) -> Option<Policy> {
    let block = exported.share_counts(|block| sender.counts_in(block), || sender.take_block())?;
    let now = u64::try_from(program_clock().as_nanos()).unwrap_or(u64::MAX);
    let origin = now.wrapping_sub(exported.now());
    Some(Policy { origin, block: block.position(), numbers: exported.numbers })
}
