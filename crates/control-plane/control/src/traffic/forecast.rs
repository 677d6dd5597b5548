//! What a drain of a region would lead to.

use std::time::Duration;

use fairmesh_model::{Region, ServiceName};
use fairmesh_planner::{Forecast, ServiceFacts, ServicePlanner, TopologyFacts};
use fairmesh_rib::Node;
use fairmesh_wire::v1;

use super::TrafficPlanning;

/// The most unmoved services that a forecast names.
const MAX_UNMOVED: usize = 100;

/// The region that a forecast drains, and the facts of the service.
struct DrainedFrom<'a> {
    region: &'a Region,
    facts: &'a ServiceFacts,
    topology: &'a TopologyFacts,
}

impl TrafficPlanning {
    /// What a drain of a region would lead to.
    pub(super) fn forecast(&self, region: &Region, node: &Node) -> v1::ForecastDrainResponse {
        let (now_ms, topology, plans) = (self.clock.now_ms(), self.facts.topology(), self.plans.read());
        let mut response = v1::ForecastDrainResponse::default();
        let mut moved = Vec::new();
        for (service, planner) in &plans.by_service {
            self.facts.update_lone_shards([service], node);
            let facts = self.facts.service(service);
            if !facts.traffic.is_planned() {
                continue;
            }
            let Some(forecast) = planner.forecast(&facts, &topology, region, now_ms) else { continue };
            moved.push(service.clone());
            let forecast = match forecast {
                Ok(forecast) => {
                    let from = DrainedFrom { region, facts: &facts, topology: &topology };
                    message(service, planner, &forecast, from)
                }
                Err(refusal) => {
                    v1::ServiceForecast { service: service.to_string(), refusal, ..Default::default() }
                }
            };
            let hold = planner.holds_drains(&facts).unwrap_or_default();
            response.services.push(v1::ServiceForecast { hold, ..forecast });
        }
        response.unmoved_services = self.unmoved(region, &moved);
        response.unmoved = response.unmoved_services.iter().map(name_or_number).collect();
        response
    }

    /// Services with serving endpoints in the region that are not moved. `moved` is in the order of names.
    fn unmoved(&self, region: &Region, moved: &[ServiceName]) -> Vec<v1::UnmovedService> {
        let facts = self.facts.lock();
        let mut stay = facts.serving_in(region).filter(|(name, _)| moved.binary_search(name).is_err());
        let named = stay.by_ref().take(MAX_UNMOVED).map(|(service, facts)| {
            let why = facts.why_not_drained();
            let reason = why.unwrap_or("its planner has not seen the region yet").to_owned();
            v1::UnmovedService { service: service.to_string(), reason }
        });
        let mut unmoved: Vec<_> = named.collect();
        let more = stay.count();
        if more > 0 {
            unmoved.push(v1::UnmovedService { service: String::new(), reason: format!("and {more} more") });
        }
        unmoved
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The name of an unmoved service, or how many more there are.
fn name_or_number(unmoved: &v1::UnmovedService) -> String {
    if unmoved.service.is_empty() { unmoved.reason.clone() } else { unmoved.service.clone() }
}

fn message(
    service: &ServiceName,
    planner: &ServicePlanner,
    forecast: &Forecast,
    DrainedFrom { region: drained, facts, topology }: DrainedFrom<'_>,
) -> v1::ServiceForecast {
    let bytes_per_call = facts.bytes_per_call(drained);
    let region = |(at, region): (usize, &Region)| v1::RegionForecast {
        region: region.to_string(),
        before: forecast.before[at],
        after: forecast.after[at],
        calls: forecast.to[at],
        bytes: forecast.to[at] * bytes_per_call,
        round_trip_us: topology.round_trips.get(drained, region).map(micros),
        is_full: forecast.full.contains(&at),
        time_now_us: facts.response_time(drained, region).map(micros),
        time_after_us: facts
            .expected_time(drained, region, &topology.round_trips)
            .filter(|_| forecast.to[at] > 0.0)
            .map(micros),
    };
    v1::ServiceForecast {
        service: service.to_string(),
        refusal: String::new(),
        regions: planner.regions.iter().enumerate().map(region).collect(),
        leaving: forecast.leaving,
        staying: forecast.staying,
        dropped: forecast.dropped,
        hold: String::new(),
        of_others: forecast.of_others,
    }
}
