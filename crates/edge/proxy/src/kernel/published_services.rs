//! Publishes services, so that the kernel can send requests to them.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fairmesh_calls::{ServiceHandle, ServiceName, forwarding::ExportedService};
use fairmesh_kernel::{Policy, PolicyKey, PublishedPolicy};
use fairmesh_model::LocalTransport;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::kernel::{
    attached_maps::Attached,
    policy::policy_of,
    pooled_connection::IDLE_TIMEOUT,
    published_endpoint::{PublishedEndpoint, ServiceConnections},
};

/// Time that a request may wait until its service is published. If connecting takes longer, the request proceeds and
/// the service is published later.
const PUBLISH_WAIT: Duration = Duration::from_millis(250);
/// Pause after a service could not be published or an endpoint could not be reached.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(10);

/// The state of a service in the table of published services.
#[derive(Clone, Debug)]
pub(super) enum Publication {
    /// The service is published or about to be.
    Published(Arc<PublishedService>),
    /// Publishing failed at this time.
    Failed(Instant),
}

/// A service whose requests the kernel sends.
#[derive(Debug)]
pub(super) struct PublishedService {
    /// Endpoints that the service's policy may pick.
    endpoints: Mutex<Vec<Arc<PublishedEndpoint>>>,
    /// Other services used by the service's splits.
    backends: Mutex<Vec<ServiceName>>,
    /// Position and id of the policy, once published.
    pub(super) key: OnceLock<PolicyKey>,
    connections: Arc<ServiceConnections>,
}

impl Publication {
    /// Whether any request of the service has waited at least this long for its response.
    pub(super) fn has_waiting(&self, at_least: Duration) -> bool {
        let Self::Published(service) = self else { return false };
        service.endpoints().iter().any(|endpoint| endpoint.slots.has_waiting(at_least))
    }
}

impl Attached {
    /// Lets the kernel send requests to this service if they need only a pick. If all connections are in use,
    /// opens further ones.
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
        let Ok(exported) = ExportedService::of(handle) else { return };
        // No block of statistics is free: other services use all of them.
        let Some(policy) = policy_of(self, sender, &exported) else { return };
        let service = Arc::new(PublishedService::new(handle.name(), self.stopped().child_token()));
        service.take_over(self, &exported, &policy);
        if !self.claim(handle, &service) {
            return;
        }
        let (attached, handle) = (Arc::clone(self), handle.clone());
        let (published, wait) = oneshot::channel();
        self.tasks.spawn(async move {
            let Some(entry) = service.insert(&attached, &exported).await else {
                attached.published().insert(handle.name().clone(), Publication::Failed(Instant::now()));
                return service.connections.withdrawn.cancel();
            };
            attached.services_changed.send_replace(());
            // The request may have stopped waiting.
            let _ = published.send(());
            service.follow(&attached, &handle, exported, &entry).await;
            drop(entry);
            service.connections.withdrawn.cancel();
            attached.published().remove(handle.name());
            attached.services_changed.send_replace(());
        });
        // If publishing takes longer, it goes on in the background.
        let _ = timeout(PUBLISH_WAIT, wait).await;
    }

    /// Claims the entry of a service. Fails if another task has just done so.
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
    fn new(name: &ServiceName, withdrawn: CancellationToken) -> Self {
        Self {
            endpoints: Mutex::default(),
            backends: Mutex::default(),
            key: OnceLock::new(),
            connections: Arc::new(ServiceConnections::new(name.clone(), withdrawn)),
        }
    }

    /// The other services that the service's splits lead to.
    pub(super) fn backends(&self) -> MutexGuard<'_, Vec<ServiceName>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<PublishedEndpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects to the endpoint if there is only one, and publishes the policy. If there are several, each is
    /// connected when the kernel first picks it.
    async fn insert(&self, attached: &Arc<Attached>, exported: &ExportedService) -> Option<PublishedPolicy> {
        let only = match &self.endpoints()[..] {
            [only] => Some(Arc::clone(only)),
            _ => None,
        };
        if let Some(only) = only {
            only.open(attached).await?;
        }
        let sender = attached.sender()?;
        let entry = sender.publish(exported.authority(), &policy_of(attached, sender, exported)?)?;
        // Cannot fail: only this task sets the key.
        let _ = self.key.set(entry.key());
        Some(entry)
    }

    /// Keeps the policy up to date until requests need more than a pick, no connection is left, or the kernel must
    /// stop sending.
    async fn follow(
        &self,
        attached: &Attached,
        handle: &ServiceHandle,
        mut exported: ExportedService,
        entry: &PublishedPolicy,
    ) {
        let Some(sender) = attached.sender() else { return };
        let mut services_changed = attached.services_changed.subscribe();
        services_changed.mark_changed();
        loop {
            tokio::select! {
                () = exported.outdated() => {
                    let Ok(next) = ExportedService::of(handle) else { return };
                    let Some(policy) = policy_of(attached, sender, &next) else { return };
                    self.take_over(attached, &next, &policy);
                    entry.update(&policy);
                    drop(policy);
                    exported = next;
                }
                Ok(()) = services_changed.changed() => if !exported.routes.arms.is_empty() {
                    let Some(policy) = policy_of(attached, sender, &exported) else { return };
                    entry.update(&policy);
                },
                () = self.connections.withdrawn.cancelled() => return,
                () = sleep(IDLE_TIMEOUT) => if self.connections.is_empty() {
                    return;
                },
            }
        }
    }

    /// Replaces candidates and backends. Connections to former candidates are closed when idle.
    fn take_over(&self, attached: &Attached, exported: &ExportedService, policy: &Policy<'_>) {
        let backends = exported.routes.arms.iter().map(|arm| arm.backend.service.clone());
        *self.backends() = backends.filter(|backend| backend != exported.name()).collect();
        let mut endpoints = self.endpoints();
        let before = std::mem::take(&mut *endpoints);
        for index in exported.numbers.indices() {
            let Some(endpoint) = exported.endpoint(index) else { continue };
            let kept = before.iter().find(|one| one.endpoint.index() == index && one.endpoint.is(&endpoint));
            let made = || {
                let slots = attached.sender()?.endpoint(policy.block, index)?;
                let made = Arc::new(PublishedEndpoint::new(endpoint, slots, &self.connections));
                attached.add_endpoint((policy.block, index), &made);
                Some(made)
            };
            endpoints.extend(kept.cloned().or_else(made));
        }
        let may_take_kernel = exported.local_transport() == LocalTransport::Kernel;
        endpoints.iter().for_each(|endpoint| endpoint.set_may_take_kernel(may_take_kernel));
        for gone in before.iter().filter(|one| !endpoints.iter().any(|kept| Arc::ptr_eq(kept, one))) {
            gone.withdrawn.cancel();
        }
    }
}
