//! What a simulated tree showed.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The figures of a tree; the same scenario and seed give the same, to the last bit.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Time with writes, in seconds.
    pub seconds: f64,
    /// Programs, each with a router, and how many of them were played.
    pub routers: u64,
    /// Of these played.
    pub routers_played: u64,
    /// Services.
    pub services: u64,
    /// Their servers.
    pub servers: u64,
    /// Records at the root in the end.
    pub records: u64,
    /// Keys and values at the start, in megabytes.
    pub megabytes: f64,
    /// What was written.
    pub writes: Written,
    /// From the root to the programs.
    pub layers: Vec<Layer>,
    /// From a commit until the root knows that everybody concerned has applied it, before the first event.
    pub acknowledged: Option<Propagation>,
    /// What became of those who lost their connection, by event.
    pub recoveries: Vec<Recovery>,
    /// Records that somebody holds otherwise than the root in the end; `None` where nobody compared.
    pub different: Option<u64>,
    /// Expectations that were not met.
    pub missed: Vec<String>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// Batches.
    pub batches: u64,
    /// Records, deleted ones included.
    pub records: u64,
    /// Megabytes of keys and values a second.
    pub megabytes_per_second: f64,
    /// Batches that found no control plane.
    pub refused: u64,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// Its name.
    pub name: String,
    /// Whether it is of replicas.
    pub replica: bool,
    /// How many processes there are, and how many were played.
    pub processes: u64,
    /// Of these played.
    pub played: u64,
    /// What one process received, and sent, after the warm-up.
    pub received: Traffic,
    /// What it sent.
    pub sent: Traffic,
    /// What all of them sent, in megabytes a second.
    pub all_sent: f64,
    /// Messages that one process sent, a second.
    pub messages: f64,
    /// The share of its cores that worked on average, and in the busiest second of the busiest process.
    pub busy: f64,
    /// In that second.
    pub busiest: f64,
    /// Memory of the largest process in the end: its table, and for all its watchers, in megabytes.
    pub table_megabytes: f64,
    /// For its watchers.
    pub watchers_megabytes: f64,
    /// Snapshots that its processes were sent, and how large they were together, in megabytes.
    pub snapshots: u64,
    /// Their size.
    pub snapshot_megabytes: f64,
    /// Bytes sent to it, lost on the way included, and bytes received, since the beginning.
    pub bytes_sent: u64,
    /// Received.
    pub bytes_received: u64,
    /// Lost with their connection.
    pub bytes_lost: u64,
    /// From a commit to its processes, before the first event.
    pub propagation: Option<Propagation>,
    /// The same of commits from the first event on.
    pub propagation_later: Option<Propagation>,
    /// Second by second: megabytes that all of it received, and the longest way of a commit, in milliseconds.
    pub course: Vec<(f64, f64)>,
}

/// Megabytes a second: on average over the layer, and in the busiest second of the busiest process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// On average.
    pub mean: f64,
    /// At most.
    pub peak: f64,
}

/// How long commits took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Propagation {
    /// How many times a commit came to a process.
    pub count: u64,
    /// Median, in milliseconds.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// What became of those who lost their connection.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The event.
    pub event: String,
    /// How many processes lost their connection.
    pub lost: u64,
    /// From the end of the event until all had it again and were current; `None` where some were not in the end.
    pub seconds: Option<f64>,
    /// Snapshots that they needed, and how large they were together, in megabytes.
    pub snapshots: u64,
    /// Their size.
    pub snapshot_megabytes: f64,
}

impl Propagation {
    pub(super) fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            count: histogram.len(),
            p50_ms: at(0.5),
            p95_ms: at(0.95),
            p99_ms: at(0.99),
            max_ms: histogram.max() as f64 / 1e3,
        })
    }
}
