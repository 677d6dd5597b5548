//! Per-event-loop values, so that each event loop has its own connections.
//!
//! A connection wakes the event loop on which it was opened. If a call on another loop used it, both loops would be
//! woken, with a lock and a system call in between. So each loop has its own connections to every endpoint, as each
//! worker thread of Envoy has.

use std::{cell::Cell, iter};

thread_local! {
    static EVENT_LOOP: Cell<usize> = const { Cell::new(0) };
    static IS_EVENT_LOOP_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread runs the event loop with this number, counted from 0, of the
/// [`event_loops`](crate::TransportContext::event_loops) of a mesh.
pub fn set_event_loop(number: usize) {
    EVENT_LOOP.set(number);
    IS_EVENT_LOOP_THREAD.set(true);
}

/// Whether this thread runs one event loop for its whole lifetime.
#[inline]
pub(crate) fn is_event_loop_thread() -> bool {
    IS_EVENT_LOOP_THREAD.get()
}

/// One value per event loop.
pub(crate) struct PerEventLoop<T>(Box<[T]>);

impl<T: Default> PerEventLoop<T> {
    /// Creates the values for this number of loops, at least one.
    pub(crate) fn new(event_loops: usize) -> Self {
        Self(iter::repeat_with(T::default).take(event_loops.max(1)).collect())
    }

    /// Creates no values; [`here`](Self::here) must not be called.
    pub(crate) fn none() -> Self {
        Self(Box::default())
    }

    /// The value of this thread's event loop. Threads without an event loop use the first value.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        // Proof: there is at least one value, and the remainder is smaller than their number.
        &self.0[EVENT_LOOP.get() % self.0.len()]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
