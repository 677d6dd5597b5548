//! Reads all partitions of a store at one revision.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{
    super::{call_error::CallError, load::RangeScan, watch_loop::read_meta},
    cluster::Cluster,
    conditional_write,
    state::{PartitionedState, Partitions},
};
use crate::{StoreError, StoreSnapshot};

/// Time limit for pausing writes until none is in flight.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of attempts to read at one revision. Compaction may interrupt an attempt.
const MAX_ATTEMPTS: u32 = 5;

impl PartitionedState {
    /// Reads the whole store at its newest revision.
    pub(super) async fn load(&self) -> Result<StoreSnapshot, StoreError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.load_once().await {
                Err(StoreError::Refused { problem, .. })
                    if attempts < MAX_ATTEMPTS && problem.contains("compacted") => {}
                loaded => return loaded,
            }
        }
    }

    async fn load_once(&self) -> Result<StoreSnapshot, StoreError> {
        let busy = |_| StoreError::Unavailable {
            location: self.location(),
            problem: "a write to one of its partitions is still in flight".into(),
        };
        let (partitions, newest, revisions) =
            timeout(QUIESCE_TIMEOUT, self.revisions()).await.map_err(busy)??;
        let mut entries = Vec::new();
        for (part, (cluster, revision)) in partitions.clusters.iter().zip(revisions).enumerate() {
            let store_error = |failure: CallError| failure.into_store_error(&cluster.client.location);
            let mut scan = RangeScan::new(cluster.layout.record_range(), revision);
            while let Some(kvs) = scan.next(&cluster.client).await.map_err(store_error)? {
                let found =
                    kvs.into_iter().filter_map(|kv| conditional_write::decode_entry(&cluster.layout, kv));
                // Skips leftovers and unfinished copies of moves.
                entries.extend(found.filter(|(key, _)| partitions.map.partition_of(key) == part));
            }
        }
        entries.sort_unstable_by(|(before, _), (after, _)| before.cmp(after));
        Ok((newest, entries))
    }

    /// Returns the newest revision, and the revision of each partition's cluster, while no write is in flight.
    async fn revisions(&self) -> Result<(Arc<Partitions>, u64, Vec<u64>), StoreError> {
        loop {
            let (partitions, mut gates) = (self.partitions(), Vec::new());
            for cluster in &partitions.clusters {
                gates.push(cluster.gate.clone().write_owned().await);
            }
            // A move may have ended during the wait for the gates.
            if !Arc::ptr_eq(&partitions, &self.partitions()) {
                continue;
            }
            let (newest, mut revisions) = (self.sequence.committed(), Vec::new());
            for cluster in &partitions.clusters {
                revisions.push(
                    cluster_revision(cluster)
                        .await
                        .map_err(|f| f.into_store_error(&cluster.client.location))?,
                );
            }
            return Ok((partitions, newest, revisions));
        }
    }
}

/// Returns the newest revision of a partition's cluster.
async fn cluster_revision(cluster: &Cluster) -> Result<u64, CallError> {
    Ok(read_meta(&cluster.client, &cluster.layout).await?.revision)
}
