//! Drains of whole regions: forecast, and step by step.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    EndpointState, Invalid, Prefix, Record, RecordKey, Region, RegionDrain, ServiceName, Share, TrafficMode,
};
use fairmesh_rib::{Batch, Expect, Op};
use fairmesh_te::drain::Forecast;
use fairmesh_wire::{records, v1};
use tokio::time::{Instant, timeout};

use super::{
    TrafficController, WRITE_TIMEOUT,
    facts::{ServiceFacts, StoredDrain, TopologyFacts},
    lock,
    planner::{DrainStep, Now, ServicePlanner},
};
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
        Self { text: text.into(), ..Self::default() }
    }
}

impl TrafficController {
    /// Makes the next step of each drain that may make one.
    pub(super) async fn step_drains(
        &self,
        services: &BTreeMap<ServiceName, ServiceFacts>,
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
        services: &BTreeMap<ServiceName, ServiceFacts>,
        topology: &TopologyFacts,
        (region, stored): (&Region, &StoredDrain),
        now: Now,
    ) -> DrainState {
        let drain = &stored.drain;
        let steps = {
            let planners = lock(&self.planners);
            let step = |(name, facts): (&ServiceName, &ServiceFacts)| {
                let planner = planners.get(name)?;
                Some((name.clone(), planner.drain_step(facts, topology, (region, drain), now)?))
            };
            services.iter().filter_map(step).collect::<Vec<_>>()
        };
        let state = match next_step(drain, &steps) {
            Err(state) => state,
            Ok(_) if steps.is_empty() && !services.is_empty() && now.is_starting() => {
                // Of a region with callers alone the planners know by reports, which a control plane that has just started waits for.
                DrainState::waiting("waits for reports, since the control plane has started")
            }
            Ok(keep) => self.make_step((region, stored), &steps, keep).await,
        };
        DrainState { services: Some(u32::try_from(steps.len()).unwrap_or(u32::MAX)), ..state }
    }

    /// Makes a step that all services may make, once all programs follow the tables of the one before.
    async fn make_step(
        &self,
        (region, stored): (&Region, &StoredDrain),
        steps: &[(ServiceName, DrainStep)],
        keep: Share,
    ) -> DrainState {
        if let Some(behind) = self.unacknowledged(steps).await {
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

    /// A program that does not follow the tables in force yet.
    async fn unacknowledged(&self, steps: &[(ServiceName, DrainStep)]) -> Option<String> {
        for (service, _) in steps {
            let revision = self.tables(service).values().map(|stored| stored.revision).max();
            let prefix = Prefix::tables(service);
            let status = self.node.wait_acked(&prefix, revision.unwrap_or_default(), Instant::now()).await;
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
        let drains = self.topology().drains;
        let before = drains.get(region);
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
        let mut known: BTreeSet<Region> = self.topology().regions.regions.into_keys().collect();
        known.extend(lock(&self.planners).values().flat_map(|planner| planner.regions.iter().cloned()));
        if let Ok(all) = Prefix::new("/t/") {
            known.extend(self.node.read(&[all]).1.into_iter().filter_map(|(key, _)| match RecordKey::parse(
                &key,
            ) {
                Ok(RecordKey::Endpoint(_, region, _)) => Some(region),
                _ => None,
            }));
        }
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
        let (drains, states) = (self.topology().drains, lock(&self.drain_states).clone());
        let status = |(region, stored): (Region, StoredDrain)| {
            let begins = || DrainState::waiting("waits for the next round of the planner");
            let state = states.get(&region).cloned().unwrap_or_else(begins);
            v1::RegionDrainStatus {
                region: region.to_string(),
                drain: Some(stored.drain.into()),
                state: state.text,
                is_held: state.is_held,
                staying: state.staying,
                services: state.services,
            }
        };
        drains.into_iter().map(status).collect()
    }

    /// What a drain of a region would lead to.
    pub(super) fn forecast(&self, region: &Region) -> v1::ForecastDrainResponse {
        let (now_ms, topology) = (self.elapsed_ms(), self.topology());
        let sum = lock(&self.sums).sum_of_all(now_ms);
        // A copy: rounds go on meanwhile.
        let planners = lock(&self.planners).clone();
        let mut response = v1::ForecastDrainResponse::default();
        let mut moved = Vec::new();
        for (service, planner) in planners.iter() {
            let Some(mut facts) = self.facts(service, &sum, &topology) else { continue };
            facts.lone_shards = lock(&self.lone_shards).get(&self.node, service);
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

    /// Services with serving endpoints in the region that are not moved.
    fn unmoved(&self, region: &Region, moved: &[ServiceName]) -> Vec<v1::UnmovedService> {
        // All endpoints are read: an operator asks for it, seldom.
        let Ok(all) = Prefix::new("/t/") else { return Vec::new() };
        let mut names: Vec<ServiceName> = Vec::new();
        for (key, entry) in self.node.read(&[all]).1 {
            let Ok(key) = RecordKey::parse(&key) else { continue };
            if let RecordKey::Endpoint(service, of, _) = &key
                && of == region
                && !moved.contains(service)
                && names.last() != Some(service)
                && is_serving(&key, &entry.value)
            {
                names.push(service.clone());
            }
        }
        let more = names.len().saturating_sub(MAX_UNMOVED);
        let named = names.iter().take(MAX_UNMOVED).map(|service| v1::UnmovedService {
            service: service.to_string(),
            reason: self.why_unmoved(service).to_owned(),
        });
        let rest = v1::UnmovedService { service: String::new(), reason: format!("and {more} more") };
        named.chain((more > 0).then_some(rest)).collect()
    }

    /// Why drains move no call of a service.
    fn why_unmoved(&self, service: &ServiceName) -> &'static str {
        let policy = self.node.get(&RecordKey::Policy(service.clone()).to_string());
        let Some(policy) = policy.map(|entry| entry.value) else { return "no planner plans for it" };
        match records::traffic(&policy) {
            _ if records::is_local_only(&policy) => "its policy keeps calls in their region (localOnly)",
            None => "no planner plans for it",
            Some(traffic) if !traffic.is_planned() => "its shares are written by hand",
            Some(traffic) if traffic.mode == TrafficMode::Shadow => "its tables are in shadow mode",
            Some(_) => "its planner has not seen the region yet",
        }
    }
}

fn is_serving(key: &RecordKey, value: &[u8]) -> bool {
    matches!(
        records::decode(key, value),
        Ok(Record::Endpoint(endpoint)) if endpoint.state == EndpointState::Serving
    )
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The name of an unmoved service, or how many more there are.
fn name_or_number(unmoved: &v1::UnmovedService) -> String {
    if unmoved.service.is_empty() { unmoved.reason.clone() } else { unmoved.service.clone() }
}

/// Why calls of services stay in a region.
fn staying(services: &BTreeMap<ServiceName, ServiceFacts>, region: &Region) -> Vec<String> {
    let lone = services
        .iter()
        .filter_map(|(name, facts)| Some(format!("{name}: {}", facts.lone_shards.text(region)?)));
    lone.take(MAX_UNMOVED).collect()
}

/// What the region keeps from now on, or why that does not change yet.
fn next_step(drain: &RegionDrain, steps: &[(ServiceName, DrainStep)]) -> Result<Share, DrainState> {
    let held = steps.iter().find_map(|(service, step)| match step {
        DrainStep::Hold(why) => Some(format!("held: {service}: {why}")),
        _ => None,
    });
    if let Some(text) = held {
        return Err(DrainState { is_held: true, ..DrainState::waiting(text) });
    }
    let waits = steps.iter().find_map(|(service, step)| match step {
        DrainStep::Wait(what) => Some(format!("waits for {what} ({service})")),
        _ => None,
    });
    if let Some(text) = waits {
        return Err(DrainState::waiting(text));
    }
    let advanced = steps.iter().find_map(|(_, step)| match step {
        DrainStep::Advance(keep) => Some(*keep),
        _ => None,
    });
    let early = steps.iter().find(|(_, step)| *step == DrainStep::NotDue);
    match (advanced, early) {
        // The time is the same for all services: a step that is made before it is due saves calls from being dropped.
        (Some(keep), _) => Ok(keep),
        (None, Some((service, _))) => {
            Err(DrainState::waiting(format!("waits for the time of the next step ({service})")))
        }
        // Without anything to move there is nothing to wait for.
        (None, None) => Ok(if drain.returns { Share::ALL } else { Share::NONE }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_made_when_every_service_may_make_it() {
        let name = |name: &str| ServiceName::new(name).unwrap();
        let share = |millionths| Share::of_millionths(millionths).unwrap();
        let drain = RegionDrain::begin(None, false, Duration::from_secs(10), 0);
        let advance = (name("shop/a"), DrainStep::Advance(share(900_000)));
        let wait = (name("shop/b"), DrainStep::Wait("reports".to_owned()));
        let hold = (name("shop/c"), DrainStep::Hold("full".to_owned()));
        assert_eq!(next_step(&drain, std::slice::from_ref(&advance)), Ok(share(900_000)));
        let early = (name("shop/d"), DrainStep::NotDue);
        let waits = next_step(&drain, std::slice::from_ref(&early)).unwrap_err();
        assert_eq!(
            (waits.text.as_str(), waits.is_held),
            ("waits for the time of the next step (shop/d)", false)
        );
        let saves = [early, advance.clone()];
        assert_eq!(next_step(&drain, &saves), Ok(share(900_000)), "what saves calls is not too early");
        let waits = next_step(&drain, &[advance.clone(), wait.clone()]).unwrap_err();
        assert_eq!((waits.text.as_str(), waits.is_held), ("waits for reports (shop/b)", false));
        let held = next_step(&drain, &[advance, wait, hold]).unwrap_err();
        assert_eq!((held.text.as_str(), held.is_held), ("held: shop/c: full", true));
        assert_eq!(next_step(&drain, &[]), Ok(Share::NONE), "nothing to move");
        assert_eq!(next_step(&RegionDrain { returns: true, ..drain }, &[]), Ok(Share::ALL));
    }
}
