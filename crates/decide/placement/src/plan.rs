//! The plan: services are kept, repaired, grown, or newly placed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use fairmesh_model::{Label, ServiceName, Tenant};

use crate::{
    backend_choice::{Draft, Wish},
    backend_set::BackendSet,
    fleet::Fleet,
    input::{MAX_BACKENDS, MAX_TENANT_BACKENDS, MIN_BACKENDS, PlacedService, PlanInput},
    missing_backends::Missing,
    sandbox,
};

/// Result of planning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Services whose backends change, with their new backends. An empty set means that none of the service's backends
    /// exists any more.
    pub changes: BTreeMap<ServiceName, BTreeSet<Label>>,
    /// Services that do not get what they ask for. They keep their present backends, as far as these still exist.
    pub refused: BTreeMap<ServiceName, Missing>,
    /// Cost of computing the plan.
    pub effort: Effort,
}

/// Cost of computing a plan, in steps that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Number of combinations of backends tried.
    pub combinations: u64,
    /// Number of pairs of services compared.
    pub comparisons: u64,
}

/// Plans the backends of all services.
///
/// Pinned services keep their backends, and come first. Services that already have what they ask for keep their
/// backends too, with one exception: if a growing service would cover all backends of another service, one backend of
/// the other service is replaced. Order: services that lost backends, growing services, new services; each group by name.
/// Services in the sandbox have backends of their own, and are planned apart.
pub fn plan(input: PlanInput<'_>) -> Plan {
    let mut services: BTreeMap<&ServiceName, &PlacedService> =
        input.services.iter().map(|service| (&service.name, service)).collect();
    let draft = Draft::new(Fleet::new(input.backends), input.seed);
    let sandboxed = services.values().copied().filter(|service| service.is_sandboxed).collect();
    let in_sandbox = sandbox::place(input.backends, sandboxed);
    // One for which there is no sandbox keeps its backends, like a pinned one.
    services.retain(|name, service| {
        let stays = in_sandbox.refused.contains_key(*name);
        !service.is_sandboxed || (stays && !draft.fleet.set_of(&service.present).is_empty())
    });
    let kept: Vec<BackendSet> = services.values().map(|one| draft.fleet.set_of(&one.present)).collect();
    let pairs = services.values().zip(&kept).enumerate();
    let wishes: Vec<Wish<'_>> = pairs.map(|(at, (service, kept))| wish(at, service, kept)).collect();
    let open = input.is_shared.then(|| draft.fleet.combinations(&draft.fleet.open()));
    let bounds = Bounds {
        backends: most_backends(input),
        quotas: input.quotas,
        // With an odd number, the first tenant gets the additional combination, so that a single combination still
        // serves one tenant.
        combinations: open.map(|all| all.into_iter().map(|all| all.div_ceil(2)).collect()),
    };
    let (used, refused) = (BTreeMap::new(), BTreeMap::new());
    let mut planner = Planner { draft, wishes, kept, used, bounds, refused };
    planner.place_all();
    let mut plan = planner.finish(services.into_values());
    plan.changes.extend(in_sandbox.changes);
    plan.refused.extend(in_sandbox.refused);
    plan
}

/// Maximum total number of backends of one tenant's services: half of the places if there are other tenants. Closed
/// backends count, since their services stay.
fn most_backends(input: PlanInput<'_>) -> usize {
    let ordinary = input.backends.iter().filter(|backend| !backend.is_sandbox);
    let places: u64 = ordinary.map(|backend| u64::from(backend.capacity)).sum();
    // Without any backend, report missing backends instead of an exhausted limit.
    match input.is_shared && places > 0 {
        true => usize::try_from(places / 2).unwrap_or(usize::MAX).min(MAX_TENANT_BACKENDS),
        false => MAX_TENANT_BACKENDS,
    }
}

/// Limits for all services of one tenant together.
struct Bounds<'a> {
    /// Maximum number of backends of a tenant without a quota.
    backends: usize,
    quotas: &'a BTreeMap<Tenant, usize>,
    /// Combinations by home zone. `None` means no limit.
    combinations: Option<Vec<u64>>,
}

/// Backends and combinations in use by a tenant's services.
#[derive(Clone, Default)]
struct Used {
    backends: usize,
    combinations: Vec<u64>,
}

fn wish<'a>(at: usize, service: &'a PlacedService, kept: &BackendSet) -> Wish<'a> {
    // A service without any of its backends is placed anew.
    let is_pinned = (service.is_pinned || service.is_sandboxed) && !kept.is_empty();
    let (count, added) = match is_pinned {
        true => (kept.len(), 0),
        false => (service.count.clamp(MIN_BACKENDS, MAX_BACKENDS), service.added),
    };
    Wish {
        service: at,
        name: &service.name,
        home: &service.home,
        count,
        added,
        had: service.present.len(),
        given_back: service.given_back,
        is_pinned,
    }
}

impl Wish<'_> {
    /// The same with what it gets where its tenant may have `left` backends more. A service in force gets back what it has lost, and the
    /// minimum: the bound is for what is new. `None`: a new service would get less than the minimum.
    fn within(self, left: usize) -> Option<Self> {
        let count = match self.had {
            _ if left >= self.count => self.count,
            0 => left,
            had => had.max(MIN_BACKENDS).min(self.count),
        };
        let added = self.added.saturating_sub(self.count - count);
        (count >= MIN_BACKENDS.min(self.count)).then_some(Self { count, added, ..self })
    }
}

impl Used {
    fn with(mut self, more: &Self) -> Self {
        self.backends += more.backends;
        self.combinations.resize(more.combinations.len(), 0);
        self.combinations.iter_mut().zip(&more.combinations).for_each(|(own, more)| *own += more);
        self
    }

    fn without(mut self, less: &Self) -> Self {
        self.backends = self.backends.saturating_sub(less.backends);
        self.combinations.resize(less.combinations.len(), 0);
        let pairs = self.combinations.iter_mut().zip(&less.combinations);
        pairs.for_each(|(own, less)| *own = own.saturating_sub(*less));
        self
    }
}

struct Planner<'a> {
    draft: Draft<'a>,
    wishes: Vec<Wish<'a>>,
    /// The still existing backends of each service.
    kept: Vec<BackendSet>,
    used: BTreeMap<&'a Tenant, Used>,
    bounds: Bounds<'a>,
    refused: BTreeMap<usize, Missing>,
}

impl<'a> Planner<'a> {
    fn place_all(&mut self) {
        let wishes = self.wishes.clone();
        self.keep(&wishes);
        let settle = |planner: &mut Self, wish: &Wish<'a>| planner.settle(&wishes, *wish);
        let (new, present): (Vec<&Wish<'a>>, Vec<_>) = wishes.iter().partition(|wish| wish.had == 0);
        let (placed, damaged): (Vec<&Wish<'a>>, Vec<_>) =
            present.into_iter().partition(|wish| self.draft.occupied.get(wish.service).is_some());
        let mut unsettled = Vec::new();
        damaged.iter().for_each(|wish| self.reserve(wish));
        // With all others in place: a service that gets smaller must not lie among the backends of any other.
        // Where two do, one of them may have to go first.
        while placed.iter().filter(|wish| self.shrink(***wish)).count() > 0 {}
        wishes.iter().for_each(|wish| self.count(wish));
        for wish in damaged {
            if wish.is_pinned {
                unsettled.push(wish);
                continue;
            }
            self.release(wish);
            self.try_one(wish, settle);
            if self.draft.occupied.get(wish.service).is_some() {
                continue;
            }
            let kept = &self.kept[wish.service];
            match self.draft.fleet.is_spread(kept, wish.home) {
                true => self.draft.occupied.insert(wish.service, kept.clone()),
                // A service that is not spread over zones must not block the placement of others.
                false => {
                    self.reserve(wish);
                    unsettled.push(wish);
                }
            }
        }
        for wish in placed.into_iter().filter(|wish| self.length(wish) < wish.count).collect::<Vec<_>>() {
            self.try_one(wish, |planner, wish| planner.draft.grow(&wishes, *wish));
        }
        new.into_iter().for_each(|wish| self.try_one(wish, settle));
        // A service that cannot be repaired keeps its remaining backends.
        for wish in unsettled {
            self.draft.occupied.insert(wish.service, self.kept[wish.service].clone());
        }
    }

    /// Places services on the backends that they have, where these are spread and free.
    fn keep(&mut self, wishes: &[Wish<'a>]) {
        let (pinned, others): (Vec<&Wish<'a>>, Vec<_>) = wishes.iter().partition(|wish| wish.is_pinned);
        // The backends of pinned services are theirs, so that others are moved where both have the same ones.
        for wish in pinned.into_iter().chain(others) {
            let kept = &self.kept[wish.service];
            if self.draft.fleet.is_spread(kept, wish.home) && self.draft.occupied.is_free(kept) {
                self.draft.occupied.insert(wish.service, kept.clone());
            }
        }
    }

    /// Counts the backends and combinations of a service as its tenant's.
    fn count(&mut self, wish: &Wish<'a>) {
        let used = self.used.get(&wish.name.tenant).cloned().unwrap_or_default();
        let used = used.with(&self.taken(wish));
        self.used.insert(&wish.name.tenant, used);
    }

    /// Reserves the places of a service until it is placed again.
    fn reserve(&mut self, wish: &Wish<'_>) {
        self.kept[wish.service].iter().for_each(|backend| self.draft.reserved[backend] += 1);
    }

    fn release(&mut self, wish: &Wish<'_>) {
        self.kept[wish.service].iter().for_each(|backend| self.draft.reserved[backend] -= 1);
    }

    /// Backends of a service, whether placed or waiting for repair.
    fn set(&self, wish: &Wish<'_>) -> &BackendSet {
        self.draft.occupied.get(wish.service).unwrap_or(&self.kept[wish.service])
    }

    /// Number of backends of a service, whether placed or waiting for repair.
    fn length(&self, wish: &Wish<'_>) -> usize {
        self.set(wish).len()
    }

    /// Backends and combinations that a service uses.
    fn taken(&self, wish: &Wish<'_>) -> Used {
        let set = self.set(wish);
        Used { backends: set.len(), combinations: self.draft.fleet.combinations(set) }
    }

    /// Changes one service within the limits of its tenant.
    fn try_one(&mut self, wish: &Wish<'a>, change: impl Fn(&mut Self, &Wish<'a>) -> Result<(), Missing>) {
        let tenant = &wish.name.tenant;
        let others = self.used.get(tenant).cloned().unwrap_or_default().without(&self.taken(wish));
        let most = self.bounds.quotas.get(tenant).copied().unwrap_or(self.bounds.backends);
        let spare = |all: &Vec<u64>| {
            let pairs = all.iter().zip(&others.combinations);
            pairs.map(|(all, taken)| all.saturating_sub(*taken)).collect()
        };
        self.draft.spare = self.bounds.combinations.as_ref().map(spare);
        self.draft.is_spare_used = false;
        let quota = Missing::Quota { tenant: tenant.clone(), quota: most };
        let is_placed = self.draft.occupied.get(wish.service).is_some();
        let refused = match wish.within(most.saturating_sub(others.backends)) {
            Some(within) if within.count == wish.count => change(self, wish).err(),
            Some(within) if !is_placed || self.length(wish) < within.count => {
                change(self, &within).err().or(Some(quota))
            }
            _ => Some(quota),
        };
        if let Some(missing) = refused {
            self.refused.insert(wish.service, missing);
        }
        self.used.insert(tenant, others.with(&self.taken(wish)));
    }

    /// Places a service that is new, has lost backends, or whose backends another service contains. If the wanted
    /// number is not possible, the service gets the minimum.
    fn settle(&mut self, wishes: &[Wish<'_>], wish: Wish<'_>) -> Result<(), Missing> {
        let Draft { fleet, .. } = &self.draft;
        let kept = self.draft.trim(wish, &self.kept[wish.service]);
        let (home, elsewhere) = fleet.lacks(&kept, wish.home);
        let missing = match self.draft.complete(wish, &kept) {
            Ok(set) => {
                self.draft.occupied.insert(wish.service, set);
                return Ok(());
            }
            Err(missing) => missing,
        };
        let least = kept.len() + home + elsewhere;
        // A repaired service gets at least the minimum, regardless of its tenant's limits.
        let is_repaired = wish.had > 0;
        let spare = self.draft.spare.take_if(|_| is_repaired);
        let base = match (home, elsewhere) {
            (0, 0) if self.draft.occupied.is_free(&kept) => Ok(kept),
            (0, 0) => self.draft.replace_one(wish, &kept),
            _ if least >= wish.count && !(is_repaired && self.draft.is_spare_used) => Err(missing),
            _ => self.draft.complete(Wish { count: least, ..wish }, &kept),
        };
        self.draft.spare = spare.or(self.draft.spare.take());
        let base = base?;
        let is_complete = base.len() >= wish.count;
        self.draft.occupied.insert(wish.service, base);
        if is_complete { Ok(()) } else { self.draft.grow(wishes, wish) }
    }

    /// Removes surplus backends of a service, the fullest first, as long as the rest stays spread over zones and free. What it gives back
    /// is of its home zone, where it was added. Returns whether any was removed.
    fn shrink(&mut self, wish: Wish<'_>) -> bool {
        let draft = &mut self.draft;
        let before = draft.occupied.get(wish.service).map_or(0, BackendSet::len);
        if before <= wish.count {
            return false;
        }
        let Some(mut set) = draft.occupied.remove(wish.service) else { return false };
        let mut given_back = wish.given_back.saturating_sub(self.kept[wish.service].len() - before);
        while set.len() > wish.count {
            let may_go = |backend: &usize| given_back == 0 || draft.fleet.is_in(*backend, wish.home);
            let mut members: Vec<usize> = set.iter().filter(may_go).collect();
            members.sort_by_key(|backend| Reverse(draft.used(*backend)));
            let mut smaller = members.into_iter().map(|backend| set.without(backend));
            let is_fine = |smaller: &BackendSet| {
                draft.fleet.is_spread(smaller, wish.home) && draft.occupied.is_free(smaller)
            };
            match smaller.find(is_fine) {
                Some(smaller) => (set, given_back) = (smaller, given_back.saturating_sub(1)),
                None => break,
            }
        }
        let is_smaller = set.len() < before;
        draft.occupied.insert(wish.service, set);
        is_smaller
    }

    /// Difference between the planned and the present backends.
    fn finish<'s>(self, services: impl Iterator<Item = &'s PlacedService>) -> Plan {
        let Self { draft, wishes, mut refused, .. } = self;
        let mut plan = Plan::default();
        for (wish, service) in wishes.iter().zip(services) {
            let names = draft.occupied.get(wish.service).map(|set| draft.fleet.names_of(set));
            let names = names.unwrap_or_default();
            if names != service.present {
                plan.changes.insert(service.name.clone(), names);
            }
            if let Some(missing) = refused.remove(&wish.service) {
                plan.refused.insert(service.name.clone(), missing);
            }
        }
        plan.effort = Effort { combinations: draft.combinations, comparisons: draft.occupied.comparisons };
        plan
    }
}
