//! Limits of new connections: set where an attack overloads a backend, and lifted in steps (Canal Mesh, section 4.3: throttling of a
//! tenant that has agreed).
//!
//! The limit is in the record of the placement, with its reason and what it began with. A control plane that starts goes on with the
//! limits in force: it lifts limits of controllers, and leaves limits of operators alone. A limit that an operator ends comes back
//! with the next overload.
//!
//! A limit is doubled while backends are at their safe level, and not by what is refused: where the controller looked at the attack, an
//! attacker that goes on slowly would keep the limit in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_controllers::Now;
use fairmesh_model::{ConnectionLimit, GatewayService, Placement, ServiceName, Throttle};
use tokio::time::Instant;

use crate::loads::BackendLevels;

/// How long all backends of a service are at their safe level before its limit is doubled.
const STEP: Duration = Duration::from_secs(30);
/// A limit of so many times the first one is removed instead: after four steps, and a fifth pause.
const LIFTED: u32 = 32;

/// Remembers what was limited when.
#[derive(Clone, Debug, Default)]
pub(super) struct ThrottleRounds {
    /// Services that were attacked in the last round that read records.
    seen: BTreeSet<ServiceName>,
    /// Placements with a limit, as of that round.
    limited: BTreeMap<ServiceName, Placement>,
    /// Placements whose limit an operator ended, until none of their backends has an alert.
    ended: BTreeMap<ServiceName, Placement>,
    /// Since when all backends of these services are at their safe level.
    safe: BTreeMap<ServiceName, Instant>,
}

/// The limits that change in a round; `None`: it is removed.
pub(super) type LimitChanges = BTreeMap<ServiceName, Option<ConnectionLimit>>;

impl ThrottleRounds {
    /// Looks at the loads; whether a limit may have to change.
    pub(super) fn look(&mut self, levels: &BackendLevels, now: Instant) -> bool {
        self.seen.retain(|service| levels.attacked.contains_key(service));
        self.forget_ended(levels);
        let is_lifted = |placement: &Placement| {
            placement.connection_limit.as_ref().is_none_or(|limit| limit.is_automatic)
                && levels.is_safe(placement)
        };
        let safe = self.limited.iter().filter(|(_, placement)| is_lifted(placement));
        let since = |service: &ServiceName| self.safe.get(service).copied().unwrap_or(now);
        self.safe = safe.map(|(service, _)| (service.clone(), since(service))).collect();
        levels.attacked.keys().any(|service| !self.seen.contains(service))
            || self.safe.keys().any(|service| self.is_due(service, now))
    }

    /// Whether the backends of a service were at their safe level for long enough.
    fn is_due(&self, service: &ServiceName, now: Instant) -> bool {
        self.safe.get(service).is_some_and(|since| now.duration_since(*since) >= STEP)
    }

    /// Decides for the placements in force, and what their services agree to.
    pub(super) fn round<'a>(
        &mut self,
        placed: impl Iterator<Item = (&'a Placement, &'a ServiceName, &'a GatewayService)>,
        levels: &BackendLevels,
        now: Now,
    ) -> LimitChanges {
        self.seen = levels.attacked.keys().cloned().collect();
        self.forget_ended(levels);
        let before = std::mem::take(&mut self.limited);
        let mut changes = LimitChanges::new();
        for (placement, service, wanted) in placed {
            let limit = placement.connection_limit.as_ref();
            // The controller forgets limits that it ends itself.
            let was_limited = before.get(service).is_some_and(|before| before.connection_limit.is_some());
            if was_limited && limit.is_none() {
                self.ended.insert(service.clone(), placement.clone());
            }
            if limit.is_some_and(|limit| !limit.is_automatic) {
                self.limited.insert(service.clone(), placement.clone());
                continue;
            }
            let next = self.next((service, wanted), limit, (levels, now.at));
            if next.is_some() {
                self.limited.insert(service.clone(), placement.clone());
            }
            if next != limit.map(|limit| limit.per_second) {
                let made = next.map(|per_second| ConnectionLimit {
                    per_second,
                    reason: reason(levels.attacked.contains_key(service)).to_owned(),
                    at_ms: now.wall_ms,
                    is_automatic: true,
                    first_per_second: limit.map_or(per_second, first_limit),
                });
                changes.insert(service.clone(), made);
            }
        }
        changes
    }

    /// The limit that the controller wants for a service.
    fn next(
        &self,
        (service, wanted): (&ServiceName, &GatewayService),
        limit: Option<&ConnectionLimit>,
        (levels, now): (&BackendLevels, Instant),
    ) -> Option<u32> {
        let may_limit = wanted.throttle == Throttle::Agreed && !self.ended.contains_key(service);
        match levels.attacked.get(service).filter(|_| may_limit) {
            Some(usual) => Some(limit.map_or(*usual, first_limit)),
            None => limit.and_then(|limit| self.lifted((service, wanted), limit, now)),
        }
    }

    fn forget_ended(&mut self, levels: &BackendLevels) {
        let has_alert = |placement: &Placement| placement.backends().any(|one| levels.alerted.contains(one));
        self.ended.retain(|_, placement| has_alert(placement));
    }

    /// The limit of a service that is not attacked now: the same one, twice as many, or none.
    fn lifted(
        &self,
        (service, wanted): (&ServiceName, &GatewayService),
        limit: &ConnectionLimit,
        now: Instant,
    ) -> Option<u32> {
        // The tenant agrees no more.
        if wanted.throttle != Throttle::Agreed {
            return None;
        }
        if !self.is_due(service, now) {
            return Some(limit.per_second);
        }
        let next = limit.per_second.saturating_mul(2);
        (next < first_limit(limit).saturating_mul(LIFTED)).then_some(next)
    }

    /// Notes that a limit was changed: the next step takes its time from now on.
    pub(super) fn changed(&mut self, service: &ServiceName) {
        self.safe.remove(service);
    }
}

/// The rate with which a limit began. Earlier releases did not store it.
pub(super) fn first_limit(limit: &ConnectionLimit) -> u32 {
    if limit.first_per_second == 0 { limit.per_second } else { limit.first_per_second }
}

/// Reason of a limit, for operators.
const fn reason(is_attacked: bool) -> &'static str {
    match is_attacked {
        true => "its connections have grown, and its requests have not, and they overload a backend",
        false => "its backends were within their CPU limits, so that the limit is lifted in steps",
    }
}

impl BackendLevels {
    /// Whether a backend of a service reports, and none has an alert.
    fn is_safe(&self, placement: &Placement) -> bool {
        placement.backends().any(|backend| self.used.contains_key(backend))
            && !placement.backends().any(|backend| self.alerted.contains(backend))
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Label, Zone};

    use super::*;

    fn service() -> ServiceName {
        ServiceName::new("red/web").unwrap()
    }

    fn label(name: &str) -> Label {
        Label::new(name).unwrap()
    }

    /// A service on one backend.
    struct World {
        rounds: ThrottleRounds,
        placement: Placement,
        throttle: Throttle,
        now: Instant,
    }

    impl World {
        fn new(throttle: Throttle) -> Self {
            let zone = Zone::new("a").unwrap();
            let placement = Placement {
                home_zone: zone.clone(),
                zones: [(zone, [label("one")].into())].into(),
                added: 0,
                pinned: None,
                connection_limit: None,
            };
            Self { rounds: ThrottleRounds::default(), placement, throttle, now: Instant::now() }
        }

        /// Looks each two seconds, decides where it is due, and brings that into force.
        fn run(&mut self, seconds: u64, levels: &BackendLevels) {
            for _ in 0..seconds / 2 {
                self.now += Duration::from_secs(2);
                if self.rounds.look(levels, self.now) {
                    self.decide(levels);
                }
            }
        }

        fn decide(&mut self, levels: &BackendLevels) {
            let wanted = GatewayService {
                home_zone: Zone::new("a").unwrap(),
                backends: 3,
                grows: true,
                throttle: self.throttle,
            };
            let (name, placement) = (service(), self.placement.clone());
            let now = Now { at: self.now, wall_ms: 7 };
            let changes = self.rounds.round([(&placement, &name, &wanted)].into_iter(), levels, now);
            if let Some(limit) = changes.get(&name) {
                self.placement.connection_limit.clone_from(limit);
                self.rounds.changed(&name);
            }
        }

        fn limit(&self) -> Option<u32> {
            self.placement.connection_limit.as_ref().map(|limit| limit.per_second)
        }
    }

    fn levels(alerted: bool, attacked: bool) -> BackendLevels {
        BackendLevels {
            used: [(label("one"), if alerted { 900 } else { 300 })].into(),
            alerted: alerted.then(|| label("one")).into_iter().collect(),
            attacked: attacked.then(|| (service(), 10)).into_iter().collect(),
            ..BackendLevels::default()
        }
    }

    #[test]
    fn attacked_service_that_agreed_is_limited_and_the_limit_lifted_in_steps() {
        let mut world = World::new(Throttle::Agreed);
        world.run(60, &levels(false, false));
        assert_eq!(world.limit(), None);
        world.run(2, &levels(true, true));
        let limit = world.placement.connection_limit.clone().unwrap();
        assert_eq!((limit.per_second, limit.is_automatic, limit.at_ms), (10, true, 7));
        assert!(limit.reason.contains("connections have grown"), "{limit:?}");
        world.run(300, &levels(true, false));
        assert_eq!(world.limit(), Some(10), "it stays while a backend has an alert, whatever the cause");
        for limit in [20, 40, 80, 160] {
            world.run(30, &levels(false, false));
            assert_eq!(world.limit(), Some(limit / 2), "before {limit}");
            world.run(2, &levels(false, false));
            assert_eq!(world.limit(), Some(limit));
        }
        world.run(32, &levels(false, false));
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn attack_that_comes_back_gets_the_first_limit_again() {
        let mut world = World::new(Throttle::Agreed);
        world.run(2, &levels(true, true));
        world.run(64, &levels(false, false));
        assert_eq!(world.limit(), Some(40));
        let mut again = levels(true, true);
        again.attacked.insert(service(), 35);
        world.run(2, &again);
        assert_eq!(world.limit(), Some(10), "what was usual while it was limited is not usual");
    }

    #[test]
    fn nothing_is_lifted_while_no_backend_reports() {
        let mut world = World::new(Throttle::Agreed);
        world.run(2, &levels(true, true));
        world.run(600, &BackendLevels::default());
        assert_eq!(world.limit(), Some(10));
    }

    #[test]
    fn services_that_have_not_agreed_and_limits_of_operators_are_left_alone() {
        for throttle in [Throttle::Ask, Throttle::Never] {
            let mut world = World::new(throttle);
            world.run(60, &levels(true, true));
            assert_eq!(world.limit(), None);
        }
        let mut world = World::new(Throttle::Agreed);
        let limit = ConnectionLimit {
            per_second: 3,
            reason: String::new(),
            at_ms: 1,
            is_automatic: false,
            first_per_second: 3,
        };
        world.placement.connection_limit = Some(limit);
        world.run(60, &levels(true, true));
        world.run(600, &levels(false, false));
        assert_eq!(world.limit(), Some(3));
    }

    #[test]
    fn limit_goes_when_the_tenant_agrees_no_more() {
        let mut world = World::new(Throttle::Agreed);
        world.run(2, &levels(true, true));
        world.throttle = Throttle::Ask;
        world.decide(&levels(true, true));
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn limit_of_earlier_control_plane_is_lifted_or_restored() {
        let mut world = World::new(Throttle::Agreed);
        world.run(2, &levels(true, true));
        world.run(96, &levels(false, false));
        assert_eq!(world.limit(), Some(80));
        world.rounds = ThrottleRounds::default();
        world.decide(&levels(false, false));
        world.run(34, &levels(false, false));
        assert_eq!(world.limit(), Some(160));
        world.rounds = ThrottleRounds::default();
        world.run(2, &levels(true, true));
        assert_eq!(world.limit(), Some(10), "the record says what it began with");
        world.run(130, &levels(false, false));
        assert_eq!(world.limit(), Some(160));
        world.run(32, &levels(false, false));
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn limit_that_an_operator_ended_comes_back_with_the_next_overload() {
        let mut world = World::new(Throttle::Agreed);
        world.run(2, &levels(true, true));
        world.decide(&levels(true, true));
        world.placement.connection_limit = None;
        world.decide(&levels(true, true));
        world.run(60, &levels(true, false));
        world.run(60, &levels(true, true));
        assert_eq!(world.limit(), None, "it is the same overload, with another cause for a while");
        world.run(2, &levels(false, false));
        world.run(2, &levels(true, true));
        assert_eq!(world.limit(), Some(10));
    }
}
