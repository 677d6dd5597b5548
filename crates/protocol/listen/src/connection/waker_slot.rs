use std::{
    mem,
    sync::{Mutex, PoisonError},
    task::Waker,
};

/// Waker of the only task that waits for a condition. The task registers before it checks the condition. The task
/// that makes the condition true wakes it afterwards, so that no wake-up is missed.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(Mutex<Option<Waker>>);

impl WakerSlot {
    /// Stores the waker in place of the previous one.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(kept) => kept.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }

    /// Wakes the task, outside the lock.
    pub(crate) fn wake(&self) {
        let waker = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
