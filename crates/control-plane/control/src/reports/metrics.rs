use fairmesh_metrics::{OTHER, Register as _};
use fairmesh_model::{CpuUser, Region, ServiceName};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};

use super::TrafficReports;

impl TrafficReports {
    /// Registers the metrics about reports of calls and load.
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
        let totals = self.counts.egress();
        let pair =
            |from: &Region, to: &Region| [("from", from.to_string().into()), ("to", to.to_string().into())];
        let bytes = totals.iter().map(|(from, to, bytes, _)| (pair(from, to), bytes));
        let help = "Bytes of requests and responses between regions, by sending and receiving region";
        traffic.counters("egress_bytes", help, bytes);
        let dollars = totals.iter().map(|(from, to, _, dollars)| (pair(from, to), dollars));
        let help = "What these bytes cost by the prices of the topology when they were counted";
        traffic.counters("egress_dollars", help, dollars);
        let help = "Bytes between regions left out: of regions that are neither declared nor have endpoints, or of too many pairs";
        counter(traffic, "egress_left_out_bytes", help, totals.left_out());
        let costs = self.counts.cost_totals();
        let pair = |pair: Option<(&CpuUser, &ServiceName)>| {
            let other = || OTHER.to_owned();
            let (caller, callee) =
                pair.map_or((other(), other()), |(user, service)| (user.to_string(), service.to_string()));
            [("fairmesh_caller", caller.into()), ("fairmesh_callee", callee.into())]
        };
        let seconds = costs.iter().map(|(names, seconds)| (pair(names), seconds));
        let help = "CPU of services, by the callers whose calls were in flight while it was used";
        traffic.counters("attributed_cpu_seconds", help, seconds);
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
