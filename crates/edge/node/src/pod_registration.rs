//! The endpoints of pods. They are registered with the address of this node while the pods accept
//! connections.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_model::{Endpoint, EndpointState, FULL_WEIGHT, InstanceId, Invalid, ServiceName};
use fairmesh_server::{Lease, Registration, RegistryClient};
use fairmesh_wire::transport::{Address, Transport};
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::config::ServedPod;

/// Intervals of probes: the usual interval, and the one until the pod has first accepted a connection.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const FIRST_PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit of a probe. It is short, since the pod is on this machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of consecutive failed probes after which callers avoid a pod. A single failure may be an accident.
const LOST_AFTER: u32 = 2;
/// Time for which a pod stays registered without renewal if the node dies.
const LEASE: Duration = Duration::from_secs(10);

/// The endpoint of a pod.
#[derive(Debug)]
pub(crate) struct RegisteredPod {
    registry: Arc<RegistryClient>,
    registration: Registration,
    pod: SocketAddr,
}

impl RegisteredPod {
    /// Creates an endpoint of `service`, to be registered with the identity of the service.
    ///
    /// # Errors
    /// The addresses cannot be registered.
    pub(crate) fn new(
        service: &ServiceName,
        served: ServedPod,
        (registry, transport): (&[Address], &Transport),
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
        Ok(Self { registry, registration, pod: served.pod })
    }

    /// Probes the pod and keeps it registered, from its first accepted connection until `stop`. Then drains it until
    /// callers have left, for at most `drain`, and deregisters it. If the future is dropped earlier, the endpoint
    /// stays registered for a successor of this process.
    pub(crate) async fn keep(self, stop: CancellationToken, drain: Duration) {
        let mut lease: Option<Lease> = None;
        let probing = async {
            let mut failures = 0;
            loop {
                failures = if accepts(self.pod).await { 0 } else { failures + 1 };
                match &lease {
                    None if failures == 0 => lease = Some(self.lease()),
                    Some(lease) if failures == 0 => lease.set(EndpointState::Serving),
                    Some(lease) if failures == LOST_AFTER => {
                        tracing::warn!(service = %self.registration.service, pod = %self.pod, "a pod accepts no connections");
                        lease.set(EndpointState::Lost);
                    }
                    _ => {}
                }
                sleep(if lease.is_some() { PROBE_INTERVAL } else { FIRST_PROBE_INTERVAL }).await;
            }
        };
        let _: Option<()> = stop.run_until_cancelled(probing).await;
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

async fn accepts(pod: SocketAddr) -> bool {
    matches!(timeout(PROBE_TIMEOUT, TcpStream::connect(pod)).await, Ok(Ok(_)))
}
