//! A plan: what is kept, what is repaired, what grows, and what is new.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use fairmesh_model::{Label, ServiceName, Tenant};

use crate::{
    backend_set::BackendSet,
    choice::{Draft, Wish},
    fleet::Fleet,
    input::{MAX_BACKENDS, MIN_BACKENDS, PlacedService, PlanInput},
    missing::Missing,
};

/// What changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Services with other backends than at present, and these. An empty set: none of its backends
    /// exists any more.
    pub changes: BTreeMap<ServiceName, BTreeSet<Label>>,
    /// Services that do not get what they ask for. They keep the present backends that still exist, if they have any.
    pub refused: BTreeMap<ServiceName, Missing>,
    /// What the plan has cost.
    pub effort: Effort,
}

/// The cost of a plan, in steps that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effort {
    /// Combinations of backends that were tried.
    pub combinations: u64,
    /// Pairs of services whose backends were compared.
    pub comparisons: u64,
}

/// Plans the backends of all services.
///
/// Services that have what they ask for keep it, except one backend of those that a growing service would cover. Then come those that
/// lost backends, those that grow, and new ones, each in the order of names.
pub fn plan(input: PlanInput<'_>) -> Plan {
    let services: BTreeMap<&ServiceName, &PlacedService> =
        input.services.iter().map(|service| (&service.name, service)).collect();
    let wishes: Vec<Wish<'_>> =
        services.values().enumerate().map(|(at, service)| wish(at, service)).collect();
    let draft = Draft::new(Fleet::new(input.backends), input.seed);
    let kept: Vec<BackendSet> = services.values().map(|one| draft.fleet.set_of(&one.present)).collect();
    let (used, refused, quota) = (BTreeMap::new(), BTreeMap::new(), input.tenant_quota);
    let mut planner = Planner { draft, wishes, kept, used, quota, refused };
    planner.place_all();
    planner.finish(services.into_values())
}

fn wish(at: usize, service: &PlacedService) -> Wish<'_> {
    let count = service.count.clamp(MIN_BACKENDS, MAX_BACKENDS);
    Wish { service: at, name: &service.name, home: &service.home, count }
}

struct Planner<'a> {
    draft: Draft<'a>,
    wishes: Vec<Wish<'a>>,
    /// The backends that exist, of those that each service has at present.
    kept: Vec<BackendSet>,
    /// Backends of all services of a tenant.
    used: BTreeMap<&'a Tenant, usize>,
    quota: usize,
    refused: BTreeMap<usize, Missing>,
}

impl<'a> Planner<'a> {
    fn place_all(&mut self) {
        let wishes = self.wishes.clone();
        for wish in &wishes {
            let kept = &self.kept[wish.service];
            if self.draft.fleet.is_spread(kept, wish.home) && self.draft.occupied.is_free(kept) {
                self.draft.occupied.insert(wish.service, kept.clone());
                self.shrink(*wish);
            }
            *self.used.entry(&wish.name.tenant).or_default() += self.length(wish);
        }
        let settle = |planner: &mut Self, wish: &Wish<'a>| planner.settle(&wishes, *wish);
        let (new, present): (Vec<&Wish<'a>>, Vec<_>) =
            wishes.iter().partition(|wish| self.kept[wish.service].is_empty());
        let (placed, damaged): (Vec<&Wish<'a>>, Vec<_>) =
            present.into_iter().partition(|wish| self.draft.occupied.get(wish.service).is_some());
        let mut unsettled = Vec::new();
        damaged.iter().for_each(|wish| self.reserve(wish));
        for wish in damaged {
            self.release(wish);
            self.try_one(wish, settle);
            if self.draft.occupied.get(wish.service).is_some() {
                continue;
            }
            let kept = &self.kept[wish.service];
            match self.draft.fleet.is_spread(kept, wish.home) {
                true => self.draft.occupied.insert(wish.service, kept.clone()),
                // As long as it is not spread, it must not keep others from being placed.
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
        // What is left of those that cannot be repaired serves as before.
        for wish in unsettled {
            self.draft.occupied.insert(wish.service, self.kept[wish.service].clone());
        }
    }

    /// Keeps the places of a service until it is placed anew.
    fn reserve(&mut self, wish: &Wish<'_>) {
        self.kept[wish.service].iter().for_each(|backend| self.draft.reserved[backend] += 1);
    }

    fn release(&mut self, wish: &Wish<'_>) {
        self.kept[wish.service].iter().for_each(|backend| self.draft.reserved[backend] -= 1);
    }

    /// The number of backends of a service, damaged or not.
    fn length(&self, wish: &Wish<'_>) -> usize {
        self.draft.occupied.get(wish.service).unwrap_or(&self.kept[wish.service]).len()
    }

    /// Changes one service within the quota of its tenant.
    fn try_one(&mut self, wish: &Wish<'a>, change: impl Fn(&mut Self, &Wish<'a>) -> Result<(), Missing>) {
        let (tenant, before) = (&wish.name.tenant, self.length(wish));
        let used = self.used.get(tenant).copied().unwrap_or_default();
        let changed = match used + wish.count.saturating_sub(before) > self.quota {
            true => Err(Missing::Quota { tenant: tenant.clone(), quota: self.quota }),
            false => change(self, wish),
        };
        if let Err(missing) = changed {
            self.refused.insert(wish.service, missing);
        }
        self.used.insert(tenant, (used + self.length(wish)).saturating_sub(before));
    }

    /// Places a service that is new, has lost backends, or shares all of its backends with another one. It gets the least number of
    /// backends if it cannot have all that it asks for.
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
        let base = match (home, elsewhere) {
            (0, 0) if self.draft.occupied.is_free(&kept) => kept,
            (0, 0) => self.draft.replace_one(wish, &kept)?,
            _ if least >= wish.count => return Err(missing),
            _ => self.draft.complete(Wish { count: least, ..wish }, &kept)?,
        };
        let is_complete = base.len() >= wish.count;
        self.draft.occupied.insert(wish.service, base);
        if is_complete { Ok(()) } else { self.draft.grow(wishes, wish) }
    }

    /// Takes backends away that a service asks for no more, the fullest first, as long as the rest is spread and free.
    fn shrink(&mut self, wish: Wish<'_>) {
        let draft = &mut self.draft;
        let Some(mut set) = draft.occupied.remove(wish.service) else { return };
        while set.len() > wish.count {
            let mut members: Vec<usize> = set.iter().collect();
            members.sort_by_key(|backend| Reverse(draft.used(*backend)));
            let mut smaller = members.into_iter().map(|backend| set.without(backend));
            let is_fine = |smaller: &BackendSet| {
                draft.fleet.is_spread(smaller, wish.home) && draft.occupied.is_free(smaller)
            };
            match smaller.find(is_fine) {
                Some(smaller) => set = smaller,
                None => break,
            }
        }
        draft.occupied.insert(wish.service, set);
    }

    /// The difference between what is planned and what is present.
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
