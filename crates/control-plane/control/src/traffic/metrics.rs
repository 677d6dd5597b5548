use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use fairmesh_model::Region;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{TrafficController, lock};

impl TrafficController {
    /// Registers the metrics of planning.
    pub(crate) fn register(&self, control: &mut Registry) {
        let mut crossing = BTreeMap::<Region, f64>::new();
        let (services, refusing) = {
            let planners = lock(&self.planners);
            for (region, zones) in planners.values().flat_map(|planner| &planner.zones) {
                *crossing.entry(region.clone()).or_default() += zones.crossing_bytes();
            }
            let refusing = planners.values().filter(|planner| planner.refused.is_some()).count();
            (planners.len(), refusing)
        };
        let bytes = Family::<[(&str, String); 1], Gauge<f64, AtomicU64>>::default();
        for (region, crossing) in crossing {
            bytes.get_or_create(&[("region", region.to_string())]).set(crossing);
        }
        let help = "Bytes of responses per second between zones of a region, of services that prefer the zone of their callers";
        control.register("zone_bytes_per_second", help, bytes);
        gauge(control, "planned_services", "Services whose region tables are planned", services);
        gauge(control, "refused_services", "Services whose region tables are kept as they are now", refusing);
        counter(control, "rounds", "Rounds that made a plan", self.counts.planned.load(Relaxed));
        let refusals = Family::<[(&str, &str); 1], Counter>::default();
        for (reason, count) in lock(&self.counts.refused).iter() {
            refusals.get_or_create(&[("reason", *reason)]).inc_by(*count);
        }
        control.register("refusals", "Rounds that kept the tables, by reason", refusals);
        let help = "Batches of region tables written";
        counter(control, "table_writes", help, self.counts.written.load(Relaxed));
        let help = "Batches of region tables that could not be written";
        counter(control, "table_write_failures", help, self.counts.write_failures.load(Relaxed));
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
