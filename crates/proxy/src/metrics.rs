//! What a proxy counts. Labels are names of services that exist, and classes: their number is bounded.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::tunnel::Carried;

/// Upper bounds of the buckets of times, in microseconds.
pub(crate) const BOUNDS_US: [u64; 14] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// What happened to requests of one service.
#[derive(Debug, Default)]
pub(crate) struct Golden {
    /// By class of the answer: 1xx to 5xx.
    classes: [AtomicU64; 5],
    /// Those of them that the proxy answered itself, since no server did.
    pub(crate) faults: AtomicU64,
    pub(crate) under_way: AtomicU64,
    /// Times to the head of the answer: in each bucket, and beyond the last.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// What happened to the rest.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) accepted: AtomicU64,
    pub(crate) open: AtomicU64,
    /// Waits for a place, or for the system to give a descriptor.
    pub(crate) accepts_delayed: AtomicU64,
    pub(crate) broken: AtomicU64,
    pub(crate) cut: AtomicU64,
    /// Connections cut off since they took back most of what they asked.
    pub(crate) restless: AtomicU64,
    /// Connections cut off since they sent frames that ask for nothing, and hardly any others.
    pub(crate) flooding: AtomicU64,
    /// Answers over HTTP/2 that were dropped since their programs made no room for them.
    pub(crate) untaken: AtomicU64,
    /// Requests for no service.
    pub(crate) nobody: AtomicU64,
    /// Requests for what a proxy does not do.
    pub(crate) refused: AtomicU64,
    /// Requests whose bodies were longer than they may be.
    pub(crate) too_large: AtomicU64,
    pub(crate) log_lines_dropped: AtomicU64,
    /// Tunnels begun, and those that are open.
    pub(crate) tunnels: AtomicU64,
    pub(crate) tunnels_open: AtomicU64,
    /// Tunnels ended since nothing came over them, and those that broke.
    pub(crate) tunnels_idle: AtomicU64,
    pub(crate) tunnels_broken: AtomicU64,
    /// Bytes that tunnels carried to servers, and from them; of those that have ended.
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    /// Connections that did not begin with a head of the PROXY protocol where one was due.
    pub(crate) proxy_heads_refused: AtomicU64,
    /// Connections of programs over TCP that no server could be found for.
    pub(crate) tcp_refused: AtomicU64,
}

impl Metrics {
    /// Counts what a tunnel carried.
    pub(crate) fn carried(&self, Carried { up, down }: Carried) {
        self.bytes_up.fetch_add(up, Relaxed);
        self.bytes_down.fetch_add(down, Relaxed);
    }

    /// Bytes that tunnels carried to servers, and from them.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [&self.bytes_up, &self.bytes_down].map(|bytes| bytes.load(Relaxed))
    }
}

/// A number counted up while this lives.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a AtomicU64);

impl<'a> Held<'a> {
    pub(crate) fn new(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Relaxed);
        Self(counter)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Counts one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

impl Golden {
    pub(crate) fn answered(&self, status: http::StatusCode, took: Duration) {
        if let Some(class) = self.classes.get(usize::from(status.as_u16() / 100).wrapping_sub(1)) {
            count(class);
        }
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        count(&self.buckets[BOUNDS_US.partition_point(|bound| *bound < us)]);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// Whether a server ever answered, as far as is counted.
    pub(crate) fn was_answered(&self) -> bool {
        self.classes().iter().sum::<u64>() >= self.faults.load(Relaxed)
    }

    /// How many answers of each class there were.
    pub(crate) fn classes(&self) -> [u64; 5] {
        self.classes.each_ref().map(|class| class.load(Relaxed))
    }

    /// How many took at most so many seconds, for each bound; the last is without one.
    pub(crate) fn times(&self) -> (Vec<(f64, u64)>, f64) {
        let bounds = BOUNDS_US.iter().map(|us| *us as f64 / 1e6).chain([f64::MAX]);
        let counts = bounds.zip(&self.buckets).map(|(bound, count)| (bound, count.load(Relaxed)));
        (counts.collect(), self.sum_us.load(Relaxed) as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn answers_are_counted_by_class_and_time() {
        let golden = Golden::default();
        golden.answered(StatusCode::OK, Duration::from_micros(250));
        golden.answered(StatusCode::NOT_FOUND, Duration::from_micros(251));
        golden.answered(StatusCode::from_u16(999).unwrap(), Duration::from_secs(60));
        assert_eq!(golden.classes(), [0, 1, 0, 1, 0]);
        let (times, sum) = golden.times();
        assert_eq!((times[0].1, times[1].1, times[BOUNDS_US.len()].1), (1, 1, 1));
        assert!((sum - 60.000_501).abs() < 1e-9, "{sum}");
    }
}
