use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use super::TrafficReports;

impl TrafficReports {
    /// Registers the metrics of reports of calls and load.
    pub(crate) fn register(&self, traffic: &mut Registry) {
        let reporters = self.sums().reporters();
        gauge(traffic, "reporters", "Processes that report calls and load", reporters);
        let watched = self.watched().len(self.now_ms());
        let help = "Services whose calls are reported since an operator looks at them";
        gauge(traffic, "watched_services", help, watched);
        let help = "Paths of calls and groups of servers that reports of processes below had no room for";
        gauge(traffic, "paths_left_out", help, usize::try_from(self.left_out()).unwrap_or(usize::MAX));
        let (paths, bytes, processes) = self.counts.size();
        gauge(traffic, "history_paths", "Paths of calls in the history of the last hour", paths);
        gauge(traffic, "history_bytes", "Size of the history of the last hour", bytes);
        gauge(traffic, "history_reporters", "Processes that report counts of calls", processes);
        counter(traffic, "reports", "Reports of calls and load", self.taken());
        counter(traffic, "reports_left_out", "Reports left out, since there were too many", self.full());
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: usize) {
    let gauge = Gauge::<i64>::default();
    gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
    registry.register(name, help, gauge);
}

fn counter(registry: &mut Registry, name: &str, help: &str, value: u64) {
    let counter = Counter::<u64>::default();
    counter.inc_by(value);
    registry.register(name, help, counter);
}
