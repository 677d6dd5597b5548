use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_imbalance::{Breakdown, Figures, ImbalanceReport, Minute};
use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};

use super::{Imbalance, now};

/// Maximum of services with their own series, the most wasteful first; the others share one series.
const MAX_SERVICES: usize = 20;
/// Label of the shared series; not a service's name, which has a tenant.
const OTHER: &str = "other";

type Label = [(&'static str, String); 1];
type Cores = Family<Label, Gauge<f64, AtomicU64>>;

/// The indicator of the last minute, by service.
#[derive(Debug, Default)]
struct Gauges {
    containers: Cores,
    used: Cores,
    wasted: Cores,
}

impl Imbalance {
    /// Registers the last whole minute by service, and the outcomes of reports.
    pub(crate) fn register(&self, all: &mut Registry) {
        let rows = self.last_minute(now());
        let rows = rows.into_iter().map(|(service, row)| ((Minute(0), service), row)).collect();
        let view = ImbalanceReport::of(Breakdown::Service, &rows, Vec::new()).view();
        let gauges = Gauges::of(&view.lines);
        let help = "Instances that reported CPU usage for the last minute, by service";
        all.register("containers", help, gauges.containers);
        all.register("used_cores", "Cores used in the last minute", gauges.used);
        let help = "Cores wasted in the last minute: (p99 - mean) x instances";
        all.register("wasted_cores", help, gauges.wasted);
        let counts = &self.counts;
        let usages = Family::<[(&'static str, &'static str); 1], Counter>::default();
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
        for (outcome, count) in outcomes {
            usages.get_or_create(&[("outcome", outcome)]).inc_by(count.load(Relaxed));
        }
        all.register("usage_reports", "CPU usage reports, by outcome", usages);
        let failures = counts.write_failures.load(Relaxed);
        all.register("write_failures", "Failed writes of the history", ConstCounter::new(failures));
        let jumps = counts.clock_jumps.load(Relaxed);
        all.register("clock_jumps", "Jumps ahead of the wall clock", ConstCounter::new(jumps));
        let bytes = self.history.as_ref().map_or(0, |history| history.bytes() as u64);
        all.register_with_unit("history", "Size of the history", Unit::Bytes, ConstGauge::new(bytes));
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
