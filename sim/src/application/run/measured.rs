//! Measured client latency and cost of an application.

use fairmesh_model::{RegionTable, TrafficShares};
use fairmesh_planner::Attempt;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::{call_tree::CallEnd, counters::Interval, reports::Names};
use crate::{
    application::{EgressFigures, Figures, Scenario},
    metrics::latency_histogram,
};

/// Number of bytes to which egress prices refer.
const BYTES_OF_PRICE: f64 = 1e9;
/// Smaller differences between shares, in millionths, are not recorded as a change.
const SAME_SHARE: u32 = 20_000;
/// Maximum number of recorded table changes.
const MAX_CHANGES: usize = 2_000;

/// Measured figures of one planner, after the warm-up unless stated otherwise.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Measured {
    /// Name of the planner.
    pub planner: String,
    /// Number of completed client calls.
    pub calls: u64,
    /// Number of client calls that failed because of deadlines or full queues.
    pub failed: u64,
    /// Number of client calls dropped by tables.
    pub dropped: u64,
    /// Mean latency of served client calls, in milliseconds.
    pub mean_ms: f64,
    /// Median latency of served client calls.
    pub p50_ms: f64,
    /// 99th percentile of the latency of served client calls.
    pub p99_ms: f64,
    /// Mean latency that the true model predicts for the last tables at the last rates; 0 without a prediction.
    pub predicted_ms: f64,
    /// Figures of each entry of `clients`.
    pub classes: Vec<MeasuredClass>,
    /// Dollars per second for egress.
    pub egress: f64,
    /// Egress by pair of regions.
    pub pairs: Vec<EgressFigures>,
    /// Maximum of the pools' mean utilisations.
    pub greatest_load: f64,
    /// Pools with servers.
    pub pools: Vec<MeasuredPool>,
    /// Figures over time, including the warm-up.
    pub windows: Vec<WindowFigures>,
    /// Tables over time, including the warm-up.
    pub tables: Vec<TableChange>,
    /// The latest plan changes that the optimizer tried out.
    pub attempts: Vec<TriedChange>,
}

/// A plan change that was tried out, and its outcome.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TriedChange {
    /// Start, in seconds.
    pub at: f64,
    /// The service.
    pub service: String,
    /// The region of the callers, the region that got fewer of their calls, and the region that got more.
    pub regions: [String; 3],
    /// Share of the calls that moved.
    pub share: f64,
    /// Mean latency of a call to the service before the change, in milliseconds.
    pub before_ms: f64,
    /// Mean latency of a call to the service after the change, in milliseconds.
    pub after_ms: Option<f64>,
    /// Outcome of the change.
    pub outcome: String,
}

/// Figures of one entry of `clients`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredClass {
    /// The called operation.
    pub to: String,
    /// Number of completed calls.
    pub calls: u64,
    /// Number of failed or dropped calls.
    pub failed: u64,
    /// Mean latency of the other calls, in milliseconds.
    pub mean_ms: f64,
    /// Median latency of the other calls.
    pub p50_ms: f64,
    /// 99th percentile of the latency of the other calls.
    pub p99_ms: f64,
    /// Mean latency that the true model predicts for the last tables.
    pub predicted_ms: f64,
}

/// The servers of a service in one region.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MeasuredPool {
    /// The service.
    pub service: String,
    /// The region.
    pub region: String,
    /// Mean utilisation.
    pub load: f64,
}

/// Client calls that ended within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowFigures {
    /// End of the window, in seconds.
    pub at: f64,
    /// Number of served calls.
    pub calls: u64,
    /// Number of calls that were not served.
    pub failed: u64,
    /// Mean latency of served calls in milliseconds; 0 without any.
    pub mean_ms: f64,
    /// Dollars per second for egress.
    pub egress: f64,
}

/// A change of the shares of calls to a service from a region.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TableChange {
    /// Time of the change, in seconds.
    pub at: f64,
    /// The service.
    pub service: String,
    /// The region of the callers.
    pub from: String,
    /// Shares by class, such as `- or 70% ut 30%`.
    pub shares: Vec<String>,
}

#[derive(Clone, Debug)]
struct ClassSums {
    latency: Histogram<u64>,
    nanos: u128,
    failed: u64,
    dropped: u64,
}

/// Sums while the simulation runs.
#[derive(Debug)]
pub(crate) struct Measurements {
    warmup: u64,
    end: u64,
    window: u64,
    regions: usize,
    /// Dollars per byte, by pair of regions.
    prices: Vec<f64>,
    classes: Vec<ClassSums>,
    windows: Vec<WindowFigures>,
    /// Bytes by pair of regions.
    bytes: Vec<f64>,
    /// Busy core-seconds and available core-seconds, by service × regions + region.
    pools: Vec<(f64, f64)>,
    tables: Vec<TableChange>,
    /// Shares recorded last, by service and region.
    recorded: std::collections::BTreeMap<(u16, u16), TrafficShares>,
}

impl Measurements {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let problem = scenario.problem();
        let play = &scenario.play;
        let windows = play.duration.nanos().div_ceil(play.window.nanos());
        let class = ClassSums { latency: latency_histogram(), nanos: 0, failed: 0, dropped: 0 };
        Self {
            warmup: play.warmup.nanos(),
            end: play.duration.nanos(),
            window: play.window.nanos(),
            regions: problem.regions,
            prices: problem.egress_prices.iter().map(|price| price / BYTES_OF_PRICE).collect(),
            classes: vec![class; scenario.clients.len()],
            windows: vec![WindowFigures::default(); windows as usize],
            bytes: vec![0.0; problem.egress_prices.len()],
            pools: vec![(0.0, 0.0); problem.services.len() * problem.regions],
            tables: Vec::new(),
            recorded: Default::default(),
        }
    }

    /// Records the end of a client call.
    pub(crate) fn record_call(&mut self, clients: u32, began: u64, now: u64, end: CallEnd) {
        let nanos = now - began;
        if let Some(window) = self.windows.get_mut((now / self.window) as usize) {
            match end {
                CallEnd::Responded => {
                    window.calls += 1;
                    // Holds a sum until the end.
                    window.mean_ms += nanos as f64 / 1e6;
                }
                CallEnd::Failed | CallEnd::Dropped => window.failed += 1,
            }
        }
        if began < self.warmup {
            return;
        }
        let class = &mut self.classes[clients as usize];
        match end {
            CallEnd::Responded => {
                class.latency.saturating_record(nanos / 1_000);
                class.nanos += u128::from(nanos);
            }
            CallEnd::Failed => class.failed += 1,
            CallEnd::Dropped => class.dropped += 1,
        }
    }

    /// Records bytes sent from one region to another.
    pub(crate) fn record_bytes(&mut self, (from, to): (u16, u16), bytes: f64, now: u64) {
        if from == to {
            return;
        }
        let pair = usize::from(from) * self.regions + usize::from(to);
        if let Some(window) = self.windows.get_mut((now / self.window) as usize) {
            window.egress += bytes * self.prices[pair];
        }
        if now >= self.warmup {
            self.bytes[pair] += bytes;
        }
    }

    pub(super) fn end_interval(&mut self, interval: &Interval, now: u64) {
        if now <= self.warmup {
            return;
        }
        for ((busy, cores), pool) in self.pools.iter_mut().zip(&interval.pools) {
            *busy += pool.busy * interval.seconds;
            *cores += pool.cores * interval.seconds;
        }
    }

    /// Records a table that takes effect.
    pub(super) fn record_table(
        &mut self,
        names: &Names,
        (service, region): (u16, u16),
        table: &RegionTable,
        now: u64,
    ) {
        let known = self.recorded.get(&(service, region));
        let is_same = known.is_some_and(|known| differ_little(known, &table.shares));
        if is_same || self.tables.len() >= MAX_CHANGES {
            return;
        }
        self.recorded.insert((service, region), table.shares.clone());
        self.tables.push(TableChange {
            at: now as f64 / 1e9,
            service: names.services[usize::from(service)].to_string(),
            from: names.regions[usize::from(region)].to_string(),
            shares: describe(&table.shares),
        });
    }

    pub(super) fn report(self, scenario: &Scenario, names: &Names, forecast: Option<&Figures>) -> Measured {
        let mut all = latency_histogram();
        let (mut nanos, mut failed, mut dropped) = (0, 0, 0);
        for class in &self.classes {
            // Both have the same bounds, so this cannot fail.
            let _ = all.add(&class.latency);
            nanos += class.nanos;
            failed += class.failed;
            dropped += class.dropped;
        }
        let pools = self.pools(scenario, names);
        let pairs = self.pairs(names);
        Measured {
            planner: String::new(),
            calls: all.len() + failed + dropped,
            failed,
            dropped,
            mean_ms: mean_ms(nanos, all.len()),
            p50_ms: quantile_ms(&all, 0.5),
            p99_ms: quantile_ms(&all, 0.99),
            predicted_ms: forecast.map_or(0.0, |figures| figures.mean_ms),
            classes: self.class_figures(scenario, forecast),
            egress: pairs.iter().map(|pair| pair.dollars).sum(),
            pairs,
            greatest_load: pools.iter().map(|pool| pool.load).fold(0.0, f64::max),
            pools,
            windows: self.windows(),
            tables: self.tables,
            attempts: Vec::new(),
        }
    }

    fn class_figures(&self, scenario: &Scenario, forecast: Option<&Figures>) -> Vec<MeasuredClass> {
        let classes = scenario.clients.iter().zip(&self.classes).enumerate();
        let figures = classes.map(|(at, (clients, sums))| MeasuredClass {
            predicted_ms: forecast.map_or(0.0, |figures| figures.classes[at].mean_ms),
            ..sums.figures(&clients.to)
        });
        figures.collect()
    }

    fn pools(&self, scenario: &Scenario, names: &Names) -> Vec<MeasuredPool> {
        let pools = self.pools.iter().enumerate().filter(|(_, (_, cores))| *cores > 0.0);
        let figures = pools.map(|(at, (busy, cores))| MeasuredPool {
            service: scenario.services[at / self.regions].name.clone(),
            region: names.regions[at % self.regions].to_string(),
            load: busy / cores,
        });
        figures.collect()
    }

    fn pairs(&self, names: &Names) -> Vec<EgressFigures> {
        let seconds = (self.end - self.warmup) as f64 / 1e9;
        let dollars = self.bytes.iter().zip(&self.prices).map(|(bytes, price)| bytes * price / seconds);
        let pairs = dollars.enumerate().filter(|(_, dollars)| *dollars > 0.0);
        let figures = pairs.map(|(at, dollars)| EgressFigures {
            from: names.regions[at / self.regions].to_string(),
            to: names.regions[at % self.regions].to_string(),
            dollars,
        });
        figures.collect()
    }

    fn windows(&self) -> Vec<WindowFigures> {
        let seconds = self.window as f64 / 1e9;
        let figures = self.windows.iter().zip(1_u32..).map(|(sums, number)| WindowFigures {
            at: f64::from(number) * seconds,
            mean_ms: if sums.calls > 0 { sums.mean_ms / sums.calls as f64 } else { 0.0 },
            egress: sums.egress / seconds,
            ..*sums
        });
        figures.collect()
    }
}

impl From<&Attempt> for TriedChange {
    fn from(attempt: &Attempt) -> Self {
        Self {
            at: attempt.began_ms as f64 / 1e3,
            service: attempt.service.to_string(),
            regions: [&attempt.source, &attempt.from, &attempt.to].map(ToString::to_string),
            share: attempt.share,
            before_ms: attempt.before_ms,
            after_ms: attempt.after_ms,
            outcome: attempt.outcome.name().to_owned(),
        }
    }
}

impl ClassSums {
    fn figures(&self, to: &str) -> MeasuredClass {
        let failed = self.failed + self.dropped;
        MeasuredClass {
            to: to.to_owned(),
            calls: self.latency.len() + failed,
            failed,
            mean_ms: mean_ms(self.nanos, self.latency.len()),
            p50_ms: quantile_ms(&self.latency, 0.5),
            p99_ms: quantile_ms(&self.latency, 0.99),
            predicted_ms: 0.0,
        }
    }
}

fn mean_ms(nanos: u128, calls: u64) -> f64 {
    if calls > 0 { nanos as f64 / calls as f64 / 1e6 } else { 0.0 }
}

fn quantile_ms(latency: &Histogram<u64>, quantile: f64) -> f64 {
    latency.value_at_quantile(quantile) as f64 / 1e3
}

/// Whether all shares differ by less than the recorded minimum.
fn differ_little(known: &TrafficShares, new: &TrafficShares) -> bool {
    known.iter().count() == new.iter().count()
        && known.iter().zip(new.iter()).all(|((class, known), (other, new))| {
            let regions = known.to.keys().chain(new.to.keys());
            let share = |shares: &fairmesh_model::RegionShares, region| {
                shares.to.get(region).map_or(0, |share| share.millionths())
            };
            let same = |a: u32, b: u32| a.abs_diff(b) < SAME_SHARE;
            class == other
                && same(known.dropped.millionths(), new.dropped.millionths())
                && regions.into_iter().all(|region| same(share(known, region), share(new, region)))
        })
}

fn describe(shares: &TrafficShares) -> Vec<String> {
    let row = |(class, row): (Option<&fairmesh_model::Label>, &fairmesh_model::RegionShares)| {
        let to = row.to.iter().map(|(region, share)| format!("{region} {share}"));
        let dropped = (row.dropped.millionths() > 0).then(|| format!("dropped {}", row.dropped));
        let class = class.map_or("-", fairmesh_model::Label::as_str);
        format!("{class}: {}", to.chain(dropped).collect::<Vec<_>>().join(", "))
    };
    shares.iter().map(row).collect()
}
