//! How much may wait to be written.

use std::sync::Arc;

use bytes::Bytes;
use fairmesh_rib::Batch;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Place, WriteError};

/// How many batches may wait.
const MAX_WAITING: usize = 4096;
/// How many bytes of keys and values they may hold.
const MAX_WAITING_BYTES: usize = 64 << 20;

/// What is left of both.
#[derive(Debug)]
pub(super) struct Waiting {
    batches: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// What a batch that waits takes up.
#[derive(Debug)]
pub(super) struct Room {
    _batch: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

impl Default for Waiting {
    fn default() -> Self {
        Self {
            batches: Arc::new(Semaphore::new(MAX_WAITING)),
            bytes: Arc::new(Semaphore::new(MAX_WAITING_BYTES)),
        }
    }
}

impl Waiting {
    /// Room for a batch to wait, or a refusal where too much waits already.
    pub(super) fn room(&self, batch: &Batch, place: &Place) -> Result<Room, WriteError> {
        let bytes: usize =
            batch.ops.iter().map(|op| op.key.len() + op.value.as_ref().map_or(0, Bytes::len)).sum();
        let overloaded = |_| WriteError::Overloaded { place: place.clone() };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Ok(Room {
            _batch: self.batches.clone().try_acquire_owned().map_err(overloaded)?,
            _bytes: self.bytes.clone().try_acquire_many_owned(bytes).map_err(overloaded)?,
        })
    }
}
