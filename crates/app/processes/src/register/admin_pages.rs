//! Admin pages of `fairmesh register`.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use fairmesh_console::failure::Failure;
use fairmesh_listen::{Listeners, listener_table};
use fairmesh_metrics::DurationFamily;
use fairmesh_pages::{AdminListener, AdminServer, Process, Readiness, router};
use fairmesh_proxy::{ProgramFront, RequestObserver};
use fairmesh_server::RegistrationState;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

/// State shown on the pages.
#[derive(Debug)]
pub(super) struct RegisterPages {
    pub(super) observer: Arc<RequestObserver>,
    /// Listener in front of the program, once this command has opened one.
    pub(super) front: OnceLock<ProgramFront>,
    /// State of the registration, once the program has responded.
    pub(super) standing: OnceLock<watch::Receiver<RegistrationState>>,
    listeners: Listeners,
}

impl RegisterPages {
    pub(super) fn new(observer: Arc<RequestObserver>) -> Arc<Self> {
        let (front, standing) = (OnceLock::new(), OnceLock::new());
        Arc::new(Self { observer, front, standing, listeners: Listeners::default() })
    }

    /// Serves the admin pages if an address for them is given.
    pub(super) async fn serve(
        self: &Arc<Self>,
        address: Option<SocketAddr>,
    ) -> Result<Option<AdminServer>, Failure> {
        let bound =
            AdminListener::bind_optional(address, &self.listeners, &listener_table::REGISTER_ADMIN).await;
        let bound = bound.map_err(|error| Failure::stopped(&error))?;
        Ok(bound.map(|listener| listener.start(router(Arc::clone(self)))))
    }
}

impl Process for RegisterPages {
    const KIND: &'static str = "register";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        if let Some(front) = self.front.get() {
            front.register(registry);
        }
        self.observer.register(registry);
        self.listeners.register(registry);
    }

    fn calls(&self) -> Vec<DurationFamily> {
        self.front.get().map(ProgramFront::calls).unwrap_or_default()
    }

    async fn readiness(&self) -> Readiness {
        match self.standing.get().map(|standing| standing.borrow().clone()) {
            Some(RegistrationState::Registered(state)) => {
                Readiness::Ready(format!("registered and {}", state.as_str()))
            }
            Some(RegistrationState::Failing(problem)) => {
                Readiness::Unready(format!("not registered: {problem}"))
            }
            Some(_) => Readiness::Unready("registering".to_owned()),
            None => Readiness::Unready("waiting for the program to respond".to_owned()),
        }
    }
}
