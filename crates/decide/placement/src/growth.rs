//! Adding backends to a service that grows.

use fairmesh_model::arith::mix_pair;

use crate::{
    backend_choice::{Draft, Wish},
    backend_set::BackendSet,
    input::MAX_ADDED_PERMILLE,
    missing_backends::Missing,
};

/// Maximum number of services that one growth may move. With 10,000 services on 60 backends, growth from three to ten
/// backends moves about ten.
const MAX_DISPLACED: usize = 64;
/// Maximum number of other tenants' services among the moved ones.
const MAX_DISPLACED_OF_OTHERS: usize = 16;

impl Draft<'_> {
    /// Gives a placed service the backends it lacks. For each service whose backends would all be among them, one
    /// backend is replaced, so that the other service keeps its number of backends.
    ///
    /// # Errors
    /// What is missing. Nothing is changed then.
    pub(crate) fn grow(&mut self, wishes: &[Wish<'_>], wish: Wish<'_>) -> Result<(), Missing> {
        let Some(before) = self.occupied.remove(wish.service) else { return Ok(()) };
        let grown = self.grown(wishes, wish, &before);
        let set = match grown.and_then(|set| self.claim(wishes, wish, set)) {
            Ok(set) => set,
            Err(error) => {
                self.occupied.insert(wish.service, before.clone());
                let error = self.check_room(wish, &before).err().unwrap_or(error);
                return Err(if wish.added > 0 { Missing::Relief(wish.home.clone()) } else { error });
            }
        };
        // The tenant's own limit of combinations does not apply to the services that are moved: they keep their number
        // of combinations.
        let spare = self.spare.take();
        let displaced = self.displace(wishes, wish, (before, set));
        self.spare = spare;
        displaced
    }

    /// Places a service on a set, and replaces one backend of each service that is within the set.
    fn displace(
        &mut self,
        wishes: &[Wish<'_>],
        wish: Wish<'_>,
        (before, set): (BackendSet, BackendSet),
    ) -> Result<(), Missing> {
        let displaced = self.occupied.shorter_within(&set);
        self.occupied.insert(wish.service, set);
        let mut moved: Vec<(usize, BackendSet)> = Vec::new();
        for service in displaced {
            let Some(old) = self.occupied.remove(service) else { continue };
            let new = self.replace_one(wishes[service], &old);
            let is_moved = new.is_ok();
            self.occupied.insert(service, new.unwrap_or_else(|_| old.clone()));
            moved.push((service, old));
            if !is_moved {
                moved.push((wish.service, before));
                for (service, old) in moved {
                    self.occupied.remove(service);
                    self.occupied.insert(service, old);
                }
                return Err(Missing::Combination(wish.home.clone()));
            }
        }
        Ok(())
    }

    /// Adds backends one by one. Each time the backend is chosen for which the fewest services of others lie within the
    /// new set; ties go to the backend with the fewest services.
    fn grown(
        &mut self,
        wishes: &[Wish<'_>],
        wish: Wish<'_>,
        before: &BackendSet,
    ) -> Result<BackendSet, Missing> {
        self.check_room(wish, before)?;
        let mut set = before.clone();
        while set.len() < wish.count {
            let mut best: Option<((usize, usize, u64, u64), usize)> = None;
            let is_added = set.len() + wish.added >= wish.count;
            for backend in self.candidates(&set) {
                if !self.fits(wish, &set, backend) || (is_added && !self.may_relieve(wish, backend)) {
                    continue;
                }
                let covered = self.occupied.shorter_within_on(&set.with(backend), backend);
                // Load of one service moves no other, and none moves a service that an operator placed.
                if covered.iter().any(|service| is_added || wishes[*service].is_pinned) {
                    continue;
                }
                let of_others = of_others(wishes, wish, &covered);
                let chance = mix_pair(self.seed ^ wish.service as u64, backend as u64);
                // Among backends that take over calls, prefer the one with the most spare CPU.
                let used = if is_added { u64::from(self.cpu(backend)) } else { self.used(backend) };
                let cost = (of_others, covered.len(), used, chance);
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, backend));
                }
            }
            let (_, backend) = best.ok_or_else(|| self.no_combination(wish))?;
            if is_added {
                self.relieving.insert(backend);
            }
            set.insert(backend);
        }
        Ok(set)
    }

    /// Whether a backend has spare CPU for calls of a growing service.
    fn may_relieve(&self, wish: Wish<'_>, backend: usize) -> bool {
        self.fleet.is_in(backend, wish.home)
            && self.cpu(backend) <= MAX_ADDED_PERMILLE
            && !self.relieving.contains(&backend)
    }

    /// CPU utilisation of a backend, in thousandths. An unknown utilisation counts as busy.
    fn cpu(&self, backend: usize) -> u32 {
        self.fleet.backends[backend].used_permille.unwrap_or(u32::MAX)
    }

    /// Checks that a set lies within no other service, that few services lie within the set, and that the tenant may
    /// take the set.
    fn claim(&mut self, wishes: &[Wish<'_>], wish: Wish<'_>, set: BackendSet) -> Result<BackendSet, Missing> {
        self.combinations += 1;
        let displaced: Vec<usize> = self.occupied.shorter_within(&set).into_iter().collect();
        let is_claimed = !self.occupied.has(&set)
            && !self.occupied.lies_within_another(&set)
            && displaced.len() <= MAX_DISPLACED
            && of_others(wishes, wish, &displaced) <= MAX_DISPLACED_OF_OTHERS
            && self.is_spare(&set);
        is_claimed.then_some(set).ok_or_else(|| self.no_combination(wish))
    }
}

/// Number of `services` that belong to other tenants.
fn of_others(wishes: &[Wish<'_>], wish: Wish<'_>, services: &[usize]) -> usize {
    services.iter().filter(|service| wishes[**service].name.tenant != wish.name.tenant).count()
}
