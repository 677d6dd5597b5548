//! What is counted of a layer.

use hdrhistogram::Histogram;

/// What goes through one process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    /// Bytes and messages.
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) messages: u64,
    /// Nanoseconds that its cores worked, all cores at once counted as one.
    pub(super) busy: u64,
}

/// A process over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Of the present second.
    pub(super) now: Flow,
    /// Since the warm-up.
    pub(super) all: Flow,
    /// The greatest of any second since the warm-up, each by itself.
    pub(super) peak: Flow,
}

impl Meter {
    /// A second is over.
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

/// A layer over time.
#[derive(Debug)]
pub(super) struct LayerMeter {
    /// From commits before the first event to the hands of this layer, in microseconds, by how many processes.
    pub(super) calm: Histogram<u64>,
    /// The same of later commits.
    pub(super) later: Histogram<u64>,
    /// Snapshots sent to it, and their bytes.
    pub(super) snapshots: u64,
    pub(super) snapshot_bytes: u64,
    /// Bytes sent to it by the layer above, received by it, and lost on the way, since the beginning.
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) lost: u64,
    /// Commits that were overtaken: an update to a process passed over them since they had been replaced before it was sent.
    pub(super) course: Vec<Sample>,
    pub(super) worst: u64,
    pub(super) bytes: u64,
}

/// One second of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Bytes that all of it received.
    pub(super) bytes: u64,
    /// The longest time from a commit to a process, in microseconds.
    pub(super) worst: u64,
}

impl LayerMeter {
    pub(super) fn new() -> Self {
        Self {
            calm: histogram(),
            later: histogram(),
            snapshots: 0,
            snapshot_bytes: 0,
            sent: 0,
            received: 0,
            lost: 0,
            course: Vec::new(),
            worst: 0,
            bytes: 0,
        }
    }

    /// A commit has come to so many processes after so many nanoseconds; `calm` tells which figure that belongs to.
    pub(super) fn arrived(&mut self, nanos: u64, calm: Option<bool>, processes: u64) {
        let micros = nanos / 1000;
        self.worst = self.worst.max(micros);
        match calm {
            Some(true) => self.calm.saturating_record_n(micros, processes),
            Some(false) => self.later.saturating_record_n(micros, processes),
            None => {}
        }
    }

    /// A second is over.
    pub(super) fn second(&mut self) {
        let (bytes, worst) = (std::mem::take(&mut self.bytes), std::mem::take(&mut self.worst));
        self.course.push(Sample { bytes, worst });
    }
}

/// From a microsecond to an hour, to a thousandth.
pub(super) fn histogram() -> Histogram<u64> {
    // The bounds are in order and three digits are few, which is all that it asks for.
    #[allow(clippy::unwrap_used, reason = "constant arguments that the documentation allows")]
    Histogram::new_with_bounds(1, 3_600_000_000, 3).unwrap()
}
