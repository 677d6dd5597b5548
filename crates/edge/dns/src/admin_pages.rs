//! The admin pages.

use std::sync::Arc;

use fairmesh_listen::Listeners;
use fairmesh_pages::{Process, Readiness};
use prometheus_client::registry::Registry;

use crate::answers::Answers;

/// The data that the admin pages show.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) answers: Arc<Answers>,
    pub(crate) listeners: Listeners,
}

impl Process for Pages {
    const KIND: &'static str = "dns";

    fn register(&self, metrics: &mut Registry) {
        let registry = metrics.sub_registry_with_prefix(Self::KIND);
        self.answers.metrics.register(self.answers.directory.status(), registry);
        self.listeners.register(registry);
    }

    async fn readiness(&self) -> Readiness {
        match self.answers.directory.status() {
            (_, true) => Readiness::ready(),
            // Names already known are still answered meanwhile.
            (_, false) => Readiness::Unready("the agent is not followed".into()),
        }
    }
}
