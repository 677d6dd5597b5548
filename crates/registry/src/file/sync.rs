use std::collections::BTreeSet;

use fairmesh_model::Prefix;

use super::{FileSource, Memory, SOURCE_LABEL};
use crate::{InstanceRef, MAX_BATCH, Registration, RegistryError, view::Held};

impl FileSource {
    /// Finds the services in which files have endpoints, from before this process began.
    pub(super) fn remember(&self) -> Memory {
        let mut memory = Memory::default();
        for held in self.registry.held(&Prefix::everything()) {
            if let Some(file) = held.endpoint.labels.get(SOURCE_LABEL) {
                memory.services.entry(file.clone()).or_default().insert(held.service);
            }
        }
        memory
    }

    /// Registers what a file lists, then takes out what it listed before and lists no more.
    pub(super) async fn sync(
        &self,
        file: &str,
        wanted: &[Registration],
        memory: &mut Memory,
    ) -> Result<(), RegistryError> {
        let services = memory.services.entry(file.to_owned()).or_default();
        services.extend(wanted.iter().map(|registration| registration.service.clone()));
        for batch in wanted.chunks(MAX_BATCH) {
            self.registry.register(batch).await?;
        }
        let listed: BTreeSet<InstanceRef> = wanted.iter().map(Registration::who).collect();
        let ours = |held: &Held| held.endpoint.labels.get(SOURCE_LABEL).is_some_and(|label| label == file);
        let held = services.iter().flat_map(|service| self.registry.endpoints(service));
        let gone = held.filter(ours).map(|held| held.who()).filter(|who| !listed.contains(who));
        for batch in gone.collect::<Vec<_>>().chunks(MAX_BATCH) {
            self.registry.deregister(batch).await?;
        }
        tracing::info!(file, endpoints = wanted.len(), "endpoints of this file are registered");
        Ok(())
    }
}
