//! The result of a simulated tree.

use hdrhistogram::Histogram;
use serde::Serialize;

/// Figures of a tree. The same scenario and seed give bit-identical figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// Time with writes, in seconds.
    pub seconds: f64,
    /// Programs, each with a router.
    pub routers: u64,
    /// Number of simulated programs.
    pub routers_simulated: u64,
    /// Services.
    pub services: u64,
    /// Number of servers of all services.
    pub servers: u64,
    /// Records at the root at the end.
    pub records: u64,
    /// Keys and values at the start, in megabytes.
    pub megabytes: f64,
    /// The writes.
    pub writes: Written,
    /// Layers, from the root to the programs.
    pub layers: Vec<Layer>,
    /// Time from a commit until the root knows that all watchers have applied it, before the first event.
    pub acknowledged: Option<Propagation>,
    /// Recovery of processes that lost their connection, by event.
    pub recoveries: Vec<Recovery>,
    /// Number of records in all processes that differ from the root's at the end; `None` if not compared.
    pub different: Option<u64>,
    /// Expectations that were not met.
    pub missed: Vec<String>,
}

/// Writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// Batches.
    pub batches: u64,
    /// Number of records, including deletions.
    pub records: u64,
    /// Megabytes of keys and values per second.
    pub megabytes_per_second: f64,
    /// Batches refused while the control plane was down.
    pub refused: u64,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// Name of the layer.
    pub name: String,
    /// Whether it consists of replicas.
    pub replica: bool,
    /// Number of processes.
    pub processes: u64,
    /// Number of simulated ones.
    pub simulated: u64,
    /// Traffic received by one process after the warm-up.
    pub received: Traffic,
    /// Traffic sent by one process.
    pub sent: Traffic,
    /// Sent by all processes, in megabytes per second.
    pub all_sent: f64,
    /// Messages sent by one process per second.
    pub messages: f64,
    /// Mean CPU utilisation.
    pub busy: f64,
    /// Utilisation in the busiest second of the busiest process.
    pub busiest: f64,
    /// Memory of the largest table at the end, in megabytes.
    pub table_megabytes: f64,
    /// Memory of the watchers of the process with the most, in megabytes.
    pub watchers_megabytes: f64,
    /// Snapshots sent to its processes.
    pub snapshots: u64,
    /// Their total size, in megabytes.
    pub snapshot_megabytes: f64,
    /// Bytes sent to the layer since the start, including bytes lost in transit.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// Bytes lost because their connection broke.
    pub bytes_lost: u64,
    /// Propagation time from a commit to the layer's processes, before the first event.
    pub propagation: Option<Propagation>,
    /// Propagation time for commits after the first event.
    pub propagation_later: Option<Propagation>,
    /// Per second: megabytes that the whole layer received, and the longest propagation time of a commit, in
    /// milliseconds.
    pub timeline: Vec<(f64, f64)>,
}

/// Megabytes per second: mean over the layer, and in the busiest second of the busiest process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Mean.
    pub mean: f64,
    /// Maximum.
    pub peak: f64,
}

/// Distribution of propagation times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Propagation {
    /// Number of arrivals of commits at processes.
    pub count: u64,
    /// Median, in milliseconds.
    pub p50_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

/// Recovery of the processes that lost their connection to an event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Recovery {
    /// The event.
    pub event: String,
    /// Processes that lost their connection.
    pub lost: u64,
    /// Seconds from the end of the event until all processes were connected and current again; `None` if some were not
    /// by the end.
    pub seconds: Option<f64>,
    /// Snapshots that they needed.
    pub snapshots: u64,
    /// Their total size, in megabytes.
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
