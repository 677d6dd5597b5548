//! Opens a store in etcd, in one or several clusters.

use std::{sync::Arc, time::Duration};

use fairmesh_model::StoreId;
use fairmesh_store::{EtcdConfig, EtcdStore, PartitionedStore, Store, StoreError, is_partitioned};

/// A store for which this process holds the writer lease.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) store: Arc<dyn Store>,
    /// The same store, if it supports several partitions.
    pub(crate) partitions: Option<Arc<PartitionedStore>>,
}

/// Opens the existing store, partitioned or not, and waits for its writer lease.
pub(crate) async fn open_as_writer(
    etcd: &EtcdConfig,
    holder: &str,
    ttl: Duration,
) -> Result<OpenStore, StoreError> {
    if is_partitioned(etcd).await? == Some(true) {
        let store = Arc::new(PartitionedStore::open(etcd, holder, ttl).await?);
        return Ok(OpenStore { store: store.clone(), partitions: Some(store) });
    }
    let store = EtcdStore::open(etcd).await?;
    store.acquire_writer_lease(holder, ttl).await?;
    Ok(OpenStore { store: Arc::new(store), partitions: None })
}

/// Gives an existing store a new id.
pub(crate) async fn regenerate_id(etcd: &EtcdConfig) -> Result<StoreId, StoreError> {
    match is_partitioned(etcd).await? {
        Some(true) => PartitionedStore::regenerate_id(etcd).await,
        _ => EtcdStore::regenerate_id(etcd).await,
    }
}
