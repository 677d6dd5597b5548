//! Locks of keys that are being written. If two batches share a key, the second waits until the first is done.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Semaphore;

/// Keys of all batches in flight. Each key has a semaphore that is closed when its batch is done.
#[derive(Debug, Default)]
pub(super) struct KeyLocks {
    held: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// Locks of one batch, released on drop.
#[derive(Debug)]
pub(super) struct KeyLockGuard<'a> {
    locks: &'a KeyLocks,
    keys: Vec<Arc<str>>,
    released: Arc<Semaphore>,
}

impl KeyLocks {
    /// Waits until none of the keys is locked, and locks all of them at once, so that no two batches deadlock. A
    /// waiting batch holds no lock, and is woken only by the batch that blocks it.
    pub(super) async fn lock(&self, keys: Vec<Arc<str>>) -> KeyLockGuard<'_> {
        let released = Arc::new(Semaphore::new(0));
        while let Some(other) = self.try_lock(&keys, &released) {
            // The semaphore has no permits: `acquire` returns an error once the other batch is done.
            let _ = other.acquire().await;
        }
        KeyLockGuard { locks: self, keys, released }
    }

    /// Locks all keys, or returns the semaphore of a batch that holds one of them.
    fn try_lock(&self, keys: &[Arc<str>], released: &Arc<Semaphore>) -> Option<Arc<Semaphore>> {
        let mut held = self.table();
        let other = keys.iter().find_map(|key| held.get(key).cloned());
        if other.is_none() {
            held.extend(keys.iter().map(|key| (key.clone(), released.clone())));
        }
        other
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Semaphore>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeyLockGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.table();
        for key in &self.keys {
            held.remove(key);
        }
        drop(held);
        self.released.close();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn waiting_writer_locks_no_key_and_continues_when_all_are_free() {
        let keys: &KeyLocks = Box::leak(Box::default());
        let named = |names: &[&str]| names.iter().map(|&name| Arc::from(name)).collect::<Vec<_>>();
        let first = keys.lock(named(&["a", "a"])).await;
        let mut waiting = JoinSet::new();
        for _ in 0..2 {
            waiting.spawn(keys.lock(named(&["a", "b"])));
        }
        yield_now().await;
        drop(keys.lock(named(&["b"])).await);
        assert!(waiting.try_join_next().is_none());
        drop(first);
        while let Some(held) = waiting.join_next().await {
            drop(held.unwrap());
        }
        assert!(keys.table().is_empty());
    }
}
