//! Event loops that each keep connections of their own.
//!
//! A connection wakes the loop that it was opened on. Taken for a call of another loop it would wake two, with a lock and a
//! system call in between; so each loop has its own to every endpoint, as Envoy has it.

use std::{cell::Cell, iter};

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
    static RUNS_ONE: Cell<bool> = const { Cell::new(false) };
}

/// Says that this thread runs the event loop of this number, from 0, of those that
/// [`MeshBuilder::cores`](crate::MeshBuilder::cores) told of.
pub fn on_core(number: usize) {
    CORE.set(number);
    RUNS_ONE.set(true);
}

/// Whether this thread runs an event loop of its own, and no other as long as it lives.
#[inline]
pub(crate) fn runs_one() -> bool {
    RUNS_ONE.get()
}

/// One of something for each event loop.
pub(crate) struct PerCore<T>(Box<[T]>);

impl<T: Default> PerCore<T> {
    /// For so many, at least one.
    pub(crate) fn new(cores: usize) -> Self {
        Self(iter::repeat_with(T::default).take(cores.max(1)).collect())
    }

    /// For nobody: it must not be asked for [`here`](Self::here).
    pub(crate) fn none() -> Self {
        Self(Box::default())
    }

    /// That of the event loop that this thread runs. Threads that run none share the first.
    #[inline]
    pub(crate) fn here(&self) -> &T {
        // Proof: there is at least one, and a remainder is smaller.
        &self.0[CORE.get() % self.0.len()]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}
