//! The state that the admin pages read.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use fairmesh_calls::{Mesh, forwarding::transport};
use fairmesh_edge::{observe::observer::RequestObserver, services::Services};
use fairmesh_identity::RemoteKeys;
use fairmesh_listen::Listeners;
use fairmesh_metrics::UNKNOWN;

use crate::{
    admin::{metrics::ProxyMetrics, proxy_info::ProxyInfo},
    inbound::server::ServedEndpoint,
};

/// State shared by all handlers.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    pub(crate) mesh: Mesh,
    pub(crate) services: Arc<Services>,
    pub(crate) metrics: Arc<ProxyMetrics>,
    pub(crate) observer: Arc<RequestObserver>,
    pub(crate) about: Arc<ProxyInfo>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) draining: Arc<AtomicBool>,
    pub(crate) inbound: Option<ServedEndpoint>,
    pub(crate) key_servers: Option<Arc<RemoteKeys>>,
    pub(crate) listeners: Listeners,
}

impl AdminState {
    pub(crate) fn new(
        mesh: Mesh,
        services: Arc<Services>,
        metrics: Arc<ProxyMetrics>,
        observer: Arc<RequestObserver>,
        about: ProxyInfo,
    ) -> Self {
        let about = Arc::new(about);
        Self {
            mesh,
            services,
            metrics,
            observer,
            about,
            ready: Arc::default(),
            draining: Arc::default(),
            inbound: None,
            key_servers: None,
            listeners: Listeners::default(),
        }
    }

    /// Adds the endpoint of `--inbound`.
    pub(crate) fn with_inbound(self, inbound: Option<ServedEndpoint>) -> Self {
        Self { inbound, ..self }
    }

    /// Adds the key server of the listeners' certificate.
    pub(crate) fn with_key_servers(self, key_servers: Option<Arc<RemoteKeys>>) -> Self {
        Self { key_servers, ..self }
    }

    /// The service whose programs call through the proxy; without one, the identity of the proxy.
    pub(crate) fn calling_service(&self) -> String {
        let of_identity = || self.mesh.identity().map(|id| id.path.to_string());
        let service = self.about.service.as_ref().map(ToString::to_string);
        service.or_else(of_identity).unwrap_or_else(|| UNKNOWN.to_owned())
    }

    /// Why calls to endpoints with mutual TLS fail: the mesh has a trust domain, and this proxy has no identity.
    pub(crate) fn lacks_identity(&self) -> Option<String> {
        transport(&self.mesh).lacks_identity()
    }

    /// Why the proxy has no identity so far. Its agent may not know yet whether the mesh has a trust domain.
    pub(crate) fn identity_problem(&self) -> Option<String> {
        transport(&self.mesh).identity_problem()
    }

    /// Describes what the ready proxy cannot do. Without an identity it still serves calls to plaintext endpoints,
    /// which a policy may permit, so it stays ready, like Envoy without a secret of one of its clusters.
    pub(crate) fn ready_text(&self) -> String {
        match self.lacks_identity() {
            None => "ready".to_owned(),
            Some(problem) => {
                format!(
                    "ready, without an identity: calls to endpoints with mutual TLS fail with 503: {problem}"
                )
            }
        }
    }

    /// Describes what the proxy still waits for before it is ready.
    pub(crate) fn waits_for(&self) -> String {
        if self.draining.load(Relaxed) {
            return "draining".to_owned();
        }
        let freshness = self.mesh.freshness();
        match freshness.connected {
            true => match self.identity_problem() {
                None => "starting: waits for the records of its listeners' services".to_owned(),
                Some(problem) => {
                    format!(
                        "starting: waits for the records of its listeners' services and for its identity: {problem}"
                    )
                }
            },
            false => {
                let address = freshness.address.map(|address| address.to_string());
                let error = freshness.error.unwrap_or_else(|| "no response".to_owned());
                format!(
                    "starting: no agent or control plane responds at {} ({error}) and there is no copy on disk; connections wait until one does",
                    address.as_deref().unwrap_or("its address")
                )
            }
        }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
        // Once ready, the proxy stays ready until it ends.
        self.draining.store(!ready, Relaxed);
    }
}
