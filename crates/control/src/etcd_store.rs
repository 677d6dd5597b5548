//! A store in etcd: in one cluster, or in several.

use std::{sync::Arc, time::Duration};

use fairmesh_model::StoreId;
use fairmesh_store::{EtcdConfig, EtcdStore, PartitionedStore, Store, StoreError, is_partitioned};

/// A store that this process holds.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The same, where it can have several parts.
    pub(crate) partitions: Option<Arc<PartitionedStore>>,
}

/// Opens the store that is there, in its own form, and waits until nobody else holds it.
pub(crate) async fn open(etcd: &EtcdConfig, who: &str, term: Duration) -> Result<Opened, StoreError> {
    if is_partitioned(etcd).await? == Some(true) {
        let store = Arc::new(PartitionedStore::open(etcd, who, term).await?);
        return Ok(Opened { store: store.clone(), partitions: Some(store) });
    }
    let store = EtcdStore::open(etcd).await?;
    store.acquire_writer_lease(who, term).await?;
    Ok(Opened { store: Arc::new(store), partitions: None })
}

/// Gives the store that is there another id.
pub(crate) async fn renew_id(etcd: &EtcdConfig) -> Result<StoreId, StoreError> {
    match is_partitioned(etcd).await? {
        Some(true) => PartitionedStore::renew_id(etcd).await,
        _ => EtcdStore::renew_id(etcd).await,
    }
}
