//! Places services on the backends of the gateway.

mod growth;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
use fairmesh_model::{
    GatewayBackend, GatewayService, Label, Placement, Prefix, Record, RecordKey, RecordKind, ServiceName,
    Tenant,
};
use fairmesh_placement::{Backend, PlacedService, PlanInput, plan};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use self::growth::{Growth, GrowthRounds};
use crate::loads::GatewayLoads;

/// Minimum time between rounds: declarations that are applied together are placed together.
const MIN_GAP: Duration = Duration::from_secs(1);
/// Maximum number of records in one batch.
const MAX_OPS_PER_BATCH: usize = 1_000;
/// Seed of random draws. Any value works, but it must be the same for all control planes, so that equal
/// records give equal plans.
const SEED: u64 = 0;

/// Writes the placements of services that use the gateway.
///
/// Placements are decided by a pure function from records alone. A backend whose replicas are down stays
/// declared, so nothing moves when a backend fails, and a service that crashes its backends is not moved on
/// to further ones. A round that cannot read a record moves nothing.
///
/// Only one decision depends on load: a service whose calls have grown gets one additional backend at a time
/// while one of its backends is overloaded, and gives it back later.
#[derive(Clone, Debug)]
pub struct PlacementController {
    growth: GrowthRounds,
    /// The writes of the current round that were decided by load, by subject.
    by_load: BTreeMap<String, ServiceName>,
    /// The last round that left nothing to change.
    settled: Option<Settled>,
}

#[derive(Clone, Debug)]
struct Settled {
    revision: u64,
    is_shared: bool,
    refused: Vec<Refusal>,
}

/// The input of a round's decision.
#[derive(Debug, Default)]
pub struct PlacementFacts {
    revision: u64,
    /// Whether several tenants have records of any kind.
    is_shared: bool,
    backends: BTreeMap<Label, GatewayBackend>,
    /// Maximum number of backends for all services of a tenant together, for tenants with a quota record.
    quotas: BTreeMap<Tenant, usize>,
    wanted: BTreeMap<ServiceName, GatewayService>,
    /// Placements in force, each with the revision that wrote it.
    placed: BTreeMap<ServiceName, (Placement, u64)>,
    /// The changes that the loads of backends call for.
    growth: Growth,
}

impl PlacementController {
    /// Creates a controller that considers these loads.
    pub fn new(loads: GatewayLoads) -> Self {
        Self { growth: GrowthRounds::new(loads), by_load: BTreeMap::new(), settled: None }
    }
}

impl Controller for PlacementController {
    const NAME: &'static str = "placement";
    /// `None` if no record of the gateway has changed since everything was placed, and the number of tenants
    /// does not change the limits.
    type Facts = Option<PlacementFacts>;
    type Effect = Infallible;

    fn triggers(&self) -> Triggers {
        // There is no prefix for one record kind of all tenants.
        let tenants = Prefix::new("/t/").into_iter();
        let prefixes = tenants.chain([Prefix::gateway_backends(), Prefix::gateway_quotas()]).collect();
        Triggers { prefixes, interval: Some(growth::INTERVAL), min_gap: MIN_GAP, ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<Self::Facts, BoxError> {
        let unchanged = |settled: &Settled| {
            let changed = node.changes_since(settled.revision, concerns);
            settled.is_shared == is_shared(node) && changed.is_some_and(|(_, changed)| changed.is_empty())
        };
        let is_due = self.growth.look(Instant::now());
        if self.settled.as_ref().is_some_and(unchanged) && !is_due {
            return Ok(None);
        }
        PlacementFacts::read(node).map(Some)
    }

    fn reconcile(&mut self, facts: Self::Facts, now: Now) -> Decision<Infallible> {
        let Some(mut facts) = facts else {
            let refused = self.settled.as_ref().map(|settled| settled.refused.clone()).unwrap_or_default();
            return Decision { refused, ..Decision::default() };
        };
        let placed = facts.placed.iter().map(|(name, (placed, _))| (name, placed));
        facts.growth = self.growth.round(placed, &facts.backends, now.at);
        let (ops, refused) = facts.decide();
        // Each write starts another round, which finds out whether anything is left to do.
        let PlacementFacts { revision, is_shared, growth, .. } = facts;
        // A refused addition must be reconsidered until the growth ends.
        let is_settled = ops.is_empty() && !growth.has_growing();
        self.settled = is_settled.then(|| Settled { revision, is_shared, refused: refused.clone() });
        let (by_load, ops): (Vec<Op>, Vec<Op>) =
            ops.into_iter().partition(|op| service_of(op).is_some_and(|service| growth.is_of(&service)));
        self.by_load = by_load.iter().filter_map(|op| Some((subject_of(op)?, service_of(op)?))).collect();
        let by_load = by_load.into_iter().filter_map(|op| {
            let reason = "its calls have grown, or are fewer again";
            Some(Write { subject: subject_of(&op)?, reason, ops: vec![op] })
        });
        let writes = ops.chunks(MAX_OPS_PER_BATCH).map(|ops| Write {
            subject: format!("placements of {} services", ops.len()),
            reason: "services or backends of the gateway have changed",
            ops: ops.to_vec(),
        });
        Decision { writes: by_load.chain(writes).collect(), refused, ..Decision::default() }
    }

    async fn apply(&mut self, effect: Infallible) -> Result<(), BoxError> {
        match effect {}
    }

    fn written(&mut self, subject: &str) {
        if let Some(service) = self.by_load.remove(subject) {
            self.growth.changed(service, Instant::now());
        }
    }
}

/// The service of a write.
fn service_of(op: &Op) -> Option<ServiceName> {
    RecordKey::parse(&op.key).ok()?.service().cloned()
}

fn subject_of(op: &Op) -> Option<String> {
    service_of(op).map(|service| format!("placement of {service}"))
}

fn concerns(key: &str) -> bool {
    use RecordKind::{GatewayBackend, GatewayQuota, GatewayService, Placement};
    matches!(RecordKind::of(key), Some(GatewayBackend | GatewayQuota | GatewayService | Placement))
}

/// Whether the mesh has several tenants. A tenant counts from its first record on, so that there is room for
/// it before it uses the gateway.
fn is_shared(node: &Node) -> bool {
    node.tenant_prefixes(RecordKind::Service).len() > 1
}

impl PlacementFacts {
    /// Reads all records of the gateway.
    ///
    /// # Errors
    /// A record cannot be decoded. It may be from a newer release, and a plan that ignores it would move the
    /// services that it concerns.
    fn read(node: &Node) -> Result<Self, BoxError> {
        let mut prefixes = node.tenant_prefixes(RecordKind::GatewayService);
        prefixes.extend(node.tenant_prefixes(RecordKind::Placement));
        prefixes.extend([Prefix::gateway_backends(), Prefix::gateway_quotas()]);
        let (revision, entries) = node.read(&prefixes);
        let mut facts = Self { revision: revision.number, is_shared: is_shared(node), ..Self::default() };
        for (key, entry) in entries {
            let key = RecordKey::parse(&key)?;
            let record =
                record_encoding::decode(&key, &entry.value).map_err(|error| error.within(key.to_string()))?;
            match (key, record) {
                (RecordKey::GatewayBackend(name), Record::GatewayBackend(backend)) => {
                    facts.backends.insert(name, backend);
                }
                (RecordKey::GatewayQuota(tenant), Record::GatewayQuota(quota)) => {
                    facts.quotas.extend(quota.backends.map(|backends| (tenant, backends as usize)));
                }
                (RecordKey::GatewayService(name), Record::GatewayService(wanted)) => {
                    facts.wanted.insert(name, wanted);
                }
                (RecordKey::Placement(name), Record::Placement(placement)) => {
                    facts.placed.insert(name, (placement, entry.revision));
                }
                _ => {}
            }
        }
        Ok(facts)
    }

    /// The records to write, and the refused changes.
    fn decide(&self) -> (Vec<Op>, Vec<Refusal>) {
        let of_record = |one| of_record(one, &self.growth);
        let backends: Vec<Backend> = self.backends.iter().map(of_record).collect();
        let services: Vec<PlacedService> =
            self.wanted.iter().map(|(name, one)| self.wish(name, one)).collect();
        let made = plan(PlanInput {
            backends: &backends,
            services: &services,
            is_shared: self.is_shared,
            quotas: &self.quotas,
            seed: SEED,
        });
        let gone = self.placed.iter().filter(|(name, _)| !self.wanted.contains_key(*name));
        let deletes = gone.map(|(name, (_, revision))| {
            Op::delete(RecordKey::Placement(name.clone()).to_string()).expecting(Expect::Revision(*revision))
        });
        let puts = services.iter().filter_map(|service| {
            let names = made.changes.get(&service.name).unwrap_or(&service.present);
            self.put(&service.name, names)
        });
        let refused = made.refused.iter().map(|(name, missing)| Refusal {
            subject: format!("placement of {name}"),
            reason: missing.to_string(),
        });
        (deletes.chain(puts).collect(), refused.collect())
    }

    fn wish(&self, name: &ServiceName, wanted: &GatewayService) -> PlacedService {
        let placed = self.placed.get(name);
        let added = placed.map_or(0, |(placed, _)| self.growth.added(name, placed, wanted.backends)) as usize;
        PlacedService {
            name: name.clone(),
            home: wanted.home_zone.clone(),
            count: wanted.backends as usize + added,
            added,
            present: placed.into_iter().flat_map(|(placed, _)| placed.backends().cloned()).collect(),
        }
    }

    /// The write of a placement, if it differs from the one in force. If none of a service's backends exists
    /// any more, its record stays, since there is nothing to replace it.
    fn put(&self, name: &ServiceName, names: &BTreeSet<Label>) -> Option<Op> {
        let mut zones: BTreeMap<_, BTreeSet<Label>> = BTreeMap::new();
        for backend in names {
            let zone = self.backends.get(backend)?.zone.clone();
            zones.entry(zone).or_default().insert(backend.clone());
        }
        let wanted = self.wanted.get(name)?;
        let in_force = self.placed.get(name);
        let added = in_force.map_or(0, |(placed, _)| self.growth.added(name, placed, wanted.backends));
        // An addition that was refused does not count.
        let beyond = u32::try_from(names.len()).unwrap_or(u32::MAX).saturating_sub(wanted.backends);
        let placement = Placement { home_zone: wanted.home_zone.clone(), zones, added: added.min(beyond) };
        if names.is_empty() || in_force.is_some_and(|(placed, _)| *placed == placement) {
            return None;
        }
        let expected = in_force.map_or(Expect::Absent, |(_, revision)| Expect::Revision(*revision));
        let key = RecordKey::Placement(name.clone()).to_string();
        Some(Op::put(key, record_encoding::encode(&placement.into())).expecting(expected))
    }
}

fn of_record((name, backend): (&Label, &GatewayBackend), growth: &Growth) -> Backend {
    Backend {
        name: name.clone(),
        zone: backend.zone.clone(),
        capacity: backend.capacity,
        is_open: !backend.is_closed,
        used_permille: growth.used_permille(name),
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{StoreId, Zone};
    use fairmesh_rib::{Commit, Entry};

    use super::*;

    fn backend(zone: &str) -> GatewayBackend {
        GatewayBackend {
            zone: Zone::new(zone).unwrap(),
            capacity: 10,
            replicas: ["10.0.0.1:7440".parse().unwrap()].into(),
            is_closed: false,
        }
    }

    fn service(name: &str) -> ServiceName {
        ServiceName::new(name).unwrap()
    }

    /// Three backends in zone a and one in zone b, and two services at home in a.
    fn facts() -> PlacementFacts {
        let zones = [("one", "a"), ("two", "a"), ("three", "a"), ("four", "b")];
        let backends = zones.map(|(name, zone)| (Label::new(name).unwrap(), backend(zone)));
        let wanted = GatewayService { home_zone: Zone::new("a").unwrap(), backends: 3 };
        let wanted = ["red/web", "blue/web"].map(|name| (service(name), wanted.clone()));
        let (backends, wanted) = (backends.into(), wanted.into());
        PlacementFacts { backends, wanted, is_shared: true, ..PlacementFacts::default() }
    }

    impl PlacementFacts {
        /// Applies operations to the facts, and returns their keys.
        fn commit(&mut self, ops: &[Op]) -> Vec<String> {
            self.revision += 1;
            for op in ops {
                let key = RecordKey::parse(&op.key).unwrap();
                let name = key.service().unwrap().clone();
                match &op.value {
                    None => drop(self.placed.remove(&name)),
                    Some(value) => match record_encoding::decode(&key, value).unwrap() {
                        Record::Placement(placed) => drop(self.placed.insert(name, (placed, self.revision))),
                        other => panic!("{other:?}"),
                    },
                }
            }
            ops.iter().map(|op| op.key.to_string()).collect()
        }
    }

    #[test]
    fn gateway_service_is_placed_once_and_placement_deleted_with_service() {
        let mut facts = facts();
        let (ops, refused) = facts.decide();
        assert!(refused.is_empty() && ops.iter().all(|op| op.expect == Expect::Absent));
        assert_eq!(facts.commit(&ops), ["/t/blue/placements/web", "/t/red/placements/web"]);
        let sets: BTreeSet<Vec<_>> =
            facts.placed.values().map(|(placed, _)| placed.backends().cloned().collect()).collect();
        assert_eq!(sets.len(), 2, "each has a combination of its own");
        assert!(facts.decide().0.is_empty());
        facts.wanted.remove(&service("red/web"));
        let (ops, _) = facts.decide();
        assert_eq!(ops[0].expect, Expect::Revision(1));
        assert_eq!(facts.commit(&ops), ["/t/red/placements/web"]);
        assert!(facts.decide().0.is_empty() && facts.placed.len() == 1);
    }

    #[test]
    fn tenant_without_quota_gets_at_most_half_of_gateway_places() {
        let mut facts = facts();
        facts.backends.values_mut().for_each(|backend| backend.capacity = 2);
        facts.backends.insert(Label::new("four").unwrap(), GatewayBackend { capacity: 3, ..backend("b") });
        let of_red = facts.wanted[&service("red/web")].clone();
        facts.wanted.insert(service("red/api"), of_red);
        let (ops, refused) = facts.decide();
        assert_eq!(facts.commit(&ops), ["/t/blue/placements/web", "/t/red/placements/api"]);
        assert_eq!(refused.len(), 1);
        assert!(refused[0].reason.contains("tenant red have 4 backends"), "{refused:?}");
        facts.quotas.insert(Tenant::new("red").unwrap(), 6);
        assert!(facts.decide().1.is_empty(), "the tenant has a quota of its own");
        facts.quotas.clear();
        facts.is_shared = false;
        let (ops, refused) = facts.decide();
        assert!(ops.len() == 1 && refused.is_empty(), "without other tenants it gets the rest: {refused:?}");
    }

    #[test]
    fn placements_stay_when_gateway_backends_are_deleted_or_closed() {
        let mut facts = facts();
        let (ops, _) = facts.decide();
        facts.commit(&ops);
        // All backends are deleted: the records stay, and the refusals say what is missing.
        let backends = std::mem::take(&mut facts.backends);
        let (ops, refused) = facts.decide();
        assert!(ops.is_empty() && refused.len() == 2, "{ops:?} {refused:?}");
        assert_eq!(refused[0].subject, "placement of blue/web");
        assert!(refused[0].reason.contains("add a backend there"), "{refused:?}");
        facts.backends = backends;
        assert!(facts.decide().0.is_empty());
        // Closing backends moves nothing.
        facts.backends.values_mut().for_each(|backend| backend.is_closed = true);
        assert!(facts.decide().0.is_empty());
    }

    fn node(entries: &[(RecordKey, Record)]) -> Node {
        let entry = |(key, record): &(RecordKey, Record)| {
            (key.to_string().into(), Entry { value: record_encoding::encode(record), revision: 1 })
        };
        Node::load(StoreId(7), 1, entries.iter().map(entry))
    }

    #[tokio::test]
    async fn placement_round_without_changed_records_decides_nothing() {
        let PlacementFacts { backends, wanted, .. } = facts();
        let backends = backends.into_iter().map(|(name, one)| (RecordKey::GatewayBackend(name), one.into()));
        let wanted = wanted.into_iter().map(|(name, one)| (RecordKey::GatewayService(name), one.into()));
        let node = node(&backends.chain(wanted).collect::<Vec<_>>());
        let mut controller = PlacementController::new(GatewayLoads::new(node.clone()));
        let now = Now { at: tokio::time::Instant::now(), wall_ms: 0 };
        let facts = controller.read_facts(&node, Wake::Changed).await.unwrap();
        let decided = controller.reconcile(facts, now);
        assert_eq!(decided.writes[0].ops.len(), 2);
        let entries = decided.writes[0].ops.iter().map(|op| (op.key.clone(), op.value.clone())).collect();
        assert!(node.apply(Commit { revision: 2, changes: entries }));
        let facts = controller.read_facts(&node, Wake::Changed).await.unwrap();
        assert!(facts.is_some() && controller.reconcile(facts, now).writes.is_empty());
        assert!(controller.read_facts(&node, Wake::Changed).await.unwrap().is_none());
        // A record from a newer release: the round decides nothing.
        let broken = [("/g/gateway/backends/one".into(), Some(b"\xff".as_slice().into()))];
        assert!(node.apply(Commit { revision: 3, changes: broken.into() }));
        assert!(controller.read_facts(&node, Wake::Changed).await.is_err());
    }
}
