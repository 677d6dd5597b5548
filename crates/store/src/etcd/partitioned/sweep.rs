//! Takes away what moves left behind: nobody reads it, and it takes up room.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::{
    super::{
        client::{self, Again},
        failure::Failure,
        layout::Layout,
        load::{Scan, after},
        proto::TxnRequest,
    },
    change::{self, Change},
    cluster::{Cluster, Verdict},
    core::Core,
    map::HOME,
    open::Until,
    split::PATIENCE,
};

/// How many keys one transaction deletes or copies: an etcd with its own bounds takes it.
pub(super) const MAX_KEYS: usize = 100;

impl Core {
    /// Once, after the store was opened; tries again until it is done.
    pub(super) async fn sweep(&self) {
        let _moving = self.moving.lock().await;
        let mut failures = 0;
        while let Err(failure) = self.try_sweep().await {
            failures += 1;
            tracing::debug!(problem = failure.words(), "what moves left behind cannot be taken away yet");
            sleep(client::pause(failures)).await;
        }
    }

    async fn try_sweep(&self) -> Result<(), Failure> {
        let routes = self.routes();
        for (part, cluster) in routes.clusters.iter().enumerate() {
            let stays = |key: &str| routes.map.part(key) == part;
            self.delete(cluster, stays).await?;
        }
        former(&routes.clusters[HOME], self.config.address.root()).await
    }

    /// Deletes records of a part but those that stay.
    pub(super) async fn delete(
        &self,
        cluster: &Arc<Cluster>,
        stays: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let mut scan = Scan::new(cluster.layout.records(), 0).keys_only();
        while let Some(kvs) = scan.next(&cluster.client).await? {
            let gone = kvs.into_iter().map(|kv| kv.key);
            let gone: Vec<_> =
                gone.filter(|key| cluster.layout.record_at(key).is_some_and(|key| !stays(key))).collect();
            for keys in gone.chunks(MAX_KEYS) {
                carry(cluster, keys.iter().map(|key| (key.clone(), None)).collect()).await?;
            }
        }
        Ok(())
    }
}

/// Writes keys of one part as they are to be, exactly once.
pub(super) async fn carry(cluster: &Cluster, writes: Vec<(Bytes, Option<Bytes>)>) -> Result<(), Failure> {
    match cluster.carry(&Change::raw(writes), &mut Until(Instant::now() + PATIENCE)).await? {
        Verdict::Written => Ok(()),
        verdict => Err(Failure::Unknown(format!("this process may not write there any more ({verdict:?})"))),
    }
}

/// Deletes the records of when the store was in one cluster.
async fn former(home: &Cluster, root: &str) -> Result<(), Failure> {
    let mut scan = Scan::new(Layout::new(root).records(), 0).keys_only();
    while let Some(kvs) = scan.next(&home.client).await? {
        let (Some(first), Some(last)) = (kvs.first(), kvs.last()) else { return Ok(()) };
        let range = change::delete(first.key.clone(), after(&last.key));
        let deletion = TxnRequest { success: vec![range], ..TxnRequest::default() };
        home.client.txn(Again::Always, deletion).await?;
    }
    Ok(())
}
