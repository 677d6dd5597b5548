//! Keys that somebody is writing: of two batches that share one, the second is sent when the first is over.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The keys of all batches under way.
#[derive(Debug, Default)]
pub(super) struct Keys {
    held: Mutex<HashSet<Arc<str>>>,
    freed: Notify,
}

/// Keys in one batch's hands, until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    all: &'a Keys,
    keys: Vec<Arc<str>>,
}

impl Keys {
    /// Waits until nobody else holds any of them, and takes all at once, so that no two wait for each other.
    pub(super) async fn hold(&self, keys: Vec<Arc<str>>) -> Held<'_> {
        loop {
            let mut freed = pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.take(&keys) {
                return Held { all: self, keys };
            }
            freed.await;
        }
    }

    fn take(&self, keys: &[Arc<str>]) -> bool {
        let mut held = self.lock();
        let free = !keys.iter().any(|key| held.contains(key));
        if free {
            held.extend(keys.iter().cloned());
        }
        free
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Arc<str>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.all.lock();
        for key in &self.keys {
            held.remove(key);
        }
        drop(held);
        self.all.freed.notify_waiters();
    }
}
