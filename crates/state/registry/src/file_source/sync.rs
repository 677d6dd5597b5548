use std::{collections::BTreeSet, path::Path};

use fairmesh_model::Prefix;

use super::{FileSource, KnownFiles, SOURCE_LABEL};
use crate::{
    InstanceClaim, InstanceRef, MAX_BATCH, Registration, RegistryError, stored_records::StoredEndpoint,
};

impl FileSource {
    /// Finds the files of this source that registered endpoints before this process started, and the services of
    /// these endpoints.
    pub(super) fn load_known(&self) -> KnownFiles {
        let mut known = KnownFiles::default();
        for held in self.registry.stored_endpoints(&Prefix::everything()) {
            let file = held.endpoint.labels.get(SOURCE_LABEL);
            if let Some(file) = file.filter(|file| self.is_of(Path::new(file))) {
                known.files.entry(file.clone()).or_default();
                known.services.entry(file.clone()).or_default().insert(held.service);
            }
        }
        known
    }

    /// Whether this source reads the file.
    fn is_of(&self, file: &Path) -> bool {
        file == self.path || file.parent() == Some(&self.path)
    }

    /// Registers the endpoints that a file lists, then removes those that it no longer lists.
    pub(super) async fn sync(
        &self,
        file: &str,
        wanted: &[Registration],
        known: &mut KnownFiles,
    ) -> Result<(), RegistryError> {
        let services = known.services.entry(file.to_owned()).or_default();
        services.extend(wanted.iter().map(|registration| registration.service.clone()));
        for batch in wanted.chunks(MAX_BATCH) {
            self.registry.register(batch).await?;
        }
        let listed: BTreeSet<InstanceRef> = wanted.iter().map(Registration::instance_ref).collect();
        let ours =
            |held: &StoredEndpoint| held.endpoint.labels.get(SOURCE_LABEL).is_some_and(|label| label == file);
        let held = services.iter().flat_map(|service| self.registry.endpoints(service));
        let gone =
            held.filter(ours).map(|held| held.instance_ref()).filter(|instance| !listed.contains(instance));
        for batch in gone.map(InstanceClaim::from).collect::<Vec<_>>().chunks(MAX_BATCH) {
            self.registry.deregister(batch).await?;
        }
        if let Some((_, Registration { service, endpoint, .. })) = self.registry.find_plaintext(wanted) {
            let instance = &endpoint.instance;
            tracing::warn!(
                file, %service, %instance,
                "plaintext endpoint in a strict mesh, which no caller uses; write 'mtls: permissive' into the policy of the service, \
                 or 'mtls: true' into the file where it speaks mutual TLS"
            );
        }
        tracing::info!(file, endpoints = wanted.len(), "endpoints of this file are registered");
        Ok(())
    }
}
