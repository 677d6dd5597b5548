//! Deletes records that moves left behind. Readers ignore them, but they use space.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        call_error::CallError,
        client::{self, RetryPolicy},
        key_layout::Layout,
        load::{RangeScan, successor},
        proto::TxnRequest,
    },
    cluster::{Cluster, CommitOutcome},
    conditional_write::{self, ConditionalWrite},
    open::RetryUntil,
    partition_map::HOME,
    split::STEP_TIMEOUT,
    state::PartitionedState,
};

/// Maximum number of keys in a transaction that deletes or copies: within etcd's default limit.
pub(super) const MAX_KEYS_PER_TXN: usize = 100;

impl PartitionedState {
    /// Deletes leftover records, with retries. Called once after the store was opened.
    pub(super) async fn collect_garbage(&self) {
        let _lock = self.move_lock.lock().await;
        let mut failures = 0;
        while let Err(failure) = self.collect_garbage_once().await {
            failures += 1;
            tracing::debug!(
                problem = failure.message(),
                "records left behind by moves cannot be deleted yet"
            );
            sleep(client::backoff(failures)).await;
        }
    }

    async fn collect_garbage_once(&self) -> Result<(), CallError> {
        let partitions = self.partitions();
        for (part, cluster) in partitions.clusters.iter().enumerate() {
            let keep = |key: &str| partitions.map.partition_of(key) == part;
            self.delete(cluster, keep).await?;
        }
        delete_unpartitioned_records(&partitions.clusters[HOME], self.config.address.root()).await
    }

    /// Deletes the records of a partition except those that `keep` selects.
    pub(super) async fn delete(
        &self,
        cluster: &Arc<Cluster>,
        keep: impl Fn(&str) -> bool,
    ) -> Result<(), CallError> {
        let mut scan = RangeScan::new(cluster.layout.record_range(), 0).keys_only();
        while let Some(kvs) = scan.next(&cluster.client).await? {
            let stale = kvs.into_iter().map(|kv| kv.key);
            let stale: Vec<_> = stale
                .filter(|key| cluster.layout.parse_record_key(key).is_some_and(|key| !keep(key)))
                .collect();
            for keys in stale.chunks(MAX_KEYS_PER_TXN) {
                write_keys(cluster, keys.iter().map(|key| (key.clone(), None)).collect()).await?;
            }
        }
        Ok(())
    }
}

/// Writes keys in one partition, exactly once.
pub(super) async fn write_keys(
    cluster: &Cluster,
    writes: Vec<(Bytes, Option<Bytes>)>,
) -> Result<(), CallError> {
    match cluster
        .commit_copy(&ConditionalWrite::raw(writes), &mut RetryUntil(Instant::now() + STEP_TIMEOUT))
        .await?
    {
        CommitOutcome::Written => Ok(()),
        outcome => {
            Err(CallError::Unknown(format!("this process may not write there any more ({outcome:?})")))
        }
    }
}

/// Deletes the records in the unpartitioned format, left from before the conversion.
async fn delete_unpartitioned_records(home: &Cluster, root: &str) -> Result<(), CallError> {
    let mut scan = RangeScan::new(Layout::new(root).record_range(), 0).keys_only();
    while let Some(kvs) = scan.next(&home.client).await? {
        let (Some(first), Some(last)) = (kvs.first(), kvs.last()) else { return Ok(()) };
        let range = conditional_write::delete(first.key.clone(), successor(&last.key));
        let deletion = TxnRequest { success: vec![range], ..TxnRequest::default() };
        home.client.txn(RetryPolicy::Repeatable, deletion).await?;
    }
    Ok(())
}
