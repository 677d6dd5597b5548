//! Choice of the backends that a service still needs.

use std::{cmp::Reverse, collections::BTreeSet};

use fairmesh_model::{
    ServiceName, Zone,
    arith::{Generator, hash_text, mix_pair},
};

use crate::{
    backend_set::BackendSet,
    fleet::Fleet,
    input::{ELSEWHERE, HOME},
    missing_backends::Missing,
    occupied_backends::Occupied,
};

/// Number of random combinations to try before an exhaustive search. With half of all combinations taken, all draws
/// fail for one service in four billion.
const DRAWS: usize = 32;
/// Maximum number of missing backends for an exhaustive search over all combinations: 60 backends have 34,220
/// combinations of three.
const MAX_SEARCHED: usize = 3;
const MAX_COMBINATIONS: u32 = 1 << 16;

/// A service and what it asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// Position of the service among all services.
    pub(crate) service: usize,
    pub(crate) name: &'a ServiceName,
    pub(crate) home: &'a Zone,
    pub(crate) count: usize,
    /// Number of backends to add because the service's calls have grown.
    pub(crate) added: usize,
    /// Number of backends of its placement in force; those that are deleted count.
    pub(crate) had: usize,
    /// How many backends of the home zone it gives back.
    pub(crate) given_back: usize,
    /// Whether it keeps its backends.
    pub(crate) is_pinned: bool,
}

/// A plan under construction.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) fleet: Fleet<'a>,
    pub(crate) occupied: Occupied,
    /// Places reserved on each backend for services that lost other backends and are not placed again yet.
    pub(crate) reserved: Vec<usize>,
    pub(crate) seed: u64,
    /// Backends that take over calls of a growing service in this plan. Each takes over calls of only one service,
    /// since its spare CPU afterwards is unknown.
    pub(crate) relieving: BTreeSet<usize>,
    /// Number of combinations tried.
    pub(crate) combinations: u64,
    /// Home zones and set sizes for which a search found no combination for a new service.
    exhausted: BTreeSet<(Zone, usize)>,
    /// Combinations that the tenant of the current service may still take, by home zone. `None` means no limit.
    pub(crate) spare: Option<Vec<u64>>,
    /// Whether the limit in `spare` alone kept the service from a combination.
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

    /// Adds backends to `kept` until the service has as many as it asks for. The service itself must not be placed.
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

    /// The reason why there is no combination for a service.
    pub(crate) fn no_combination(&self, wish: Wish<'_>) -> Missing {
        match self.is_spare_used {
            true => Missing::TenantCombinations { tenant: wish.name.tenant.clone(), zone: wish.home.clone() },
            false => Missing::Combination(wish.home.clone()),
        }
    }

    /// Checks that enough backends have room, regardless of their combinations.
    pub(crate) fn check_room(&self, wish: Wish<'_>, kept: &BackendSet) -> Result<(), Missing> {
        let candidates = self.candidates(kept);
        let at_home = candidates.iter().filter(|backend| self.fleet.is_in(**backend, wish.home)).count();
        let (home, elsewhere) = self.fleet.lacks(kept, wish.home);
        let found = kept.len() + candidates.len();
        // Backends that the service keeps, and the minimum per zone, are exempt from the limit.
        let most = self.most().max(kept.len() + home + elsewhere);
        match () {
            () if at_home < home => Err(Missing::HomeBackends(wish.home.clone())),
            () if candidates.len() - at_home < elsewhere => Err(Missing::OtherBackends(wish.home.clone())),
            () if found < wish.count => Err(Missing::Backends { wanted: wish.count, found }),
            () if most < wish.count => Err(Missing::Share { wanted: wish.count, most }),
            () => Ok(()),
        }
    }

    /// Maximum number of backends of a service: half of the open backends, so that its backends do not cover those of
    /// other services.
    fn most(&self) -> usize {
        self.fleet.backends.iter().filter(|one| one.is_open).count() / 2
    }

    /// Backends that the service may get in addition to `kept`.
    pub(crate) fn candidates(&self, kept: &BackendSet) -> Vec<usize> {
        let has_room = |backend: &usize| {
            let one = self.fleet.backends[*backend];
            one.is_open && self.load(*backend) < one.capacity as usize && !kept.contains(*backend)
        };
        (0..self.fleet.backends.len()).filter(has_room).collect()
    }

    /// Number of services that a backend serves, including reserved places.
    fn load(&self, backend: usize) -> usize {
        self.occupied.load(backend) + self.reserved[backend]
    }

    /// Used share of a backend's capacity, in units of 2^-20.
    pub(crate) fn used(&self, backend: usize) -> u64 {
        let capacity = u64::from(self.fleet.backends[backend].capacity.max(1));
        ((self.load(backend) as u64) << 20) / capacity
    }

    /// Whether a backend may be added to a set with `left` free places. When places are scarce, the minimum per zone
    /// takes precedence.
    pub(crate) fn fits(&self, wish: Wish<'_>, set: &BackendSet, backend: usize) -> bool {
        let left = wish.count.saturating_sub(set.len());
        let (home, elsewhere) = self.fleet.lacks(set, wish.home);
        match self.fleet.is_in(backend, wish.home) {
            true => left > elsewhere,
            false => left > home,
        }
    }

    /// Drops backends that leave no place for the minimum in other zones. Needed after a service has changed its home
    /// zone.
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

    /// Draws the missing backends at random: the emptier of two random candidates ("The Power of Two Choices",
    /// Mitzenmacher 2001), so that combinations stay random and loads even.
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

    /// Tries all combinations, starting with the emptiest backends.
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

    /// Whether the tenant may take no further combination in the home zone `home`. Each set uses at least one.
    fn has_no_spare(&self, home: &Zone) -> bool {
        let spare = self.spare.as_ref().zip(self.fleet.zone(home));
        spare.is_some_and(|(spare, zone)| spare[zone] == 0)
    }

    /// Whether the tenant may take the combinations within a set.
    pub(crate) fn is_spare(&mut self, set: &BackendSet) -> bool {
        let Some(spare) = &self.spare else { return true };
        let is_spare = self.fleet.combinations(set).iter().zip(spare).all(|(taken, spare)| taken <= spare);
        self.is_spare_used |= !is_spare;
        is_spare
    }

    /// Replaces one backend of a service so that another service does not contain all of its backends. The fullest
    /// backend goes first if possible.
    ///
    /// # Errors
    /// What is missing for the last backend tried.
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
