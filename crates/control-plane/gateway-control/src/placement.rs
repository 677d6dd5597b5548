//! Places services on the backends of the gateway.

mod growth;
mod launches;
mod sandbox;
mod scatter;
mod throttle;

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    time::Duration,
};

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Refusal, Triggers, Wake, Write};
use fairmesh_model::{
    ConnectionLimit, GatewayBackend, GatewayService, Label, Placement, PlacementPin, Prefix, Record,
    RecordKey, RecordKind, ServiceName, Tenant, Throttle, Zone,
};
use fairmesh_placement::{Backend, Missing, PlacedService, Plan, PlanInput, plan};
use fairmesh_rib::{Expect, Node, Op};
use fairmesh_wire::record_encoding;
use tokio::time::Instant;

use self::{
    growth::{Growth, GrowthRounds},
    launches::{LaunchFacts, LaunchRounds},
    sandbox::SandboxRounds,
    scatter::ScatterRounds,
    throttle::{LimitChanges, ThrottleRounds},
};
use crate::{launcher::GatewayLauncher, loads::GatewayLoads};

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
/// Four decisions go by load. A service whose calls have grown gets one more backend at a time while a backend of it is overloaded, and
/// gives it back later; where no backend has room, a launcher starts one. New connections of a service are limited while they overload
/// a backend, if its record agrees. A service whose calls harm backends is moved to the sandbox. Services that peak together are taken apart.
///
/// Backends that an operator chose, limits that an operator set, and the sandbox stay until an operator ends that, also where the record of
/// the service is deleted: its tenant may do that, and only administrators write placements.
#[derive(Clone, Debug)]
pub struct PlacementController {
    growth: GrowthRounds,
    throttle: ThrottleRounds,
    sandbox: SandboxRounds,
    launches: LaunchRounds,
    scatter: ScatterRounds,
    /// Writes of the round whose placements go by load, by subject.
    by_load: BTreeMap<String, ByLoad>,
    /// The last round that placed everything.
    settled: Option<Settled>,
}

#[derive(Clone, Debug)]
struct Settled {
    revision: u64,
    is_shared: bool,
    refused: Vec<Refusal>,
}

/// A write that goes by load.
#[derive(Clone, Debug)]
struct ByLoad {
    service: ServiceName,
    reason: &'static str,
    /// Whether its number of backends changes.
    grows: bool,
    /// Whether its limit of connections changes.
    limits: bool,
}

/// What a round decides from.
#[derive(Debug, Default)]
pub struct PlacementFacts {
    revision: u64,
    /// Whether several tenants have records of any kind.
    is_shared: bool,
    backends: BTreeMap<Label, GatewayBackend>,
    /// The revisions of backends without replicas, which a launcher starts.
    launching: BTreeMap<Label, u64>,
    /// Maximum number of backends for all services of a tenant together, for tenants with a quota record.
    quotas: BTreeMap<Tenant, usize>,
    wanted: BTreeMap<ServiceName, GatewayService>,
    /// Services without a record that stay, since an operator placed or limited them, or they are in the sandbox.
    kept: BTreeSet<ServiceName>,
    /// Placements in force, each with the revision that wrote it.
    placed: BTreeMap<ServiceName, (Placement, u64)>,
    /// The changes that the loads of backends call for.
    growth: Growth,
    limits: LimitChanges,
    /// The services to move to the sandbox.
    sandboxed: BTreeMap<ServiceName, PlacementPin>,
    /// The service that leaves the services with which it peaks, and its backends from now on.
    scattered: Option<(ServiceName, BTreeSet<Label>)>,
}

impl PlacementController {
    /// Creates a controller that considers these loads, and has `launcher` start backends.
    pub fn new(loads: GatewayLoads, launcher: Option<GatewayLauncher>) -> Self {
        let (throttle, sandbox, by_load, settled) = Default::default();
        let (scatter, launches) = (ScatterRounds::new(loads.clone()), LaunchRounds::new(launcher));
        Self { growth: GrowthRounds::new(loads), throttle, sandbox, launches, scatter, by_load, settled }
    }

    /// The writes of a round, each placement that goes by load apart.
    fn writes(&mut self, ops: Vec<Op>, facts: &PlacementFacts) -> Vec<Write> {
        let (mut by_load, mut others) = (Vec::new(), Vec::new());
        self.by_load.clear();
        for op in ops {
            let decided = service_of(&op).and_then(|service| facts.by_load(service));
            let (Some(decided), Some(subject)) = (decided, subject_of(&op)) else {
                others.push(op);
                continue;
            };
            by_load.push(Write { subject: subject.clone(), reason: decided.reason, ops: vec![op] });
            self.by_load.insert(subject, decided);
        }
        let writes = others.chunks(MAX_OPS_PER_BATCH).map(|ops| Write {
            subject: format!("placements of {} services", ops.len()),
            reason: "services or backends of the gateway have changed",
            ops: ops.to_vec(),
        });
        by_load.into_iter().chain(writes).collect()
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
        let notify = Some(self.launches.ended.clone());
        Triggers { prefixes, notify, interval: Some(growth::INTERVAL), min_gap: MIN_GAP }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<Self::Facts, BoxError> {
        let unchanged = |settled: &Settled| {
            let changed = node.changes_since(settled.revision, concerns);
            settled.is_shared == is_shared(node) && changed.is_some_and(|(_, changed)| changed.is_empty())
        };
        let now = Instant::now();
        let grows = self.growth.look(now);
        let is_attacked = self.sandbox.look(self.growth.levels(), now);
        let peaks = self.scatter.look(self.growth.levels(), now);
        let is_due = self.throttle.look(self.growth.levels(), now) || grows || is_attacked || peaks;
        if self.settled.as_ref().is_some_and(unchanged) && !is_due {
            return Ok(None);
        }
        let facts = PlacementFacts::read(node)?;
        self.growth.limit(facts.placed.iter().map(|(name, (placed, _))| (name, placed)));
        Ok(Some(facts))
    }

    fn reconcile(&mut self, facts: Self::Facts, now: Now) -> Decision<Infallible> {
        let Some(mut facts) = facts else {
            let refused = self.settled.as_ref().map(|settled| settled.refused.clone()).unwrap_or_default();
            return Decision { refused, ..Decision::default() };
        };
        facts.keep_decided();
        facts.growth = self.growth.round(facts.used(), &facts.backends, now.at);
        facts.limits = self.throttle.round(facts.used(), self.growth.levels(), now);
        facts.sandboxed = self.sandbox.round(facts.used(), &facts.backends, self.growth.levels(), now);
        facts.scattered = self.scatter.round(&facts.fleet(), &facts.services(), now.at);
        let made = facts.plan();
        let (ops, mut refused) = (facts.ops(&made), facts.refusals(&made));
        let (launch, of_launches) = self.launches.round(&LaunchFacts {
            backends: &facts.backends,
            launching: &facts.launching,
            lacking: &facts.lacking(&made),
            reporting: &self.growth.levels().reporting,
            now: now.at,
        });
        refused.extend(of_launches);
        // A write starts another round, which finds whether more is to be done. A refusal of an addition ends with the growth.
        let is_settled = ops.is_empty() && !facts.growth.has_growing() && !self.launches.is_pending();
        let PlacementFacts { revision, is_shared, .. } = facts;
        self.settled = is_settled.then(|| Settled { revision, is_shared, refused: refused.clone() });
        let writes = self.writes(ops, &facts).into_iter().chain(launch).collect();
        Decision { writes, refused, ..Decision::default() }
    }

    async fn apply(&mut self, effect: Infallible) -> Result<(), BoxError> {
        match effect {}
    }

    fn written(&mut self, subject: &str) {
        self.launches.written(subject);
        let Some(ByLoad { service, reason, grows, limits }) = self.by_load.remove(subject) else { return };
        tracing::info!(%service, reason, "the placement of a service has changed");
        if limits {
            self.throttle.changed(&service);
        }
        if grows {
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
                    if backend.replicas.is_empty() {
                        facts.launching.insert(name.clone(), entry.revision);
                    }
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

    /// Keeps the services without a record that an operator placed or limited, or that are in the sandbox, as they are.
    fn keep_decided(&mut self) {
        for (name, (placed, _)) in &self.placed {
            let is_limited = placed.connection_limit.as_ref().is_some_and(|limit| !limit.is_automatic);
            if self.wanted.contains_key(name) || !(is_limited || placed.pinned.is_some()) {
                continue;
            }
            let backends = u32::try_from(placed.backends().count()).unwrap_or(u32::MAX);
            let backends = backends.saturating_sub(placed.added);
            let wanted = GatewayService {
                home_zone: placed.home_zone.clone(),
                backends: backends.clamp(GatewayService::MIN_BACKENDS, GatewayService::MAX_BACKENDS),
                grows: false,
                throttle: Throttle::Never,
            };
            self.wanted.insert(name.clone(), wanted);
            self.kept.insert(name.clone());
        }
    }

    /// Placements in force of services that use the gateway, and what they ask for.
    fn used(&self) -> impl Iterator<Item = (&Placement, &ServiceName, &GatewayService)> + Clone {
        self.placed.iter().filter_map(|(name, (placed, _))| Some((placed, name, self.wanted.get(name)?)))
    }

    /// What load changes of a service.
    fn by_load(&self, service: ServiceName) -> Option<ByLoad> {
        let (grows, limit) = (self.growth.is_of(&service), self.limits.get(&service));
        let is_sandboxed = self.sandboxed.contains_key(&service);
        let is_scattered = self.scattered.as_ref().is_some_and(|(scattered, _)| *scattered == service);
        let reason = match limit {
            _ if is_scattered => "it has the most calls when those on the same backend have",
            _ if is_sandboxed => "its calls harm backends, so that it is moved to the sandbox",
            Some(Some(limit))
                if self.placed.get(&service).is_some_and(|(placed, _)| is_lower(limit, placed)) =>
            {
                "its connections have grown, and its requests have not"
            }
            Some(_) => "the limit of its connections is lifted in steps",
            None => "its calls have grown, or are fewer again",
        };
        (is_sandboxed || is_scattered || grows || limit.is_some()).then_some(ByLoad {
            service,
            reason,
            grows,
            limits: limit.is_some(),
        })
    }

    /// The backends, as plans see them.
    fn fleet(&self) -> Vec<Backend> {
        let of_record = |(name, backend)| Backend {
            used_permille: self.growth.used_permille(name),
            ..Backend::declared(name, backend)
        };
        self.backends.iter().map(of_record).collect()
    }

    /// The services, as plans see them.
    fn services(&self) -> Vec<PlacedService> {
        self.wanted.iter().map(|(name, one)| self.wish(name, one)).collect()
    }

    fn plan(&self) -> Plan {
        plan(PlanInput {
            backends: &self.fleet(),
            services: &self.services(),
            is_shared: self.is_shared,
            quotas: &self.quotas,
            seed: SEED,
        })
    }

    /// The records to write.
    fn ops(&self, made: &Plan) -> Vec<Op> {
        let gone = self.placed.iter().filter(|(name, _)| !self.wanted.contains_key(*name));
        let deletes = gone.map(|(name, (_, revision))| {
            Op::delete(RecordKey::Placement(name.clone()).to_string()).expecting(Expect::Revision(*revision))
        });
        let puts = self.wanted.keys().filter_map(|name| match made.changes.get(name) {
            Some(names) => self.put(name, names),
            None => self.put(name, &self.present(name)),
        });
        deletes.chain(puts).collect()
    }

    /// What a plan refuses, and the services without a record that stay, with the reasons.
    fn refusals(&self, made: &Plan) -> Vec<Refusal> {
        let refused = made.refused.iter().map(|(name, missing)| (name, missing.to_string()));
        let kept = self.kept.iter().map(|name| {
            let reason = format!(
                "its record is deleted, and an operator placed or limited it, or it is in the sandbox; end that with `fairmesh gateway move {name} --unpin` or `fairmesh gateway throttle {name} --off`"
            );
            (name, reason)
        });
        let of_service = |(name, reason): (&ServiceName, String)| Refusal {
            subject: format!("placement of {name}"),
            reason,
        };
        refused.chain(kept).map(of_service).collect()
    }

    /// Home zones in which no backend has room for a service that grows, each with such a service.
    fn lacking(&self, made: &Plan) -> BTreeMap<&Zone, &ServiceName> {
        let is_lacking = |name: &ServiceName| {
            matches!(made.refused.get(name), Some(Missing::Relief(_))) && self.growth.is_of(name)
        };
        let lacking = self.wanted.iter().filter(|(name, _)| is_lacking(name));
        // The first service of each zone is named.
        lacking.rev().map(|(name, wanted)| (&wanted.home_zone, name)).collect()
    }

    /// The backends in force of a service, or its new backends if it is moved.
    fn present(&self, name: &ServiceName) -> BTreeSet<Label> {
        if let Some((_, backends)) = self.scattered.as_ref().filter(|(scattered, _)| scattered == name) {
            return backends.clone();
        }
        self.placed.get(name).into_iter().flat_map(|(placed, _)| placed.backends().cloned()).collect()
    }

    fn wish(&self, name: &ServiceName, wanted: &GatewayService) -> PlacedService {
        let placed = self.placed.get(name);
        let added = placed.map_or(0, |(placed, _)| self.growth.added(name, placed, wanted.backends)) as usize;
        let pin = placed.and_then(|(placed, _)| placed.pinned.as_ref());
        PlacedService {
            name: name.clone(),
            home: wanted.home_zone.clone(),
            count: wanted.backends as usize + added,
            added,
            present: self.present(name),
            is_pinned: pin.is_some_and(|pin| !pin.is_sandbox),
            is_sandboxed: pin.is_some_and(|pin| pin.is_sandbox) || self.sandboxed.contains_key(name),
            given_back: placed.map_or(0, |(placed, _)| placed.added as usize).saturating_sub(added),
        }
    }

    /// Why the controller keeps the backends of a service: it is in the sandbox, or an operator chose them, and some of them are left.
    fn pin(&self, name: &ServiceName, names: &BTreeSet<Label>) -> Option<PlacementPin> {
        let is_in_sandbox = |name: &Label| self.backends.get(name).is_some_and(|one| one.is_sandbox);
        if let Some(pin) = self.sandboxed.get(name).filter(|_| names.iter().all(is_in_sandbox)) {
            return Some(pin.clone());
        }
        let (placed, _) = self.placed.get(name)?;
        let stays =
            |pin: &PlacementPin| pin.is_sandbox || placed.backends().any(|backend| names.contains(backend));
        placed.pinned.clone().filter(stays)
    }

    /// The write of a placement, if another one is in force. A service none of whose backends exists any more keeps its record, since
    /// there is nothing to put in its place.
    fn put(&self, name: &ServiceName, names: &BTreeSet<Label>) -> Option<Op> {
        let mut zones: BTreeMap<_, BTreeSet<Label>> = BTreeMap::new();
        for backend in names {
            let zone = self.backends.get(backend)?.zone.clone();
            zones.entry(zone).or_default().insert(backend.clone());
        }
        let wanted = self.wanted.get(name)?;
        let in_force = self.placed.get(name);
        let added = in_force.map_or(0, |(placed, _)| self.growth.added(name, placed, wanted.backends));
        // An addition that was refused does not count, and one that could not be given back still does.
        let beyond = u32::try_from(names.len()).unwrap_or(u32::MAX).saturating_sub(wanted.backends);
        let before = in_force.map_or(0, |(placed, _)| placed.added);
        let in_force_limit = in_force.and_then(|(placed, _)| placed.connection_limit.clone());
        let placement = Placement {
            home_zone: wanted.home_zone.clone(),
            zones,
            added: added.max(before).min(beyond),
            pinned: self.pin(name, names),
            connection_limit: self.limits.get(name).cloned().unwrap_or(in_force_limit),
        };
        if names.is_empty() || in_force.is_some_and(|(placed, _)| *placed == placement) {
            return None;
        }
        let expected = in_force.map_or(Expect::Absent, |(_, revision)| Expect::Revision(*revision));
        let key = RecordKey::Placement(name.clone()).to_string();
        Some(Op::put(key, record_encoding::encode(&placement.into())).expecting(expected))
    }
}

/// Whether a limit admits fewer connections than the one in force.
fn is_lower(limit: &ConnectionLimit, placed: &Placement) -> bool {
    placed.connection_limit.as_ref().is_none_or(|before| limit.per_second < before.per_second)
}

#[cfg(test)]
mod tests;
