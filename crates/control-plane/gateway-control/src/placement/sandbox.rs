//! Decides which services are moved to the sandbox, since their calls harm the backends that they share with others (Canal Mesh, section 6.2).
//!
//! Two kinds of calls do: a query of death, which takes down the backends of its service, and an attack, whose connections overload a backend
//! while requests do not grow. Where the tenant has agreed to a limit of connections, that comes first. The move ends open connections:
//! they are what harms. Only an operator takes a service out of the sandbox, since the next query of death would follow at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_backend_loads::{Crashed, crashing_service};
use fairmesh_controllers::Now;
use fairmesh_model::{
    GatewayBackend, GatewayService, Label, Placement, PlacementPin, ServiceName, Throttle, Zone,
};
use tokio::time::Instant;

use crate::loads::BackendLevels;

/// How long an attack lasts before its service is moved: a client that reconnects after a failure is done by then.
const ATTACK: Duration = Duration::from_secs(10);
/// The same for a service whose connections are limited, so that the limit has time to help.
const LIMITED_ATTACK: Duration = Duration::from_secs(40);
/// Why a service is moved. Operators see it, and the log of writes has it.
pub(super) const TAKES_DOWN: &str = "it took its backends down";
const ATTACKS: &str = "its connections overloaded a backend, and its requests had not grown";

/// Remembers which services are attacked.
#[derive(Clone, Debug, Default)]
pub(super) struct SandboxRounds {
    /// Services whose connections overload a backend, and since when.
    attacked: BTreeMap<ServiceName, Instant>,
    /// Services for which nothing is to do any more, as of the last round.
    done: BTreeSet<ServiceName>,
    /// The backends that had crashed in the last round.
    crashed: Crashed,
    /// Services that took backends down, with these.
    took_down: BTreeMap<ServiceName, BTreeSet<Label>>,
    /// Backends whose crashes have led to a move. They say nothing of the service once an operator lets it out of the sandbox.
    judged: BTreeSet<Label>,
}

impl SandboxRounds {
    /// Looks at the loads; whether a service may have to be moved.
    pub(super) fn look(&mut self, levels: &BackendLevels, now: Instant) -> bool {
        let since = |service: &ServiceName| self.attacked.get(service).copied().unwrap_or(now);
        self.attacked = levels.attacked.keys().map(|service| (service.clone(), since(service))).collect();
        self.done.retain(|service| self.attacked.contains_key(service));
        let is_due = |(service, since): (&ServiceName, &Instant)| {
            now.duration_since(*since) >= ATTACK && !self.done.contains(service)
        };
        self.crashed != levels.crashed || self.attacked.iter().any(is_due)
    }

    /// The services to move now. A service that an operator placed stays. A service that takes its backends down is named even where there is no sandbox, so that operators see it.
    pub(super) fn round<'a>(
        &mut self,
        placed: impl Iterator<Item = (&'a Placement, &'a ServiceName, &'a GatewayService)> + Clone,
        backends: &'a BTreeMap<Label, GatewayBackend>,
        levels: &BackendLevels,
        now: Now,
    ) -> BTreeMap<ServiceName, PlacementPin> {
        let in_sandbox = placed
            .clone()
            .filter(|(placement, ..)| placement.pinned.as_ref().is_some_and(|pin| pin.is_sandbox));
        let crashed = self.crashes(in_sandbox.map(|(_, service, _)| service), backends, levels);
        let has_sandbox = backends.values().any(|backend| backend.is_sandbox);
        let pin = |reason: &str| PlacementPin {
            reason: reason.to_owned(),
            at_ms: now.wall_ms,
            ends_connections: true,
            is_sandbox: true,
        };
        let (mut moved, mut shared) = (BTreeMap::new(), Vec::new());
        self.done.clear();
        for (placement, service, wanted) in placed {
            if placement.pinned.is_some() || !has_sandbox {
                self.done.insert(service.clone());
            }
            shared.push((service, placement));
            if placement.pinned.is_some() {
                continue;
            }
            let hold = if wanted.throttle == Throttle::Agreed { LIMITED_ATTACK } else { ATTACK };
            let since = self.attacked.get(service).filter(|_| has_sandbox);
            if since.is_some_and(|since| now.at.duration_since(*since) >= hold) {
                moved.insert(service.clone(), pin(ATTACKS));
            }
        }
        if let Some((service, placement)) = crashing_service(&crashed, &zones(backends), shared.into_iter())
            && placement.pinned.is_none()
        {
            let down = placement.backends().filter(|name| crashed.contains_key(*name)).cloned();
            self.took_down.insert(service.clone(), down.collect());
            moved.insert(service.clone(), pin(TAKES_DOWN));
        }
        moved
    }

    /// Crashed backends whose crashes have led to no move yet.
    fn crashes<'a>(
        &mut self,
        in_sandbox: impl Iterator<Item = &'a ServiceName>,
        backends: &BTreeMap<Label, GatewayBackend>,
        levels: &BackendLevels,
    ) -> Crashed {
        self.crashed.clone_from(&levels.crashed);
        self.judged.retain(|name| levels.crashed.contains_key(name));
        for service in in_sandbox {
            self.judged.extend(self.took_down.remove(service).into_iter().flatten());
        }
        let is_known =
            |name: &Label| !self.judged.contains(name) && backends.get(name).is_some_and(is_shared);
        let known = levels.crashed.iter().filter(|(name, _)| is_known(name));
        known.map(|(name, callers)| (name.clone(), callers.clone())).collect()
    }
}

/// Whether a backend serves services of all kinds.
fn is_shared(backend: &GatewayBackend) -> bool {
    !backend.is_sandbox && !backend.replicas.is_empty()
}

/// The backends of each zone, without sandboxes.
fn zones(backends: &BTreeMap<Label, GatewayBackend>) -> BTreeMap<&Zone, BTreeSet<&Label>> {
    let mut zones = BTreeMap::<&Zone, BTreeSet<&Label>>::new();
    for (name, backend) in backends.iter().filter(|(_, backend)| is_shared(backend)) {
        zones.entry(&backend.zone).or_default().insert(name);
    }
    zones
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(name: &str) -> Label {
        Label::new(name).unwrap()
    }

    fn service() -> ServiceName {
        ServiceName::new("red/web").unwrap()
    }

    /// A service on two backends of three at home, and one elsewhere, with a sandbox.
    struct World {
        rounds: SandboxRounds,
        backends: BTreeMap<Label, GatewayBackend>,
        placement: Placement,
        throttle: Throttle,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let zones = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("sandbox", "a")];
            let backend = |(name, zone): (&str, &str)| GatewayBackend {
                zone: Zone::new(zone).unwrap(),
                capacity: 10,
                replicas: ["10.0.0.1:7440".parse().unwrap()].into(),
                is_closed: false,
                is_sandbox: name == "sandbox",
            };
            let home = Zone::new("a").unwrap();
            let placed = [
                (home.clone(), [label("a1"), label("a2")].into()),
                (Zone::new("b").unwrap(), [label("b1")].into()),
            ];
            Self {
                rounds: SandboxRounds::default(),
                backends: zones.map(|one| (label(one.0), backend(one))).into(),
                placement: Placement {
                    home_zone: home,
                    zones: placed.into(),
                    added: 0,
                    pinned: None,
                    connection_limit: None,
                },
                throttle: Throttle::Ask,
                now: Instant::now(),
            }
        }

        /// Looks each two seconds until the service is moved, for `seconds` at most, and returns why and after how many.
        fn run(&mut self, seconds: u64, levels: &BackendLevels) -> Option<(u64, String)> {
            for second in (2..=seconds).step_by(2) {
                self.now += Duration::from_secs(2);
                if !self.rounds.look(levels, self.now) {
                    continue;
                }
                let home_zone = Zone::new("a").unwrap();
                let wanted = GatewayService { home_zone, backends: 3, grows: true, throttle: self.throttle };
                let (placed, name) = (self.placement.clone(), service());
                let now = Now { at: self.now, wall_ms: 7 };
                let placed = [(&placed, &name, &wanted)].into_iter();
                let moved = self.rounds.round(placed, &self.backends, levels, now);
                if let Some(pin) = moved.into_values().next() {
                    assert!(pin.is_sandbox && pin.ends_connections && pin.at_ms == 7);
                    let reason = pin.reason.clone();
                    self.placement.pinned = Some(pin);
                    return Some((second, reason));
                }
            }
            None
        }
    }

    fn attack() -> BackendLevels {
        BackendLevels { attacked: [(service(), 10)].into(), ..BackendLevels::default() }
    }

    fn crashes(names: &[&str]) -> BackendLevels {
        let crashed = names.iter().map(|name| (label(name), [service()].into())).collect();
        BackendLevels { crashed, ..BackendLevels::default() }
    }

    #[test]
    fn attacked_service_is_moved_once_a_limit_had_time_to_help() {
        for (throttle, seconds) in [(Throttle::Ask, 12), (Throttle::Never, 12), (Throttle::Agreed, 42)] {
            let mut world = World::new();
            world.throttle = throttle;
            assert_eq!(world.run(6, &attack()), None);
            assert_eq!(world.run(2, &BackendLevels::default()), None, "it begins anew after a pause");
            assert_eq!(world.run(60, &attack()), Some((seconds, ATTACKS.to_owned())));
            assert_eq!(world.run(60, &attack()), None, "once");
        }
        let mut world = World::new();
        world.backends.remove(&label("sandbox"));
        assert_eq!(world.run(60, &attack()), None, "there is no sandbox");
    }

    #[test]
    fn service_that_takes_its_backends_down_is_moved_at_once() {
        let mut world = World::new();
        assert_eq!(world.run(10, &crashes(&["a1"])), None);
        assert_eq!(world.run(10, &crashes(&["a1", "a2", "a3"])), None, "a failure of the zone");
        assert_eq!(world.run(10, &crashes(&["a1", "a2"])), Some((2, TAKES_DOWN.to_owned())));
        assert_eq!(world.run(10, &crashes(&["a1", "a2", "b1"])), None, "it is in the sandbox");
        // An operator lets it out, while its backends are still down.
        world.placement.pinned = None;
        assert_eq!(world.run(10, &crashes(&["a1", "a2"])), None);
        world.run(10, &crashes(&[]));
        assert_eq!(
            world.run(10, &crashes(&["a1", "a2"])),
            Some((2, TAKES_DOWN.to_owned())),
            "it does so again"
        );
    }

    #[test]
    fn service_that_an_operator_placed_is_not_moved() {
        let mut world = World::new();
        world.placement.pinned = Some(PlacementPin::default());
        assert_eq!(world.run(60, &attack()), None);
        assert_eq!(world.run(10, &crashes(&["a1", "a2"])), None);
    }
}
