use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use fairmesh_listen::Listeners;
use fairmesh_pages::{Process, Readiness};
use prometheus_client::registry::Registry;

use crate::picker::Picker;

/// Data for the admin pages.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) picker: Arc<Picker>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) listeners: Listeners,
}

impl Process for Pages {
    const KIND: &'static str = "lookaside";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        self.picker.register_metrics(registry);
        self.listeners.register(registry);
    }

    async fn readiness(&self) -> Readiness {
        match self.ready.load(Relaxed) {
            true => Readiness::ready(),
            false => Readiness::Unready("starting, or draining".into()),
        }
    }
}
