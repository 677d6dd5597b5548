use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_model::{Invalid, Region, ServiceName, TrafficMode, Zone};
use fairmesh_planner::{ServiceFacts, ServicePlanner, ShiftNote};
use fairmesh_wire::{
    convert::write_shares,
    v1::{self, traffic::Mode, traffic_planner_server::TrafficPlanner},
};
use tonic::{Request, Response, Status};

use super::{TrafficController, lock};
use crate::signals::TrafficReports;

/// The gRPC service `TrafficPlanner`.
#[derive(Clone, Debug)]
pub(crate) struct TrafficService {
    pub(crate) traffic: Arc<TrafficController>,
    pub(crate) reports: Arc<TrafficReports>,
}

#[tonic::async_trait]
impl TrafficPlanner for TrafficService {
    async fn status(
        &self,
        request: Request<v1::TrafficStatusRequest>,
    ) -> Result<Response<v1::TrafficStatusResponse>, Status> {
        let wanted = named("service", &request.into_inner().service)?;
        let services = self.traffic.facts.planned();
        let services =
            services.iter().filter(|service| wanted.as_ref().is_none_or(|wanted| wanted == *service));
        let services = services.filter_map(|service| self.traffic.status(service)).collect();
        let left_out = self.reports.left_out();
        Ok(Response::new(v1::TrafficStatusResponse { services, left_out }))
    }

    async fn forecast_drain(
        &self,
        request: Request<v1::ForecastDrainRequest>,
    ) -> Result<Response<v1::ForecastDrainResponse>, Status> {
        let region = region(request.into_inner().region)?;
        self.traffic.check_region(&region).map_err(|e| Status::failed_precondition(e.to_string()))?;
        Ok(Response::new(self.traffic.forecast(&region)))
    }

    async fn drain_region(
        &self,
        request: Request<v1::DrainRegionRequest>,
    ) -> Result<Response<v1::DrainRegionResponse>, Status> {
        let v1::DrainRegionRequest { region: name, undrain, over_ms } = request.into_inner();
        let region = region(name)?;
        let begun = self.traffic.begin_drain(&region, undrain, Duration::from_millis(over_ms)).await;
        begun.map_err(|e| Status::failed_precondition(e.to_string()))?;
        Ok(Response::new(v1::DrainRegionResponse {}))
    }

    async fn drains(&self, _: Request<v1::DrainsRequest>) -> Result<Response<v1::DrainsResponse>, Status> {
        Ok(Response::new(v1::DrainsResponse { drains: self.traffic.drains() }))
    }

    async fn calls(
        &self,
        request: Request<v1::TrafficCallsRequest>,
    ) -> Result<Response<v1::TrafficCallsResponse>, Status> {
        let v1::TrafficCallsRequest { service, caller } = request.into_inner();
        let (service, caller) = (named("service", &service)?, named("caller", &caller)?);
        Ok(Response::new(self.reports.calls(service.as_ref(), caller.as_ref())?))
    }
}

/// A service that may be named.
fn named(field: &str, name: &str) -> Result<Option<ServiceName>, Status> {
    let invalid = |e: Invalid| Status::invalid_argument(e.within(field).to_string());
    (!name.is_empty()).then(|| ServiceName::new(name)).transpose().map_err(invalid)
}

fn region(name: String) -> Result<Region, Status> {
    Region::try_from(name).map_err(|e| Status::invalid_argument(e.within("region").to_string()))
}

impl TrafficController {
    fn status(&self, service: &ServiceName) -> Option<v1::ServiceTraffic> {
        let (now_ms, facts) = (self.clock.now_ms(), self.facts.service(service));
        if !facts.traffic.is_planned() {
            return None;
        }
        let planners = lock(&self.planners);
        let fresh = ServicePlanner::new();
        let planner = planners.get(service).unwrap_or(&fresh);
        let mode = match facts.traffic.mode {
            TrafficMode::Active => Mode::Active,
            TrafficMode::Shadow => Mode::Shadow,
            TrafficMode::Hold => Mode::Hold,
        };
        let ago = |at_ms: u64| now_ms.saturating_sub(at_ms);
        let classes = std::iter::once(String::new()).chain(planner.classes.iter().map(ToString::to_string));
        let refusal = match &planner.refused {
            Some(refused) => refused.text.clone(),
            None if planner.planned_at_ms.is_none() => "no round was made yet".to_owned(),
            None => String::new(),
        };
        Some(v1::ServiceTraffic {
            service: service.to_string(),
            mode: mode.into(),
            round: planner.round,
            planned_ago_ms: planner.planned_at_ms.map(ago),
            confirmed_ago_ms: planner.confirmed_at_ms.map(ago),
            refusal,
            planned_rounds: planner.planned_rounds,
            refused_rounds: planner.refused_rounds,
            classes: classes.collect(),
            regions: regions(planner, &facts, now_ms),
            tables: tables(planner),
            shifts: shifts(planner, now_ms),
        })
    }
}

fn regions(planner: &ServicePlanner, facts: &ServiceFacts, now_ms: u64) -> Vec<v1::RegionTraffic> {
    let region = |(position, region): (usize, &Region)| {
        let known = planner.known.get(region).cloned().unwrap_or_default();
        // Of a policy that has just changed, the last plan may have zones that it does not ask for any more.
        let zone_refusal = planner.zones.get(region).filter(|_| facts.zone_first);
        let zone_refusal = zone_refusal.and_then(|zones| zones.refusal.clone());
        v1::RegionTraffic {
            region: region.to_string(),
            endpoints: facts.serving_in(region),
            power: facts.power_in(region),
            load: known.servers.map(|servers| servers.load),
            predicted: planner.predicted.get(position).copied(),
            offered: known.callers.as_ref().map(|(_, rates)| rates.offered.clone()).unwrap_or_default(),
            received: known.servers.map(|servers| servers.received).unwrap_or_default(),
            servers_ago_ms: known.servers.map(|servers| now_ms.saturating_sub(servers.at_ms)),
            callers_ago_ms: known.callers.map(|(at_ms, _)| now_ms.saturating_sub(at_ms)),
            zones: if facts.zone_first { zones(planner, region) } else { Vec::new() },
            zone_refusal: zone_refusal.unwrap_or_default(),
            unreported: planner.state.unreported(position),
        }
    };
    planner.regions.iter().enumerate().map(region).collect()
}

/// What is sent between zones of a region, and what is planned.
fn zones(planner: &ServicePlanner, region: &Region) -> Vec<v1::ZoneTraffic> {
    let Some(planned) = planner.zones.get(region) else { return Vec::new() };
    let mut rows = BTreeMap::<(Zone, Zone), v1::ZoneTraffic>::new();
    for (pair, rates) in &planned.rates {
        let row = rows.entry(pair.clone()).or_default();
        (row.attempts, row.bytes) = (rates.attempts, rates.bytes);
    }
    for (from, to) in &planned.shares {
        for (zone, share) in to {
            rows.entry((from.clone(), zone.clone())).or_default().share = share.millionths();
        }
    }
    let name = |((from, to), row): ((Zone, Zone), v1::ZoneTraffic)| v1::ZoneTraffic {
        from: from.into(),
        to: to.into(),
        ..row
    };
    rows.into_iter().map(name).collect()
}

/// The tables of the last plan; none before the first one.
fn tables(planner: &ServicePlanner) -> Vec<v1::SourceShares> {
    let shares = planner.shares().filter(|_| planner.planned_at_ms.is_some());
    let table = |(from, shares): (&fairmesh_model::Region, _)| v1::SourceShares {
        from: from.to_string(),
        shares: write_shares(shares),
    };
    shares.map(table).collect()
}

fn shifts(planner: &ServicePlanner, now_ms: u64) -> Vec<v1::TrafficShift> {
    let shift = |note: &ShiftNote| v1::TrafficShift {
        ago_ms: now_ms.saturating_sub(note.at_ms),
        from: note.from.to_string(),
        class: note.class.as_ref().map(ToString::to_string).unwrap_or_default(),
        text: note.text.clone(),
    };
    planner.shifts.iter().map(shift).collect()
}
