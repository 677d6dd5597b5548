use std::sync::atomic::AtomicU64;

use fairmesh_imbalance::{Breakdown, Figures, ImbalanceReport, Minute};
use fairmesh_metrics::Register as _;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{Imbalance, newest_complete};

/// Maximum number of services that have their own series, chosen by waste. All other services share one series.
const MAX_SERVICES: usize = 20;
/// Label of the shared series. It cannot be a service name, which contains a tenant.
const OTHER: &str = "other";

type Label = [(&'static str, String); 1];
type Cores = Family<Label, Gauge<f64, AtomicU64>>;

/// Values of the indicator for the last minute, by service.
#[derive(Debug, Default)]
struct Gauges {
    containers: Cores,
    used: Cores,
    wasted: Cores,
}

impl Imbalance {
    /// Registers the indicator of the last complete minute by service, and counters of reports by outcome.
    pub(crate) fn register(&self, all: &mut Registry) {
        let rows = self.open().rows(newest_complete());
        let rows = rows.into_iter().map(|(service, row)| ((Minute(0), service), row)).collect();
        let view = ImbalanceReport::of(Breakdown::Service, &rows, Vec::new()).view();
        let gauges = Gauges::of(&view.lines);
        let help = "Instances that reported CPU usage for the last minute, by service";
        all.register("containers", help, gauges.containers);
        all.register("used_cores", "Cores used in the last minute", gauges.used);
        let help = "Cores wasted in the last minute: (p99 - mean) x instances";
        all.register("wasted_cores", help, gauges.wasted);
        let counts = &self.counts;
        let outcomes = [
            ("counted", &counts.counted),
            ("duplicate", &counts.known),
            ("late", &counts.late),
            ("future", &counts.future),
            ("invalid", &counts.unusable),
            ("full", &counts.full),
            ("undeclared", &counts.undeclared),
            ("unregistered", &counts.unregistered),
        ];
        let outcomes = outcomes.map(|(outcome, count)| ([("outcome", outcome.into())], count));
        all.counters("usage_reports", "CPU usage reports, by outcome", outcomes);
        all.counter("write_failures", "Failed writes of the history", &counts.write_failures);
        all.counter("clock_jumps", "Jumps ahead of the wall clock", &counts.clock_jumps);
        let bytes = self.history.as_ref().map_or(0, |history| history.bytes() as u64);
        all.gauge("history_bytes", "Size of the history", bytes);
    }
}

impl Gauges {
    fn of(lines: &[Figures]) -> Self {
        let gauges = Self::default();
        for (i, line) in lines.iter().enumerate() {
            let name = if i < MAX_SERVICES { line.name.clone() } else { OTHER.to_owned() };
            let label = [("service", name)];
            gauges.containers.get_or_create(&label).inc_by(line.containers);
            gauges.used.get_or_create(&label).inc_by(line.used_cores);
            gauges.wasted.get_or_create(&label).inc_by(line.wasted_cores);
        }
        gauges
    }
}
