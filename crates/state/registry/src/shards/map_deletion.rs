use fairmesh_model::{Invalid, RecordKey, ServiceName, ShardPart};
use fairmesh_rib::{Expect, Op};

use crate::{Registry, RegistryError, stored_records::StoredShardMap};

/// Maximum number of records that one batch deletes. Batches are bounded, and a map may have more chunks.
const MAX_DELETIONS: usize = 5_000;

impl Registry {
    /// Deletes the shard map of a service, whether the service is declared or not. `version` is the version that the
    /// caller read. A stored map that cannot be read is deleted whatever its version. Moves in flight end, since there is
    /// no map to change.
    ///
    /// # Errors
    /// `NotFound` when the service has no map, `Conflict` with both versions when the present version differs.
    pub async fn delete_shards(&self, service: &ServiceName, version: u64) -> Result<(), RegistryError> {
        let _one_writer = self.shared.map_writer.lock().await;
        // The first batch deletes what makes the records a map. Chunks alone are no map.
        let chunks = self
            .change(|| {
                let held = self.map_to_replace(service).ok_or_else(|| no_map(service))?;
                let current = held.map.version;
                if current != version && !held.is_unreadable() {
                    let problem = format!("the map has version {current} and yours rests on {version}");
                    let hint = "read the map again and repeat the deletion";
                    return Err(RegistryError::Conflict(Invalid::new("version", problem, hint)));
                }
                Ok(map_deletions(service, &held))
            })
            .await?
            .output;
        for batch in chunks.chunks(MAX_DELETIONS) {
            self.write(batch.to_vec()).await?;
        }
        Ok(())
    }
}

/// Deletions of the manifests and of the chunks. That of the range manifest is conditional: every change rewrites it.
fn map_deletions(service: &ServiceName, held: &StoredShardMap) -> (Vec<Op>, Vec<Op>) {
    let ranges = RecordKey::ShardManifest(service.clone(), ShardPart::Ranges);
    let deletion = |key: &RecordKey| {
        let op = Op::delete(key.to_string());
        if *key == ranges { op.expecting(Expect::Revision(held.revision)) } else { op }
    };
    let (chunks, manifests): (Vec<_>, Vec<_>) =
        held.entries.keys().partition(|key| matches!(key, RecordKey::ShardChunk(..)));
    let ops = |keys: Vec<&RecordKey>| keys.into_iter().map(deletion).collect::<Vec<_>>();
    (ops(manifests), ops(chunks))
}

fn no_map(service: &ServiceName) -> RegistryError {
    RegistryError::not_found("service", format!("{service} has no shard map"), "there is nothing to delete")
}
