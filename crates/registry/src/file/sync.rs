use std::{collections::BTreeSet, path::Path};

use fairmesh_model::Prefix;

use super::{FileSource, Memory, SOURCE_LABEL};
use crate::{Claim, InstanceRef, MAX_BATCH, Registration, RegistryError, view::Held};

impl FileSource {
    /// Finds the files of this source that have endpoints, and in which services, from before this process began.
    pub(super) fn remember(&self) -> Memory {
        let mut memory = Memory::default();
        for held in self.registry.held(&Prefix::everything()) {
            let file = held.endpoint.labels.get(SOURCE_LABEL);
            if let Some(file) = file.filter(|file| self.is_of(Path::new(file))) {
                memory.files.entry(file.clone()).or_default();
                memory.services.entry(file.clone()).or_default().insert(held.service);
            }
        }
        memory
    }

    /// Whether this source reads the file where it is there.
    fn is_of(&self, file: &Path) -> bool {
        file == self.path || file.parent() == Some(&self.path)
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
        for batch in gone.map(Claim::from).collect::<Vec<_>>().chunks(MAX_BATCH) {
            self.registry.deregister(batch).await?;
        }
        tracing::info!(file, endpoints = wanted.len(), "endpoints of this file are registered");
        Ok(())
    }
}
