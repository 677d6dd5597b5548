//! Metrics that the program writes into its own responses, collected for planners. Callers read them from the
//! responses.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_headers::{LOAD, LOAD_BIN, metrics_from_binary, metrics_from_text};
use http::HeaderMap;
use tokio::time::Instant;

use super::custom_metrics::{MAX_METRICS, check};

/// Time for which a metric stays valid even if responses lack it.
const HOLDS: Duration = Duration::from_secs(10);

/// Latest values of metrics in responses, for the first few names that appeared.
#[derive(Debug, Default)]
pub(crate) struct ProgramReport {
    /// Whether there are any metrics. Most programs write none, so no lock is taken for them.
    is_used: AtomicBool,
    metrics: Mutex<Vec<ReportedMetric>>,
}

#[derive(Debug)]
struct ReportedMetric {
    name: String,
    value: f64,
    at: Instant,
    /// Whether the last response lacked the metric.
    is_missing: bool,
}

impl ReportedMetric {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < HOLDS
    }

    /// Whether the metric has expired: it is old, and responses now lack it.
    fn has_lapsed(&self) -> bool {
        self.is_missing && !self.is_recent()
    }
}

impl ProgramReport {
    /// Records the metrics in the headers of a response, or in gRPC trailers.
    pub(crate) fn learn(&self, headers: &HeaderMap, is_grpc: bool) {
        let report = headers.get(if is_grpc { LOAD_BIN } else { LOAD });
        if report.is_none() && !self.is_used.load(Relaxed) {
            return;
        }
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.iter_mut().for_each(|metric| metric.is_missing = true);
        let learn = |name: &str, value: f64| learn_one(&mut metrics, name, value);
        match report {
            Some(report) if is_grpc => metrics_from_binary(report.as_bytes(), learn),
            Some(report) => metrics_from_text(report.as_bytes(), learn),
            None => {}
        }
        self.is_used.store(!metrics.is_empty(), Relaxed);
    }

    /// The current metrics of the program. `is_idle` means that no call is in flight.
    ///
    /// A program reports its load only in responses. While calls are waiting for their responses, the last values stay.
    /// Without calls the load is 0; if a value stayed, it would keep calls away for good. If the load is not 0, the
    /// next response shows that.
    pub(crate) fn values(&self, is_idle: bool) -> Vec<(String, f64)> {
        if !self.is_used.load(Relaxed) {
            return Vec::new();
        }
        let mut metrics = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        metrics.retain(|metric| !metric.has_lapsed());
        let value = |metric: &ReportedMetric| if is_idle && !metric.is_recent() { 0.0 } else { metric.value };
        metrics.iter().map(|metric| (metric.name.clone(), value(metric))).collect()
    }
}

fn learn_one(metrics: &mut Vec<ReportedMetric>, name: &str, value: f64) {
    if let Some(known) = metrics.iter_mut().find(|metric| metric.name == name) {
        (known.value, known.at, known.is_missing) = (value, Instant::now(), false);
        return;
    }
    let is_full = metrics.len() >= MAX_METRICS;
    let lapsed = metrics.iter().position(ReportedMetric::has_lapsed).filter(|_| is_full);
    if (is_full && lapsed.is_none()) || check(name).is_err() {
        return;
    }
    lapsed.map(|lapsed| metrics.swap_remove(lapsed));
    metrics.push(ReportedMetric { name: name.to_owned(), value, at: Instant::now(), is_missing: false });
}

#[cfg(test)]
mod tests {
    use std::iter;

    use tokio::time::advance;

    use super::*;

    fn learn(report: &ProgramReport, text: &str) {
        let headers: HeaderMap = iter::once((LOAD, text.parse().unwrap())).collect();
        report.learn(&headers, false);
    }

    fn values(report: &ProgramReport, is_idle: bool) -> String {
        let values = report.values(is_idle);
        values
            .iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect::<String>()
            .trim_end()
            .to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn program_load_metric_expires_unless_later_responses_carry_it() {
        let report = ProgramReport::default();
        report.learn(&HeaderMap::new(), false);
        assert_eq!(values(&report, false), "");
        learn(&report, "TEXT cpu_utilization=0.5,named_metrics.queue=70,application_utilization=0.25");
        learn(&report, "TEXT named_metrics.queue=80,bad name=1");
        assert_eq!(values(&report, true), "queue=80 application_utilization=0.25");
        advance(HOLDS - Duration::from_secs(1)).await;
        learn(&report, "TEXT named_metrics.queue=90");
        advance(Duration::from_secs(1)).await;
        assert_eq!(values(&report, true), "queue=90", "only the other one is missing");
        advance(HOLDS).await;
        assert_eq!(values(&report, false), "queue=90", "calls wait");
        assert_eq!(values(&report, true), "queue=0", "the next call may come here");
        report.learn(&HeaderMap::new(), false);
        assert_eq!(values(&report, false), "", "responses go on without it");
    }

    #[tokio::test(start_paused = true)]
    async fn new_program_load_metric_replaces_only_expired_one() {
        let report = ProgramReport::default();
        let names = |from: usize| (from..from + MAX_METRICS).map(|at| format!("m{at}=1")).collect::<Vec<_>>();
        learn(&report, &names(0).join(","));
        learn(&report, &names(1).join(","));
        assert_eq!(values(&report, false), names(0).join(" "), "there is no room");
        advance(HOLDS).await;
        learn(&report, &names(1).join(","));
        assert_eq!(report.values(false).len(), MAX_METRICS);
        assert!(report.values(false).iter().any(|(name, _)| *name == format!("m{MAX_METRICS}")));
    }
}
