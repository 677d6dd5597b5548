//! Opens a store in etcd, in one or several clusters.

use std::{sync::Arc, time::Duration};

use fairmesh_model::StoreId;

use super::{EtcdConfig, EtcdStore, PartitionedStore, is_partitioned};
use crate::{Store, StoreError};

/// A store for which this process holds the writer lease.
#[derive(Debug)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The same store, if it supports several partitions.
    pub partitions: Option<Arc<PartitionedStore>>,
}

impl OpenStore {
    /// Opens the store, partitioned or not, and waits for its writer lease.
    ///
    /// # Errors
    /// As for [`EtcdStore::open`] and [`PartitionedStore::open`].
    pub async fn open(etcd: &EtcdConfig, holder: &str, ttl: Duration) -> Result<Self, StoreError> {
        if is_partitioned(etcd).await? == Some(true) {
            let store = Arc::new(PartitionedStore::open(etcd, holder, ttl).await?);
            return Ok(Self { store: store.clone(), partitions: Some(store) });
        }
        let store = EtcdStore::open(etcd).await?;
        store.acquire_writer_lease(holder, ttl).await?;
        Ok(Self { store: Arc::new(store), partitions: None })
    }

    /// Gives an existing store a new id.
    ///
    /// # Errors
    /// As for [`EtcdStore::regenerate_id`].
    pub async fn regenerate_id(etcd: &EtcdConfig) -> Result<StoreId, StoreError> {
        match is_partitioned(etcd).await? {
            Some(true) => PartitionedStore::regenerate_id(etcd).await,
            _ => EtcdStore::regenerate_id(etcd).await,
        }
    }
}
