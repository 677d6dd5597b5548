//! Event loops that each have connections of their own.
//!
//! A connection wakes the event loop that it was opened on. Used by a call of another loop it would wake both, with a
//! lock and a system call in between; so each loop has its own connections to every endpoint, as each worker of Envoy
//! has.

use std::{cell::Cell, iter};

thread_local! {
    static EVENT_LOOP: Cell<usize> = const { Cell::new(0) };
    static IS_EVENT_LOOP_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Declares that this thread runs the event loop of this number, from 0, among the [`event_loops`](crate::TransportContext::event_loops)
/// of a mesh.
pub fn set_event_loop(number: usize) {
    EVENT_LOOP.set(number);
    IS_EVENT_LOOP_THREAD.set(true);
}

/// Whether this thread runs one event loop, and no other as long as it lives.
#[inline]
pub(crate) fn is_event_loop_thread() -> bool {
    IS_EVENT_LOOP_THREAD.get()
}

/// One value for each event loop.
pub(crate) struct PerEventLoop<T>(Box<[T]>);

impl<T: Default> PerEventLoop<T> {
    /// For this number of loops, at least one.
    pub(crate) fn new(event_loops: usize) -> Self {
        Self(iter::repeat_with(T::default).take(event_loops.max(1)).collect())
    }

    /// Without a value: [`here`](Self::here) must not be called.
    pub(crate) fn none() -> Self {
        Self(Box::default())
    }

    /// The value of this thread's event loop. Threads without one share the first.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        // Proof: there is at least one, and a remainder is smaller.
        &self.0[EVENT_LOOP.get() % self.0.len()]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
