use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use fairmesh_controllers::{
    self as controllers, BoxError, Controller, Decision, Refusal, Triggers, Wake, Write,
};
use fairmesh_model::{Prefix, Record, RecordKey, Region, RegionDrain, ServiceName, Share};
use fairmesh_planner::{DrainStep, DrainWait, Now, ServiceFacts, StoredDrain, TopologyFacts, next_keep};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use super::{
    LONGEST_PAUSE, Plans, ROUND_INTERVAL, TrafficPlanning,
    drain_states::{DONE, DrainState},
};
use crate::wall_clock::now_ms;

/// The most shards and services that a state names.
const MAX_STAYING: usize = 100;

/// Drains regions step by step.
///
/// A step is made once the plans of all services permit it, and all programs follow the tables by which it is judged. It has
/// no state of its own: where a drain is stands in its record, so that the next control plane continues it.
#[derive(Clone, Debug)]
pub(crate) struct DrainController(pub(crate) TrafficPlanning);

/// Facts of a round of drains.
#[derive(Debug)]
pub(crate) struct DrainFacts {
    topology: Arc<TopologyFacts>,
    /// The services with a planner.
    services: BTreeMap<ServiceName, Arc<ServiceFacts>>,
    plans: Arc<Plans>,
    /// For regions whose plans permit a step: the name of a program that does not follow the tables yet, if there is one.
    behind: BTreeMap<Region, Option<String>>,
    /// What operators saw until now.
    states: Arc<BTreeMap<Region, DrainState>>,
}

/// What the plans of all services say of the next step of a drain.
struct Judgement {
    /// The services whose calls the drain moves.
    services: Vec<ServiceName>,
    /// What the region keeps from now on.
    keep: Result<Share, DrainWait>,
}

/// A decision on one drain.
struct DrainDecision {
    state: DrainState,
    write: Option<Write>,
    /// Whether calls leave, or come back: the next drain is judged by what this one leaves.
    is_step: bool,
}

/// The publication of other states of drains.
#[derive(Debug)]
pub(crate) struct PublishStates(BTreeMap<Region, DrainState>);

impl fmt::Display for PublishStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "publish the states of {} drains", self.0.len())
    }
}

impl Controller for DrainController {
    const NAME: &'static str = "drains";
    const DEADLINE: Duration = Duration::from_secs(10);
    const LONGEST_PAUSE: Duration = LONGEST_PAUSE;
    type Facts = DrainFacts;
    type Effect = PublishStates;

    /// Time and acknowledgements let drains go on, and wake nothing.
    fn triggers(&self) -> Triggers {
        Triggers {
            prefixes: vec![Prefix::drains()],
            notify: Some(Arc::clone(&self.0.plans_changed)),
            interval: Some(ROUND_INTERVAL),
            min_gap: ROUND_INTERVAL,
        }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<DrainFacts, BoxError> {
        let mut facts = self.snapshot(node);
        let now = controllers::Now { at: Instant::now(), wall_ms: now_ms() };
        for (region, stored) in &facts.topology.drains {
            let Judgement { services, keep: Ok(_) } = facts.judge(region, &stored.drain, self.0.now(now))
            else {
                continue;
            };
            // Programs that followed once are not asked each second for as long as the drain lasts.
            let was_done = facts.states.get(region).is_some_and(|state| state.is_done_of(&stored.drain));
            let behind = match was_done {
                true => None,
                false => facts.program_behind(&services, node).await,
            };
            facts.behind.insert(region.clone(), behind);
        }
        Ok(facts)
    }

    fn reconcile(&mut self, facts: DrainFacts, now: controllers::Now) -> Decision<PublishStates> {
        let now = self.0.now(now);
        let (mut decision, mut states, mut has_stepped) = (Decision::default(), BTreeMap::new(), false);
        for (region, stored) in &facts.topology.drains {
            let decided = match has_stepped {
                true => {
                    DrainDecision::wait(&stored.drain, DrainWait::new("waits for the step of another drain"))
                }
                false => facts.decide(region, stored, now),
            };
            has_stepped |= decided.is_step;
            decision.writes.extend(decided.write);
            if decided.state.is_held {
                let reason = decided.state.text.clone();
                decision.refused.push(Refusal { subject: format!("drain of region {region}"), reason });
            }
            states.insert(region.clone(), decided.state);
        }
        if *facts.states != states {
            decision.effects.push(PublishStates(states));
        }
        decision
    }

    async fn apply(&mut self, PublishStates(states): PublishStates) -> Result<(), BoxError> {
        self.0.drain_states.publish(states);
        Ok(())
    }
}

impl DrainController {
    /// The facts at present, without acknowledgements.
    fn snapshot(&self, node: &Node) -> DrainFacts {
        let planning = &self.0;
        match planning.facts.topology().drains.is_empty() {
            true => planning.facts.forget_lone_shards(),
            false => planning.facts.update_lone_shards(planning.facts.planned().iter(), node),
        }
        // Before the facts: plans of a topology that is gone are recognised.
        let plans = planning.plans.read();
        let facts = planning.facts.lock();
        let planned = facts.planned();
        let services = planned.iter().filter_map(|service| Some((service.clone(), facts.service(service)?)));
        DrainFacts {
            topology: facts.topology(),
            services: services.collect(),
            plans,
            behind: BTreeMap::new(),
            states: planning.drain_states.read(),
        }
    }
}

impl DrainFacts {
    /// Whether there is a plan of each service for the present topology.
    fn are_planned(&self) -> bool {
        self.plans.topology == self.topology.version
            && self.services.iter().all(|(service, facts)| {
                let planner = self.plans.by_service.get(service);
                // Tables of other classes are read wrongly by these.
                planner.is_some_and(|planner| planner.classes == facts.traffic.classes)
            })
    }

    /// What the plans of all services say of the next step.
    fn judge(&self, region: &Region, drain: &RegionDrain, now: Now) -> Judgement {
        let step = |(name, facts): (&ServiceName, &Arc<ServiceFacts>)| {
            let planner = self.plans.by_service.get(name)?;
            Some((name.clone(), planner.drain_step(facts, &self.topology, (region, drain), now)?))
        };
        let steps: Vec<(ServiceName, DrainStep)> = self.services.iter().filter_map(step).collect();
        let keep = match next_keep(drain, &steps) {
            _ if !self.are_planned() => Err(DrainWait::new("waits for the next round of the planner")),
            Ok(_) if steps.is_empty() && !self.services.is_empty() && now.is_starting() => {
                // Of a region with callers alone the planners know by reports, which a control plane that has just started waits for.
                Err(DrainWait::new("waits for reports, since the control plane has started"))
            }
            keep => keep,
        };
        Judgement { services: steps.into_iter().map(|(service, _)| service).collect(), keep }
    }

    /// The name of a program that does not follow the tables of services yet; `None` if all do.
    async fn program_behind(&self, services: &[ServiceName], node: &Node) -> Option<String> {
        for (service, facts) in services.iter().filter_map(|name| Some((name, self.services.get(name)?))) {
            let revision = facts.tables.values().map(|stored| stored.revision).max().unwrap_or_default();
            let status = node.wait_acked(&Prefix::tables(service), revision, Instant::now()).await;
            if !status.all {
                // Without the number of a revision, which says nothing to operators of a drain.
                let behind = status.behind.first();
                return Some(behind.map_or_else(|| "a program".to_owned(), |watcher| watcher.name.clone()));
            }
        }
        None
    }

    fn decide(&self, region: &Region, stored: &StoredDrain, now: Now) -> DrainDecision {
        let Judgement { services, keep } = self.judge(region, &stored.drain, now);
        let mut decision = match (keep, self.behind.get(region)) {
            (Err(wait), _) => DrainDecision::wait(&stored.drain, wait),
            (Ok(keep), Some(None)) => DrainDecision::step(region, stored, keep),
            (Ok(_), behind) => {
                // Without an answer, the step has become due after the acknowledgements were read.
                let behind = behind.and_then(Option::as_deref).unwrap_or("programs");
                let wait = DrainWait::new(format!("waits for {behind} to apply the tables"));
                DrainDecision::wait(&stored.drain, wait)
            }
        };
        if self.are_planned() {
            decision.state.services = Some(u32::try_from(services.len()).unwrap_or(u32::MAX));
        }
        decision.state.staying = self.staying(region);
        decision
    }

    /// Why calls of services stay in a region.
    fn staying(&self, region: &Region) -> Vec<String> {
        let lone = self.services.iter();
        let lone =
            lone.filter_map(|(name, facts)| Some(format!("{name}: {}", facts.lone_shards.text(region)?)));
        lone.take(MAX_STAYING).collect()
    }
}

impl DrainDecision {
    fn wait(drain: &RegionDrain, wait: DrainWait) -> Self {
        Self { state: DrainState::of(drain, wait), write: None, is_step: false }
    }

    /// Makes a step that all services and programs permit, or ends a drain that has arrived.
    fn step(region: &Region, stored: &StoredDrain, keep: Share) -> Self {
        let drain = &stored.drain;
        let key = RecordKey::RegionDrain(region.clone()).to_string();
        let (text, op) = match (drain.is_done(), drain.returns) {
            (true, false) => (DONE, None),
            (true, true) => (DONE, Some(Op::delete(key))),
            (false, _) => {
                let next = Record::RegionDrain(RegionDrain { keep, ..*drain });
                ("makes a step", Some(Op::put(key, record_encoding::encode(&next))))
            }
        };
        let write = op.map(|op| Write {
            subject: format!("drain of region {region}"),
            reason: "services and programs have made the step before",
            ops: vec![op.expecting(Expect::Revision(stored.revision))],
        });
        Self { state: DrainState::of(drain, DrainWait::new(text)), is_step: !drain.is_done(), write }
    }
}
