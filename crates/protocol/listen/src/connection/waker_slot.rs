use std::{
    mem,
    sync::{Mutex, PoisonError},
    task::Waker,
};

/// The waker of the one task that waits for a condition. The task registers before it checks the condition, and who makes
/// it true wakes afterwards, so that none is missed.
#[derive(Debug, Default)]
pub(crate) struct WakerSlot(Mutex<Option<Waker>>);

impl WakerSlot {
    /// Keeps the waker, in place of the one before.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *slot {
            Some(kept) => kept.clone_from(waker),
            None => *slot = Some(waker.clone()),
        }
    }

    /// Wakes the task, outside of the lock.
    pub(crate) fn wake(&self) {
        let waker = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
