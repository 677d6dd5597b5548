//! Drains of whole regions: forecast, and step by step.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fairmesh_model::{Invalid, Prefix, Record, RecordKey, Region, RegionDrain, ServiceName, Share};
use fairmesh_planner::{
    DrainWait, Forecast, Now, ServiceFacts, ServicePlanner, StoredDrain, TopologyFacts, next_keep,
};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_wire::{records, v1};
use tokio::time::{Instant, timeout};

use super::{TrafficController, WRITE_TIMEOUT, lock};
use crate::admin::now_ms;

/// The most services that a forecast names of those that it does not move.
const MAX_UNMOVED: usize = 100;

/// What a drain does, for operators.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DrainState {
    pub(super) text: String,
    pub(super) is_held: bool,
    /// What stays in the region whatever is drained.
    pub(super) staying: Vec<String>,
    /// The services whose calls it moves, once a round has found them.
    services: Option<u32>,
    /// Whether the last round changed its record.
    has_stepped: bool,
}

impl DrainState {
    fn waiting(text: impl Into<String>) -> Self {
        DrainWait::new(text).into()
    }
}

impl From<DrainWait> for DrainState {
    fn from(DrainWait { text, is_held }: DrainWait) -> Self {
        Self { text, is_held, ..Self::default() }
    }
}

impl TrafficController {
    /// Makes the next step of each drain that may make one.
    pub(super) async fn step_drains(
        &self,
        services: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: &TopologyFacts,
        now: Now,
    ) {
        let mut states = BTreeMap::new();
        for (region, stored) in &topology.drains {
            let mut state = self.step_drain(services, topology, (region, stored), now).await;
            state.staying = staying(services, region);
            let has_stepped = state.has_stepped;
            states.insert(region.clone(), state);
            // The next is judged by what this one leaves, in the next round.
            if has_stepped {
                let others = topology.drains.keys().filter(|other| !states.contains_key(*other));
                let waits = |other: &Region| {
                    (other.clone(), DrainState::waiting("waits for the step of another drain"))
                };
                let waiting: Vec<_> = others.map(waits).collect();
                states.extend(waiting);
                break;
            }
        }
        *lock(&self.drain_states) = states;
    }

    async fn step_drain(
        &self,
        services: &BTreeMap<ServiceName, Arc<ServiceFacts>>,
        topology: &TopologyFacts,
        (region, stored): (&Region, &StoredDrain),
        now: Now,
    ) -> DrainState {
        let drain = &stored.drain;
        let steps = {
            let planners = lock(&self.planners);
            let step = |(name, facts): (&ServiceName, &Arc<ServiceFacts>)| {
                let planner = planners.get(name)?;
                Some((name.clone(), planner.drain_step(facts, topology, (region, drain), now)?))
            };
            services.iter().filter_map(step).collect::<Vec<_>>()
        };
        let state = match next_keep(drain, &steps) {
            Err(wait) => wait.into(),
            Ok(_) if steps.is_empty() && !services.is_empty() && now.is_starting() => {
                // Of a region with callers alone the planners know by reports, which a control plane that has just started waits for.
                DrainState::waiting("waits for reports, since the control plane has started")
            }
            Ok(keep) => {
                let revision =
                    |facts: &ServiceFacts| facts.tables.values().map(|stored| stored.revision).max();
                let judged = steps.iter().filter_map(|(service, _)| {
                    Some((service.clone(), revision(services.get(service)?).unwrap_or_default()))
                });
                self.make_step((region, stored), &judged.collect::<Vec<_>>(), keep).await
            }
        };
        DrainState { services: Some(u32::try_from(steps.len()).unwrap_or(u32::MAX)), ..state }
    }

    /// Makes a step that all services may make, once all programs follow the tables by which it is judged: those of services, up to a
    /// revision.
    async fn make_step(
        &self,
        (region, stored): (&Region, &StoredDrain),
        judged: &[(ServiceName, u64)],
        keep: Share,
    ) -> DrainState {
        if let Some(behind) = self.unacknowledged(judged).await {
            return DrainState::waiting(format!("waits for {behind} to apply the tables"));
        }
        if stored.drain.is_done() {
            if stored.drain.returns {
                self.write_drain(region, None, Some(stored.revision)).await;
            }
            return DrainState::waiting("done");
        }
        let next = RegionDrain { keep, ..stored.drain };
        let has_stepped = self.write_drain(region, Some(next), Some(stored.revision)).await;
        DrainState { has_stepped, ..DrainState::waiting("makes a step") }
    }

    /// A program that does not follow yet the tables by which a step is judged: those of services, up to a revision.
    async fn unacknowledged(&self, judged: &[(ServiceName, u64)]) -> Option<String> {
        for (service, revision) in judged {
            let prefix = Prefix::tables(service);
            let status = self.node.wait_acked(&prefix, *revision, Instant::now()).await;
            if !status.all {
                // Without the number of a revision, which says nothing to operators of a drain.
                let behind = status.behind.first();
                return Some(behind.map_or_else(|| "a program".to_owned(), |watcher| watcher.name.clone()));
            }
        }
        None
    }

    /// Writes a drain, unless another writer was faster; whether it is written.
    async fn write_drain(&self, region: &Region, drain: Option<RegionDrain>, replaces: Option<u64>) -> bool {
        let key = RecordKey::RegionDrain(region.clone()).to_string();
        let op = match drain {
            Some(drain) => Op::put(key, records::encode(&Record::RegionDrain(drain))),
            None => Op::delete(key),
        };
        let op = op.expecting(replaces.map_or(Expect::Absent, Expect::Revision));
        let written = timeout(WRITE_TIMEOUT, self.store.write(Batch { ops: vec![op] })).await;
        let is_written = matches!(written, Ok(Ok(_)));
        if !is_written {
            tracing::warn!(%region, "a step of the drain is not written; the next round tries again");
        }
        is_written
    }

    /// Begins a drain or its way back.
    ///
    /// # Errors
    /// If it would take too long, or another writer was faster.
    pub(super) async fn begin_drain(
        &self,
        region: &Region,
        returns: bool,
        over: Duration,
    ) -> Result<(), Invalid> {
        let topology = self.facts.topology();
        let before = topology.drains.get(region);
        if !returns {
            self.check_region(region)?;
        }
        if returns && before.is_none() {
            self.check_region(region)?;
            let hint = "see 'fairmesh traffic status' for drains in progress";
            return Err(Invalid::new("region", format!("'{region}' is not drained"), hint));
        }
        let drain = RegionDrain::begin(before.map(|stored| stored.drain), returns, over, now_ms());
        drain.validate()?;
        match self.write_drain(region, Some(drain), before.map(|stored| stored.revision)).await {
            true => {
                lock(&self.drain_states).remove(region);
                Ok(())
            }
            false => Err(Invalid::new("region", "was changed by another writer meanwhile", "try again")),
        }
    }

    /// Checks that a topology, an endpoint or a caller names a region: of a misspelt one there is nothing to drain.
    pub(super) fn check_region(&self, region: &Region) -> Result<(), Invalid> {
        let mut known = self.facts.lock().regions();
        known.extend(lock(&self.planners).values().flat_map(|planner| planner.regions.iter().cloned()));
        if known.contains(region) {
            return Ok(());
        }
        let names: Vec<String> = known.iter().take(MAX_UNMOVED).map(ToString::to_string).collect();
        let hint = match names.is_empty() {
            true => "declare regions with a document of kind Topology".to_owned(),
            false => format!("name one of {}", names.join(", ")),
        };
        Err(Invalid::new("region", format!("'{region}' is not known"), hint))
    }

    /// The drains in progress.
    pub(super) fn drains(&self) -> Vec<v1::RegionDrainStatus> {
        let (topology, states) = (self.facts.topology(), lock(&self.drain_states).clone());
        let status = |(region, stored): (&Region, &StoredDrain)| {
            let begins = || DrainState::waiting("waits for the next round of the planner");
            let state = states.get(region).cloned().unwrap_or_else(begins);
            v1::RegionDrainStatus {
                region: region.to_string(),
                drain: Some(stored.drain.into()),
                state: state.text,
                is_held: state.is_held,
                staying: state.staying,
                services: state.services,
            }
        };
        topology.drains.iter().map(status).collect()
    }

    /// What a drain of a region would lead to.
    pub(super) fn forecast(&self, region: &Region) -> v1::ForecastDrainResponse {
        let (now_ms, topology) = (self.clock.now_ms(), self.facts.topology());
        // A copy: rounds go on meanwhile.
        let planners = lock(&self.planners).clone();
        let mut response = v1::ForecastDrainResponse::default();
        let mut moved = Vec::new();
        for (service, planner) in planners.iter() {
            self.find_lone_shards([service]);
            let facts = self.facts.service(service);
            if !facts.traffic.is_planned() {
                continue;
            }
            let Some(forecast) = planner.forecast(&facts, &topology, region, now_ms) else { continue };
            moved.push(service.clone());
            let forecast = match forecast {
                Ok(forecast) => message(service, planner, &forecast, (region, &facts, &topology)),
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

/// Why calls of services stay in a region.
fn staying(services: &BTreeMap<ServiceName, Arc<ServiceFacts>>, region: &Region) -> Vec<String> {
    let lone = services
        .iter()
        .filter_map(|(name, facts)| Some(format!("{name}: {}", facts.lone_shards.text(region)?)));
    lone.take(MAX_UNMOVED).collect()
}

fn message(
    service: &ServiceName,
    planner: &ServicePlanner,
    forecast: &Forecast,
    (drained, facts, topology): (&Region, &ServiceFacts, &TopologyFacts),
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
