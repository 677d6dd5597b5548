//! Bounds of the write queue.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_rib::Batch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{StoreLocation, WriteError};

/// Maximum number of batches in the queue.
const MAX_QUEUED: usize = 4096;
/// Maximum size of keys and values in the queue, in bytes.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// Remaining capacity of the write queue.
#[derive(Debug)]
pub(super) struct WriteAdmission {
    batches: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// Capacity used by one queued batch, freed on drop.
#[derive(Debug)]
pub(super) struct WritePermit {
    _batch: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Default for WriteAdmission {
    fn default() -> Self {
        Self {
            batches: Arc::new(Semaphore::new(MAX_QUEUED)),
            bytes: Arc::new(Semaphore::new(MAX_QUEUED_BYTES)),
        }
    }
}

impl WriteAdmission {
    /// Admits a batch to the queue, or refuses it if the queue is full.
    pub(super) fn admit(&self, batch: &Batch, location: &StoreLocation) -> Result<WritePermit, WriteError> {
        let bytes: usize =
            batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, Bytes::len)).sum();
        let overloaded = |_| WriteError::Overloaded { location: location.clone() };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Ok(WritePermit {
            _batch: self.batches.clone().try_acquire_owned().map_err(overloaded)?,
            _bytes: self.bytes.clone().try_acquire_many_owned(bytes).map_err(overloaded)?,
        })
    }
}
