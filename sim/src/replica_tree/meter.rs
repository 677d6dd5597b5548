//! Metrics of a layer.

use hdrhistogram::Histogram;

/// Traffic and load of one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Received bytes and messages.
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) messages: u64,
    /// Busy time of its cores in nanoseconds, averaged over all cores.
    pub(super) busy: u64,
}

/// The metrics of a process over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// The current second.
    pub(super) now: Flow,
    /// Total since the warm-up.
    pub(super) all: Flow,
    /// Maximum of any second since the warm-up, for each field.
    pub(super) peak: Flow,
}

impl Meter {
    /// Ends a second.
    pub(super) fn second(&mut self, counts: bool) {
        let now = std::mem::take(&mut self.now);
        if counts {
            let each = |add: fn(u64, u64) -> u64, to: &mut Flow| {
                to.received = add(to.received, now.received);
                to.sent = add(to.sent, now.sent);
                to.messages = add(to.messages, now.messages);
                to.busy = add(to.busy, now.busy);
            };
            each(|sum, value| sum + value, &mut self.all);
            each(u64::max, &mut self.peak);
        }
    }
}

/// The metrics of a layer over time.
#[derive(Debug)]
pub(super) struct LayerMeter {
    /// Propagation time of commits before the first event, in microseconds, weighted by processes.
    pub(super) before_event: Histogram<u64>,
    /// Propagation time of later commits.
    pub(super) after_event: Histogram<u64>,
    /// Snapshots sent to the layer, and their bytes.
    pub(super) snapshots: u64,
    pub(super) snapshot_bytes: u64,
    /// Bytes sent to the layer by the one above, received, and lost in transit, since the start.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    /// Samples of past seconds; the current second follows.
    pub(super) timeline: Vec<Sample>,
    pub(super) worst: u64,
    pub(super) bytes: u64,
}

/// One second of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Bytes that the whole layer received.
    pub(super) bytes: u64,
    /// The longest propagation time of a commit, in microseconds.
    pub(super) worst: u64,
}

impl LayerMeter {
    pub(super) fn new() -> Self {
        Self {
            before_event: histogram(),
            after_event: histogram(),
            snapshots: 0,
            snapshot_bytes: 0,
            sent: 0,
            received: 0,
            lost: 0,
            timeline: Vec::new(),
            worst: 0,
            bytes: 0,
        }
    }

    /// Records that a commit has arrived at this many processes after this many nanoseconds. `before_event` selects the
    /// histogram.
    pub(super) fn arrived(&mut self, nanos: u64, before_event: Option<bool>, processes: u64) {
        let micros = nanos / 1000;
        self.worst = self.worst.max(micros);
        match before_event {
            Some(true) => self.before_event.saturating_record_n(micros, processes),
            Some(false) => self.after_event.saturating_record_n(micros, processes),
            None => {}
        }
    }

    /// Ends a second.
    pub(super) fn second(&mut self) {
        let (bytes, worst) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.worst));
        self.timeline.push(Sample { bytes, worst });
    }
}

/// A histogram from one microsecond to one hour, with three significant digits.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are in order and three digits are few enough, so this cannot fail.
    #[allow(clippy::unwrap_used, reason = "constant arguments that the documentation allows")]
    Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap()
}
