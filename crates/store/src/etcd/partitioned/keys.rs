//! Keys that somebody is writing: of two batches that share one, the second is sent when the first is over.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Semaphore;

/// The keys of all batches under way, each with what is closed when its batch is over.
#[derive(Debug, Default)]
pub(super) struct Keys {
    held: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
}

/// Keys in one batch's hands, until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    all: &'a Keys,
    keys: Vec<Arc<str>>,
    over: Arc<Semaphore>,
}

impl Keys {
    /// Waits until nobody else holds any of them, and takes all at once, so that no two wait for each other. Whoever waits
    /// holds none, and is woken by the batch that it waits for alone.
    pub(super) async fn hold(&self, keys: Vec<Arc<str>>) -> Held<'_> {
        let over = Arc::new(Semaphore::new(0));
        while let Some(other) = self.take(&keys, &over) {
            // It has no permits: this ends with an error, when the other batch is over.
            let _ = other.acquire().await;
        }
        Held { all: self, keys, over }
    }

    /// Takes all of them, or answers what says when one that is held is free.
    fn take(&self, keys: &[Arc<str>], over: &Arc<Semaphore>) -> Option<Arc<Semaphore>> {
        let mut held = self.lock();
        let other = keys.iter().find_map(|key| held.get(key).cloned());
        if other.is_none() {
            held.extend(keys.iter().map(|key| (key.clone(), over.clone())));
        }
        other
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Semaphore>>> {
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
        self.over.close();
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn who_waits_for_one_key_holds_no_other_and_goes_on_when_it_is_free() {
        let keys: &Keys = Box::leak(Box::default());
        let named = |names: &[&str]| names.iter().map(|&name| Arc::from(name)).collect::<Vec<_>>();
        let first = keys.hold(named(&["a", "a"])).await;
        let mut waiting = JoinSet::new();
        for _ in 0..2 {
            waiting.spawn(keys.hold(named(&["a", "b"])));
        }
        yield_now().await;
        drop(keys.hold(named(&["b"])).await);
        assert!(waiting.try_join_next().is_none());
        drop(first);
        while let Some(held) = waiting.join_next().await {
            drop(held.unwrap());
        }
        assert!(keys.lock().is_empty());
    }
}
