use std::collections::BTreeMap;

use fairmesh_metrics::Register as _;
use fairmesh_model::Region;
use fairmesh_planner::{Refused, Verdict};
use prometheus_client::{
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::TrafficPlanning;

/// Totals of all services since the start. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanCounts {
    planned: Counter,
    refused: Family<[(&'static str, &'static str); 1], Counter>,
    /// Batches of tables that were written.
    pub(super) written: Counter,
    /// Batches of tables that were not.
    pub(super) write_failures: Counter,
}

impl PlanCounts {
    /// Counts a round of the planner of a service.
    pub(super) fn count_round(&self, refused: Option<&Refused>) {
        match refused {
            None => self.planned.inc(),
            Some(refused) => self.refused.get_or_create(&[("reason", refused.reason)]).inc(),
        };
    }
}

impl TrafficPlanning {
    /// Registers the metrics of planning.
    pub(crate) fn register(&self, traffic: &mut Registry) {
        let plans = self.plans.read();
        let mut crossing = BTreeMap::<Region, f64>::new();
        for (region, zones) in plans.by_service.values().flat_map(|planner| &planner.zones) {
            *crossing.entry(region.clone()).or_default() += zones.crossing_bytes();
        }
        let bytes = crossing.iter().map(|(region, bytes)| ([("region", region.to_string().into())], *bytes));
        let help = "Bytes of responses per second between zones of a region, of services that prefer the zone of their callers";
        traffic.gauges("zone_bytes_per_second", help, bytes);
        let help = "Services whose region tables are planned";
        traffic.gauge("planned_services", help, plans.by_service.len());
        let refusing = plans.by_service.values().filter(|planner| planner.refused.is_some()).count();
        let help = "Services whose region tables are kept as they are now";
        traffic.gauge("refused_services", help, refusing);
        let doubted =
            plans.by_service.values().map(|planner| planner.doubted_regions().count()).sum::<usize>();
        let help = "Regions of services whose capacity is doubted";
        traffic.gauge("doubted_regions", help, doubted);
        let (mut optimized, mut left) = (0_usize, BTreeMap::<&'static str, usize>::new());
        for planner in plans.by_service.values() {
            match &planner.verdict {
                Some(Verdict::Optimized(_)) => optimized += 1,
                Some(Verdict::Rings(fallback)) => *left.entry(fallback.reason).or_default() += 1,
                None => {}
            }
        }
        traffic.gauge("optimized_services", "Services whose region tables the optimizer plans", optimized);
        let left = left.into_iter().map(|(reason, services)| ([("reason", reason.into())], services));
        let help = "Services that ask for the optimizer and that rings plan, by reason";
        traffic.gauges("services_left_to_rings", help, left);
        let PlanCounts { planned, refused, written, write_failures } = self.counts.clone();
        traffic.register("rounds", "Rounds that made a plan", planned);
        traffic.register("refusals", "Rounds that kept the tables, by reason", refused);
        traffic.register("table_writes", "Batches of region tables written", written);
        let help = "Batches of region tables that could not be written";
        traffic.register("table_write_failures", help, write_failures);
    }
}
