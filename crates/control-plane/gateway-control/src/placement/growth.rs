//! Decides which services get one more backend because their calls have grown, and which give one back (Canal
//! Mesh, section 4.3: *Reuse*).
//!
//! A service gets one backend at a time, followed by a pause: new connections must reach the backend before
//! its effect can be judged. The number of added backends is part of the placement record, so that a
//! restarted control plane does not take them back by mistake.
//!
//! A service grows only while every replica of its backends in the home zone reports. When one fails, the
//! others get its calls, and a service that crashes its backends must not be moved on to further ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use fairmesh_model::{GatewayBackend, GatewayService, Label, Placement, ServiceName};
use tokio::time::Instant;

use super::throttle::first_limit;
use crate::loads::{BackendLevels, GatewayLoads};

/// Interval at which loads are checked.
pub(super) const INTERVAL: Duration = Duration::from_secs(2);
/// The least pause between two additions of a service. Where replicas report less often, it is two of their intervals.
const PAUSE: Duration = Duration::from_secs(10);
/// How long a service's backends must be able to do with one less before the service gives one back.
const QUIET: Duration = Duration::from_mins(10);
/// Maximum share of CPU, in thousandths, that the remaining backends would reach if one is given back: well
/// below the safe level.
const QUIET_PERMILLE: u32 = 500;

/// Remembers recent changes of placements between rounds.
#[derive(Clone, Debug)]
pub(super) struct GrowthRounds {
    loads: GatewayLoads,
    /// When the placement of each service was last changed.
    changed: BTreeMap<ServiceName, Instant>,
    /// Services that can do with one backend less, and since when.
    quiet: BTreeMap<ServiceName, Instant>,
    /// Placements with added backends, as of the last round that read records.
    extended: BTreeMap<ServiceName, Placement>,
    /// Services that get no further backends, whatever their load is, as of that round.
    fixed: BTreeSet<ServiceName>,
    levels: BackendLevels,
}

/// The changes of a round.
#[derive(Debug, Default)]
pub(super) struct Growth {
    grows: BTreeSet<ServiceName>,
    gives_back: BTreeSet<ServiceName>,
    used: BTreeMap<Label, u32>,
}

impl GrowthRounds {
    pub(super) fn new(loads: GatewayLoads) -> Self {
        let (changed, quiet, extended, fixed) = Default::default();
        Self { loads, changed, quiet, extended, fixed, levels: BackendLevels::default() }
    }

    /// The state of backends in the last look.
    pub(super) fn levels(&self) -> &BackendLevels {
        &self.levels
    }

    /// Tells the loads which connections are limited.
    pub(super) fn limit<'a>(&self, placed: impl Iterator<Item = (&'a ServiceName, &'a Placement)>) {
        let limit = |(name, placement): (&ServiceName, &Placement)| {
            let limit = placement.connection_limit.as_ref()?;
            Some((name.clone(), limit.is_automatic.then(|| first_limit(limit))))
        };
        self.loads.set_limited(placed.filter_map(limit).collect());
    }

    /// Reads the current loads. Returns whether a placement may have to change.
    pub(super) fn look(&mut self, now: Instant) -> bool {
        self.levels = self.loads.levels();
        let pause = PAUSE.max(self.levels.interval * 2);
        self.changed.retain(|_, at| now.duration_since(*at) < pause);
        let levels = &self.levels;
        let quiet = self.extended.iter().filter(|(_, placement)| levels.does_with_one_less(placement));
        let since = |service: &ServiceName| self.quiet.get(service).copied().unwrap_or(now);
        self.quiet = quiet.map(|(service, _)| (service.clone(), since(service))).collect();
        let is_over = |since: &Instant| now.duration_since(*since) >= QUIET;
        let may_grow =
            |service: &ServiceName| !self.changed.contains_key(service) && !self.fixed.contains(service);
        self.levels.growing.iter().any(|(service, _)| may_grow(service)) || self.quiet.values().any(is_over)
    }

    /// Decides for the placements in force, and what their services ask for. A service that an operator placed gets no other backends, and
    /// one whose growth is off gives back what was added before.
    pub(super) fn round<'a>(
        &mut self,
        placed: impl Iterator<Item = (&'a Placement, &'a ServiceName, &'a GatewayService)>,
        backends: &BTreeMap<Label, GatewayBackend>,
        now: Instant,
    ) -> Growth {
        let mut growth = Growth { used: self.levels.used.clone(), ..Growth::default() };
        self.extended.clear();
        self.fixed.clear();
        for (placement, service, wanted) in placed {
            if placement.pinned.is_some() {
                self.fixed.insert(service.clone());
                continue;
            }
            if !wanted.grows {
                self.fixed.insert(service.clone());
            }
            if placement.added > 0 {
                self.extended.insert(service.clone(), placement.clone());
            }
            if self.changed.contains_key(service) {
                continue;
            }
            let is_over = |since: &Instant| now.duration_since(*since) >= QUIET;
            if wanted.grows && self.levels.grows(service, placement, backends) {
                growth.grows.insert(service.clone());
            } else if placement.added > 0 && self.quiet.get(service).is_some_and(is_over) {
                growth.gives_back.insert(service.clone());
            }
        }
        growth
    }

    /// Notes that a placement was changed.
    pub(super) fn changed(&mut self, service: ServiceName, now: Instant) {
        self.quiet.remove(&service);
        self.changed.insert(service, now);
    }
}

impl Growth {
    /// How many backends a service is to have beyond the number that it asks for: at most that number again.
    pub(super) fn added(&self, service: &ServiceName, placed: &Placement, asked: u32) -> u32 {
        match (self.grows.contains(service), self.gives_back.contains(service)) {
            (true, _) => placed.added.saturating_add(1).min(asked),
            (false, true) => placed.added.saturating_sub(1),
            (false, false) => placed.added,
        }
    }

    /// Whether the load changes the placement of this service.
    pub(super) fn is_of(&self, service: &ServiceName) -> bool {
        self.grows.contains(service) || self.gives_back.contains(service)
    }

    /// Whether any service grows, so that an addition may be refused and must be tried again.
    pub(super) fn has_growing(&self) -> bool {
        !self.grows.is_empty()
    }

    #[cfg(test)]
    pub(super) fn set_used(&mut self, used: BTreeMap<Label, u32>) {
        self.used = used;
    }

    /// The share of CPU that a backend uses, in thousandths.
    pub(super) fn used_permille(&self, backend: &Label) -> Option<u32> {
        self.used.get(backend).copied()
    }
}

impl BackendLevels {
    /// Whether growth of the service overloads a backend in its home zone, where one more backend helps.
    fn grows(
        &self,
        service: &ServiceName,
        placement: &Placement,
        backends: &BTreeMap<Label, GatewayBackend>,
    ) -> bool {
        let home = placement.zones.get(&placement.home_zone);
        let home = || home.into_iter().flatten();
        let report = |replicas: &BTreeSet<SocketAddr>| replicas.is_subset(&self.reporting);
        home().any(|backend| self.growing.contains(&(service.clone(), backend.clone())))
            && home().all(|backend| backends.get(backend).is_some_and(|one| report(&one.replicas)))
    }

    /// Whether the backends in the home zone would stay below [`QUIET_PERMILLE`] without one of them.
    fn does_with_one_less(&self, placement: &Placement) -> bool {
        let home = placement.zones.get(&placement.home_zone);
        let used: Vec<u32> =
            home.into_iter().flatten().filter_map(|one| self.used.get(one).copied()).collect();
        let Some(most) = used.iter().max().filter(|_| used.len() > 1) else { return false };
        let count = u32::try_from(used.len()).unwrap_or(u32::MAX);
        most.saturating_mul(count) <= QUIET_PERMILLE * (count - 1)
    }
}

#[cfg(test)]
mod tests;
