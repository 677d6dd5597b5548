//! Counters and gauges without labels.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Increments a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct GaugeGuard<'a>(&'a AtomicU64);

impl<'a> GaugeGuard<'a> {
    pub(crate) fn new(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Relaxed);
        Self(counter)
    }
}

impl Drop for GaugeGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Increments a counter by one.
pub fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
