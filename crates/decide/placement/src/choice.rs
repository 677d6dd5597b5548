//! How the backends that a service lacks are chosen.

use std::{cmp::Reverse, collections::BTreeSet};

use fairmesh_model::{
    ServiceName, Zone,
    arith::{Generator, hash_text, mix_pair},
};

use crate::{
    backend_set::BackendSet,
    fleet::Fleet,
    input::{ELSEWHERE, HOME},
    missing::Missing,
    occupied::Occupied,
};

/// Random combinations that are tried first. With half of all combinations taken, all of them fail once in four billion services.
const DRAWS: usize = 32;
/// Missing backends up to which all combinations are tried, and the most that are: 60 backends have 34,220 of three.
const MAX_SEARCHED: usize = 3;
const MAX_COMBINATIONS: u32 = 1 << 16;

/// What a service asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Its position among all services.
    pub(crate) service: usize,
    pub(crate) name: &'a ServiceName,
    pub(crate) home: &'a Zone,
    pub(crate) count: usize,
    /// How many of these it gets since its calls have grown.
    pub(crate) added: usize,
    /// Whether it keeps its backends.
    pub(crate) is_pinned: bool,
}

/// A plan in the making.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) fleet: Fleet<'a>,
    pub(crate) occupied: Occupied,
    /// Places on each backend of services that have lost others and are not placed anew yet.
    pub(crate) reserved: Vec<usize>,
    pub(crate) seed: u64,
    /// Backends that take over calls of a growing service in this plan: each of one, since nothing is known of what it then has to spare.
    pub(crate) relieving: BTreeSet<usize>,
    /// Combinations that were tried.
    pub(crate) combinations: u64,
    /// Home zones and numbers of backends for which a search has found no combination for a new service.
    exhausted: BTreeSet<(Zone, usize)>,
    /// The combinations that the tenant of the service that is placed may still take, by home zone; `None`: all.
    pub(crate) spare: Option<Vec<u64>>,
    /// Whether that alone has kept the service from a combination.
    pub(crate) is_spare_used: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(fleet: Fleet<'a>, seed: u64) -> Self {
        let (occupied, reserved) = (Occupied::new(fleet.backends.len()), vec![0; fleet.backends.len()]);
        let exhausted = BTreeSet::new();
        Self {
            fleet,
            occupied,
            reserved,
            seed,
            relieving: BTreeSet::new(),
            combinations: 0,
            exhausted,
            spare: None,
            is_spare_used: false,
        }
    }

    /// Completes the backends that a service keeps to the number that it asks for. The service itself must not be placed.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn complete(&mut self, wish: Wish<'_>, kept: &BackendSet) -> Result<BackendSet, Missing> {
        self.check_room(wish, kept)?;
        if self.has_no_spare(wish.home) {
            self.is_spare_used = true;
            return Err(self.no_combination(wish));
        }
        let candidates = self.candidates(kept);
        let mut random = Generator::new(mix_pair(self.seed, hash_text(&wish.name.to_string())));
        for _ in 0..DRAWS {
            let Some(set) = self.draw(wish, kept, &candidates, &mut random) else { break };
            if self.try_combination(&set) {
                return Ok(set);
            }
        }
        self.search(wish, kept, candidates).ok_or_else(|| self.no_combination(wish))
    }

    /// Why there is no combination for a service.
    pub(crate) fn no_combination(&self, wish: Wish<'_>) -> Missing {
        match self.is_spare_used {
            true => Missing::TenantCombinations { tenant: wish.name.tenant.clone(), zone: wish.home.clone() },
            false => Missing::Combination(wish.home.clone()),
        }
    }

    /// Checks that there are enough backends with room, whatever combinations they have.
    pub(crate) fn check_room(&self, wish: Wish<'_>, kept: &BackendSet) -> Result<(), Missing> {
        let candidates = self.candidates(kept);
        let at_home = candidates.iter().filter(|backend| self.fleet.is_in(**backend, wish.home)).count();
        let (home, elsewhere) = self.fleet.lacks(kept, wish.home);
        let found = kept.len() + candidates.len();
        // What a service keeps and the least numbers are not bounded.
        let most = self.most().max(kept.len() + home + elsewhere);
        match () {
            () if at_home < home => Err(Missing::HomeBackends(wish.home.clone())),
            () if candidates.len() - at_home < elsewhere => Err(Missing::OtherBackends(wish.home.clone())),
            () if found < wish.count => Err(Missing::Backends { wanted: wish.count, found }),
            () if most < wish.count => Err(Missing::Share { wanted: wish.count, most }),
            () => Ok(()),
        }
    }

    /// The most backends of a service: half of the open backends, so that the backends of others do not all lie among
    /// them.
    fn most(&self) -> usize {
        self.fleet.backends.iter().filter(|one| one.is_open).count() / 2
    }

    /// The backends that a service may get in addition to its present ones.
    pub(crate) fn candidates(&self, kept: &BackendSet) -> Vec<usize> {
        let has_room = |backend: &usize| {
            let one = self.fleet.backends[*backend];
            one.is_open && self.load(*backend) < one.capacity as usize && !kept.contains(*backend)
        };
        (0..self.fleet.backends.len()).filter(has_room).collect()
    }

    /// The services that a backend has to serve.
    fn load(&self, backend: usize) -> usize {
        self.occupied.load(backend) + self.reserved[backend]
    }

    /// The part of its capacity that a backend uses, in 2^-20.
    pub(crate) fn used(&self, backend: usize) -> u64 {
        let capacity = u64::from(self.fleet.backends[backend].capacity.max(1));
        ((self.load(backend) as u64) << 20) / capacity
    }

    /// Whether a backend may be the next one of a set with `left` places: the least numbers of zones come first where the places are few.
    pub(crate) fn fits(&self, wish: Wish<'_>, set: &BackendSet, backend: usize) -> bool {
        let left = wish.count.saturating_sub(set.len());
        let (home, elsewhere) = self.fleet.lacks(set, wish.home);
        match self.fleet.is_in(backend, wish.home) {
            true => left > elsewhere,
            false => left > home,
        }
    }

    /// Drops backends that leave no place for the least numbers in other zones: after a service has changed its home zone.
    pub(crate) fn trim(&self, wish: Wish<'_>, kept: &BackendSet) -> BackendSet {
        let mut kept = kept.clone();
        loop {
            let (home, elsewhere) = self.fleet.lacks(&kept, wish.home);
            if kept.is_empty() || kept.len() + home + elsewhere <= wish.count {
                return kept;
            }
            let at_home = kept.iter().filter(|backend| self.fleet.is_in(*backend, wish.home)).count();
            let drops_home = at_home > HOME || kept.len() - at_home <= ELSEWHERE;
            let of_zone = kept.iter().filter(|backend| self.fleet.is_in(*backend, wish.home) == drops_home);
            let Some(fullest) = of_zone.max_by_key(|backend| self.used(*backend)) else { return kept };
            kept.remove(fullest);
        }
    }

    /// Draws the missing backends: of two random ones that fit, the emptier ("The Power of Two Choices", Mitzenmacher 2001), so that
    /// combinations stay random and loads even.
    fn draw(
        &self,
        wish: Wish<'_>,
        kept: &BackendSet,
        candidates: &[usize],
        random: &mut Generator,
    ) -> Option<BackendSet> {
        let mut set = kept.clone();
        while set.len() < wish.count {
            let fits = |backend: &usize| !set.contains(*backend) && self.fits(wish, &set, *backend);
            let pool: Vec<usize> = candidates.iter().copied().filter(fits).collect();
            let mut one = || pool.get(random.below(pool.len() as u64) as usize).copied();
            let (first, second) = (one()?, one()?);
            set.insert(if self.used(second) < self.used(first) { second } else { first });
        }
        Some(set)
    }

    /// Tries all combinations, those of the emptiest backends first.
    fn search(
        &mut self,
        wish: Wish<'_>,
        kept: &BackendSet,
        mut candidates: Vec<usize>,
    ) -> Option<BackendSet> {
        let of_new = (wish.home.clone(), wish.count);
        let is_exhausted = kept.is_empty() && self.exhausted.contains(&of_new);
        if wish.count.saturating_sub(kept.len()) > MAX_SEARCHED || is_exhausted {
            return None;
        }
        candidates.sort_by_key(|backend| self.used(*backend));
        let found = self.search_from(wish, kept, &candidates, &mut { MAX_COMBINATIONS });
        if found.is_none() && kept.is_empty() && !self.is_spare_used {
            self.exhausted.insert(of_new);
        }
        found
    }

    fn search_from(
        &mut self,
        wish: Wish<'_>,
        set: &BackendSet,
        candidates: &[usize],
        budget: &mut u32,
    ) -> Option<BackendSet> {
        if set.len() >= wish.count {
            *budget = budget.saturating_sub(1);
            return self.try_combination(set).then(|| set.clone());
        }
        for (position, backend) in candidates.iter().enumerate() {
            if *budget == 0 {
                return None;
            }
            if !self.fits(wish, set, *backend) {
                continue;
            }
            let rest = &candidates[position + 1..];
            if let Some(found) = self.search_from(wish, &set.with(*backend), rest, budget) {
                return Some(found);
            }
        }
        None
    }

    fn try_combination(&mut self, set: &BackendSet) -> bool {
        self.combinations += 1;
        self.occupied.is_free(set) && self.is_spare(set)
    }

    /// Whether the tenant may take no combination of a home zone. Each set has one or more.
    fn has_no_spare(&self, home: &Zone) -> bool {
        let spare = self.spare.as_ref().zip(self.fleet.zone(home));
        spare.is_some_and(|(spare, zone)| spare[zone] == 0)
    }

    /// Whether the tenant may take the combinations of a set.
    pub(crate) fn is_spare(&mut self, set: &BackendSet) -> bool {
        let Some(spare) = &self.spare else { return true };
        let is_spare = self.fleet.combinations(set).iter().zip(spare).all(|(taken, spare)| taken <= spare);
        self.is_spare_used |= !is_spare;
        is_spare
    }

    /// Replaces one backend of a service, so that it shares not all of them with another; the fullest one if that is possible.
    ///
    /// # Errors
    /// What is missing for the last one that was tried.
    pub(crate) fn replace_one(&mut self, wish: Wish<'_>, old: &BackendSet) -> Result<BackendSet, Missing> {
        let wish = Wish { count: old.len(), ..wish };
        let mut replaced: Vec<usize> = old.iter().collect();
        replaced.sort_by_key(|backend| Reverse(self.used(*backend)));
        let mut result = Err(self.no_combination(wish));
        for backend in replaced {
            result = self.complete(wish, &old.without(backend));
            if result.is_ok() {
                break;
            }
        }
        result
    }
}
