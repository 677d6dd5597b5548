use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fairmesh_imbalance::{Breakdown, Figures, Minute, Report};
use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Registry, Unit},
};

use super::{Imbalance, now};

/// How many services have series of their own, the most wasteful ones; the others are one.
const MAX_SERVICES: usize = 20;
/// What that one is called: no service's name, which has a tenant.
const OTHER: &str = "other";

type Label = [(&'static str, String); 1];
type Cores = Family<Label, Gauge<f64, AtomicU64>>;

/// The indicator live, by service.
#[derive(Debug, Default)]
struct Gauges {
    containers: Cores,
    used: Cores,
    wasted: Cores,
}

impl Imbalance {
    /// Adds the last whole minute by service, and what became of usages.
    pub(crate) fn register(&self, all: &mut Registry) {
        let rows = self.last_minute(now());
        let rows = rows.into_iter().map(|(service, row)| ((Minute(0), service), row)).collect();
        let view = Report::of(Breakdown::Service, &rows, Vec::new()).view();
        let gauges = Gauges::of(&view.lines);
        let help = "Containers that said what they used in the last minute; the most wasteful services, and the others";
        all.register("containers", help, gauges.containers);
        all.register("used_cores", "Cores used in the last minute", gauges.used);
        let help = "(p99 - mean) x containers in the last minute: cores kept free because of the hottest";
        all.register("wasted_cores", help, gauges.wasted);
        let counts = &self.counts;
        let usages = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let outcomes = [
            ("counted", &counts.counted),
            ("known", &counts.known),
            ("late", &counts.late),
            ("future", &counts.future),
            ("impossible", &counts.unusable),
            ("full", &counts.full),
            ("undeclared", &counts.undeclared),
            ("unregistered", &counts.unregistered),
        ];
        for (outcome, count) in outcomes {
            usages.get_or_create(&[("outcome", outcome)]).inc_by(count.load(Relaxed));
        }
        all.register("usages", "Minutes of instances by what became of them", usages);
        let failures = counts.write_failures.load(Relaxed);
        all.register("write_failures", "Rounds of writing that failed", ConstCounter::new(failures));
        let jumps = counts.clock_jumps.load(Relaxed);
        all.register("clock_jumps", "Times that the clock jumped ahead", ConstCounter::new(jumps));
        let bytes = self.history.as_ref().map_or(0, |history| history.bytes() as u64);
        all.register_with_unit("history", "What is kept of the past", Unit::Bytes, ConstGauge::new(bytes));
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
