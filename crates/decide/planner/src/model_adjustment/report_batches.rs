//! Batches of reports: means over a few seconds hardly depend on each other, unlike times of single calls.

use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::{Label, ServedRates, ServerRates, UTILISATION_BUCKETS};

/// Length of a batch.
const BATCH_MS: u64 = 5_000;
/// Batches of a pool that are kept: the last minute.
pub(super) const MAX_BATCHES: usize = 12;
/// Batches that ended longer ago say nothing of the present.
const MAX_AGE_MS: u64 = 90_000;
/// The share of received calls by which processed calls may differ while no backlog grows or is worked off.
const MISCOUNTED_SHARE: f64 = 0.1;
/// Thousandths in one.
const MILLI: f64 = 1_000.0;

/// The recent past of one pool.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolBatches {
    open: Batch,
    closed: VecDeque<Batch>,
    /// When calls of classes last changed: batches that ended until then say nothing of the present of their class.
    changed_ms: BTreeMap<Option<Label>, u64>,
    /// Seconds and processed calls of the report that is being counted.
    step: f64,
    served: f64,
    pub(super) at_ms: u64,
}

/// What a pool did within some seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    began_ms: u64,
    pub(super) ended_ms: u64,
    pub(super) seconds: f64,
    /// CPU in use, and what there is, in seconds of a core.
    pub(super) cpu: f64,
    pub(super) limit: f64,
    /// All servers reported CPU and calls.
    pub(super) is_measured: bool,
    /// Besides, no backlog grew or was worked off.
    pub(super) is_steady: bool,
    /// Processed calls by class.
    pub(super) calls: BTreeMap<Option<Label>, f64>,
    /// Calls and the sum of their milliseconds, by class and tenth of utilisation.
    pub(super) times: BTreeMap<(Option<Label>, u8), (f64, f64)>,
}

impl PoolBatches {
    /// A report begins that stands for this time.
    pub(super) fn begin_report(&mut self, step_ms: u64, now_ms: u64) {
        (self.step, self.served, self.at_ms) = (step_ms as f64 / MILLI, 0.0, now_ms);
        if self.open.seconds == 0.0 {
            let began_ms = now_ms.saturating_sub(step_ms);
            self.open = Batch { began_ms, is_measured: true, is_steady: true, ..Batch::default() };
        }
    }

    /// Adds calls that the pool processed.
    pub(super) fn add_calls(&mut self, class: &Option<Label>, bucket: Option<u8>, rates: ServedRates) {
        let rate = rates.calls as f64 / MILLI;
        self.served += rate;
        *self.open.calls.entry(class.clone()).or_default() += rate * self.step;
        // As for the fit: times of full servers say how long their backlog has grown.
        if let Some(bucket) = bucket.filter(|bucket| bucket + 1 < UTILISATION_BUCKETS) {
            let times = self.open.times.entry((class.clone(), bucket)).or_default();
            times.0 += rate * self.step;
            times.1 += rates.exclusive_us as f64 / MILLI * self.step;
        }
    }

    /// Adds the servers' own report. Returns whether a batch has ended.
    pub(super) fn end_report(&mut self, servers: &ServerRates, now_ms: u64) -> bool {
        let received = servers.received.saturating_sub(servers.refused) as f64 / MILLI;
        let possible = servers.limit_millicores.saturating_add(servers.limit_millicores / 2);
        let batch = &mut self.open;
        batch.seconds += self.step;
        batch.cpu += servers.cpu_millicores as f64 / MILLI * self.step;
        batch.limit += servers.limit_millicores as f64 / MILLI * self.step;
        batch.is_measured &= servers.measured.min(servers.counting) >= servers.servers
            && servers.limit_millicores > 0
            && servers.cpu_millicores <= possible;
        batch.is_steady &= (received - self.served).abs() <= received * MISCOUNTED_SHARE;
        if now_ms.saturating_sub(batch.began_ms) < BATCH_MS {
            return false;
        }
        batch.ended_ms = now_ms;
        self.closed.push_back(std::mem::take(batch));
        self.closed.retain(|batch| now_ms.saturating_sub(batch.ended_ms) <= MAX_AGE_MS);
        let surplus = self.closed.len().saturating_sub(MAX_BATCHES);
        self.closed.drain(..surplus);
        let oldest_ms = self.closed.front().map_or(now_ms, |batch| batch.ended_ms);
        self.changed_ms.retain(|_, changed_ms| *changed_ms >= oldest_ms);
        true
    }

    /// Batches of all classes, the oldest first.
    pub(super) fn batches(&self) -> &VecDeque<Batch> {
        &self.closed
    }

    /// Batches since the calls of a class last changed, the oldest first.
    pub(super) fn of_class(&self, class: &Option<Label>) -> impl Iterator<Item = &Batch> {
        let changed_ms = self.changed_ms.get(class).copied().unwrap_or_default();
        self.closed.iter().filter(move |batch| batch.ended_ms > changed_ms)
    }

    /// Calls of a class are others since this time. Batches of other classes stay.
    pub(super) fn change_class(&mut self, class: &Option<Label>, changed_ms: u64) {
        self.changed_ms.insert(class.clone(), changed_ms);
    }

    /// What was before the last batches is not the present any more.
    pub(super) fn forget_before_last(&mut self, count: usize) {
        let surplus = self.closed.len().saturating_sub(count);
        self.closed.drain(..surplus);
    }
}

impl Batch {
    /// Processed calls of all classes.
    pub(super) fn processed(&self) -> f64 {
        self.calls.values().sum()
    }
}
