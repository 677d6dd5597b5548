//! Batches of what callers see of calls to a service: the measure of an attempt.

use std::collections::{BTreeMap, VecDeque};

use fairmesh_model::{CallPath, CallRates, Label, Region};

use crate::facts::TopologyFacts;

/// Length of a batch.
const BATCH_MS: u64 = 5_000;
/// Batches that are kept: two minutes.
const MAX_BATCHES: usize = 24;
/// The most rows of a batch; services with more are not measured.
const MAX_ROWS: usize = 4_096;
/// Thousandths in one, and bytes that a price is for.
const MILLI: f64 = 1_000.0;
const PRICED_BYTES: f64 = 1e9;

/// Callers of one region and class, whose share of all calls a plan does not change.
type Stratum = (Region, Option<Label>);

/// The recent calls to one service.
#[derive(Clone, Debug, Default)]
pub(super) struct CallBatches {
    open: CallBatch,
    closed: VecDeque<CallBatch>,
}

#[derive(Clone, Debug, Default)]
struct CallBatch {
    began_ms: u64,
    ended_ms: u64,
    /// By callers and destination.
    rows: BTreeMap<(Stratum, Region), Sums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    attempts: f64,
    calls: f64,
    ms: f64,
    request_bytes: f64,
    response_bytes: f64,
}

/// A mean over batches, with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BatchMean {
    pub(super) ms: f64,
    pub(super) error: f64,
    pub(super) batches: usize,
    /// Attempts with a response, per second.
    pub(super) calls: f64,
    /// The part of attempts without a response.
    pub(super) lost: f64,
}

impl CallBatches {
    /// Adds calls of a report that stands for this time.
    pub(super) fn add(&mut self, path: &CallPath, rates: &CallRates, seconds: f64) {
        let Some(to) = path.to.clone() else { return };
        let key = ((path.from.clone(), path.class.clone()), to);
        if self.open.rows.len() >= MAX_ROWS && !self.open.rows.contains_key(&key) {
            return;
        }
        let sums = self.open.rows.entry(key).or_default();
        sums.attempts += rates.attempts as f64 / MILLI * seconds;
        sums.calls += rates.answered as f64 / MILLI * seconds;
        sums.ms += rates.time_us as f64 / MILLI * seconds;
        sums.request_bytes += rates.request_bytes as f64 * seconds;
        sums.response_bytes += rates.bytes as f64 * seconds;
    }

    /// A report ends.
    pub(super) fn end_report(&mut self, now_ms: u64) {
        if self.open.began_ms == 0 {
            self.open.began_ms = now_ms;
        }
        if now_ms.saturating_sub(self.open.began_ms) < BATCH_MS {
            return;
        }
        self.open.ended_ms = now_ms;
        let next = CallBatch { began_ms: now_ms, ..CallBatch::default() };
        self.closed.push_back(std::mem::replace(&mut self.open, next));
        let surplus = self.closed.len().saturating_sub(MAX_BATCHES);
        self.closed.drain(..surplus);
    }

    /// The mean cost of a call in milliseconds, egress included, over batches that lie within these times. Callers count as often as in
    /// `weights`, so that other demand does not look like another plan.
    pub(super) fn mean(
        &self,
        (from_ms, to_ms): (u64, u64),
        weights: &BTreeMap<Stratum, f64>,
        topology: &TopologyFacts,
    ) -> Option<BatchMean> {
        let within = |batch: &&CallBatch| batch.began_ms >= from_ms && batch.ended_ms <= to_ms;
        let batches: Vec<&CallBatch> = self.closed.iter().filter(within).collect();
        let costs: Vec<f64> = batches.iter().filter_map(|batch| batch.cost(weights, topology)).collect();
        let count = costs.len() as f64;
        if costs.len() < 2 {
            return None;
        }
        let ms = costs.iter().sum::<f64>() / count;
        let variance = costs.iter().map(|cost| (cost - ms).powi(2)).sum::<f64>() / (count - 1.0);
        let rows = || batches.iter().flat_map(|batch| batch.rows.values());
        let (attempts, calls) =
            rows().fold((0.0, 0.0), |(attempts, calls), row| (attempts + row.attempts, calls + row.calls));
        let span_ms: u64 = batches.iter().map(|batch| batch.ended_ms.saturating_sub(batch.began_ms)).sum();
        Some(BatchMean {
            ms,
            error: (variance / count).sqrt(),
            batches: costs.len(),
            calls: calls * 1e3 / (span_ms.max(1) as f64),
            lost: if attempts > 0.0 { (1.0 - calls / attempts).max(0.0) } else { 0.0 },
        })
    }

    /// Calls by region of the callers and class, over batches that lie within these times.
    pub(super) fn weights(&self, (from_ms, to_ms): (u64, u64)) -> BTreeMap<Stratum, f64> {
        let mut weights = BTreeMap::new();
        let within = |batch: &&CallBatch| batch.began_ms >= from_ms && batch.ended_ms <= to_ms;
        for ((stratum, _), sums) in self.closed.iter().filter(within).flat_map(|batch| &batch.rows) {
            *weights.entry(stratum.clone()).or_default() += sums.calls;
        }
        weights
    }
}

impl CallBatch {
    /// `None` where callers that count made no call.
    fn cost(&self, weights: &BTreeMap<Stratum, f64>, topology: &TopologyFacts) -> Option<f64> {
        let mut strata = BTreeMap::<&Stratum, (f64, f64)>::new();
        for ((stratum, to), sums) in &self.rows {
            let entry = strata.entry(stratum).or_default();
            entry.0 += sums.calls;
            entry.1 += sums.ms + sums.egress_ms(topology, &stratum.0, to);
        }
        let (mut sum, mut total) = (0.0, 0.0);
        for (stratum, weight) in weights {
            match strata.get(stratum) {
                Some((calls, ms)) if *calls > 0.0 => {
                    (sum, total) = (sum + weight * ms / calls, total + weight)
                }
                // Hardly any calls, or none by chance.
                _ if *weight < 1.0 => {}
                _ => return None,
            }
        }
        (total > 0.0).then(|| sum / total)
    }
}

impl Sums {
    /// What the egress of these calls is worth in milliseconds.
    fn egress_ms(&self, topology: &TopologyFacts, from: &Region, to: &Region) -> f64 {
        let egress = &topology.regions.egress;
        let Some(per_ms) = egress.per_ms.map(|worth| worth.amount()).filter(|worth| *worth > 0.0) else {
            return 0.0;
        };
        let dollars = self.request_bytes * egress.price(from, to).amount()
            + self.response_bytes * egress.price(to, from).amount();
        dollars / PRICED_BYTES / per_ms
    }
}
