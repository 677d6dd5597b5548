//! The endpoints of pods. They are registered with the address of this node while the pods accept connections.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Invalid, ServiceName};
use fairmesh_server::{Lease, Registration, RegistryClient};
use fairmesh_wire::transport::{Address, Transport};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{config::ServedPod, pod_probes::Reachability};

/// Time for which a pod stays registered without renewal if the node dies.
const LEASE: Duration = Duration::from_secs(10);

/// The endpoint of a pod, of one service.
#[derive(Debug)]
pub(crate) struct RegisteredPod {
    registry: Arc<RegistryClient>,
    registration: Registration,
    pod: SocketAddr,
    probed: watch::Receiver<Reachability>,
}

impl RegisteredPod {
    /// Creates an endpoint of `service`, to be registered with the identity of the service while the probes of the
    /// pod succeed.
    ///
    /// # Errors
    /// The addresses cannot be registered.
    pub(crate) fn new(
        service: &ServiceName,
        served: ServedPod,
        (registry, transport): (&[Address], &Transport),
        probed: watch::Receiver<Reachability>,
    ) -> Result<Self, Invalid> {
        // The node's address is part of the name: pods on two nodes may have the same address.
        let instance = format!("{}-{}", text(served.node), text(served.pod));
        let registration = Registration {
            service: service.clone(),
            instance: InstanceId::new(instance)?,
            address: served.node,
            location: None,
            weight: FULL_WEIGHT,
            lease: LEASE,
            mtls: true,
            labels: BTreeMap::from([(Endpoint::POD.to_owned(), served.pod.to_string())]),
            declaration: None,
        };
        registration.validate()?;
        let software = format!("node {service} {}", registration.instance);
        let registry = Arc::new(RegistryClient::new(registry.to_vec(), software, transport.clone()));
        Ok(Self { registry, registration, pod: served.pod, probed })
    }

    /// Keeps the pod registered, from its first successful probe until `stop`. Then drains it until callers have
    /// left, for at most `drain`, and deregisters it. If the future is dropped earlier, the endpoint stays registered
    /// for a successor of this process.
    pub(crate) async fn keep(mut self, stop: CancellationToken, drain: Duration) {
        let mut lease: Option<Lease> = None;
        let following = async {
            loop {
                let reachability = *self.probed.borrow_and_update();
                match (&lease, reachability) {
                    (None, Reachability::Reached) => lease = Some(self.lease()),
                    (Some(lease), Reachability::Reached) => lease.set(EndpointState::Serving),
                    (Some(lease), Reachability::Lost) => {
                        tracing::warn!(service = %self.registration.service, pod = %self.pod, "a pod accepts no connections");
                        lease.set(EndpointState::Lost);
                    }
                    (None, Reachability::Lost) | (_, Reachability::Unknown) => {}
                }
                if self.probed.changed().await.is_err() {
                    return;
                }
            }
        };
        let _: Option<()> = stop.run_until_cancelled(following).await;
        if let Some(lease) = lease {
            let _ = lease.drain(drain).await;
            if let Err(error) = lease.leave().await {
                tracing::warn!(%error, pod = %self.pod, "a pod could not be deregistered; its lease expires by itself");
            }
        }
    }

    fn lease(&self) -> Lease {
        tracing::info!(service = %self.registration.service, pod = %self.pod, node = %self.registration.address, "registering a pod");
        Lease::keep(Arc::clone(&self.registry), self.registration.clone(), EndpointState::Serving)
    }
}

/// An address, in characters that instance ids allow.
fn text(address: SocketAddr) -> String {
    format!("{}:{}", address.ip().to_string().replace(':', "."), address.port())
}
