//! State that the admin pages read.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use fairmesh_calls::Mesh;
use fairmesh_listen::Listeners;
use fairmesh_server::Server;

use crate::{
    admin::proxy_info::ProxyInfo, forward::services::Services, metrics::ProxyMetrics,
    observe::observer::RequestObserver,
};

/// Shared by all handlers.
#[derive(Clone, Debug)]
pub(crate) struct AdminState {
    pub(crate) mesh: Mesh,
    pub(crate) services: Arc<Services>,
    pub(crate) metrics: Arc<ProxyMetrics>,
    pub(crate) observer: Arc<RequestObserver>,
    pub(crate) about: Arc<ProxyInfo>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) inbound: Option<Server>,
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
            inbound: None,
            listeners: Listeners::default(),
        }
    }

    /// Adds the endpoint of `--inbound`.
    pub(crate) fn with_inbound(self, inbound: Option<Server>) -> Self {
        Self { inbound, ..self }
    }

    pub(crate) fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Relaxed);
    }
}
