use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Limits how many resources each local user holds at a time, so that no user exhausts the resources of others.
/// Clones share their state.
#[derive(Clone, Debug)]
pub struct UserPlaces {
    most: usize,
    /// Number of taken slots by user id. Users without slots are not stored.
    taken: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A user's slot, held until dropped.
#[derive(Debug)]
pub struct UserPlace {
    places: UserPlaces,
    uid: u32,
}

impl UserPlaces {
    /// Creates a limit of `most` slots per user.
    pub fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// Takes a slot for the user; `None` if the user has no free slot.
    pub fn enter(&self, uid: u32) -> Option<UserPlace> {
        let mut users = self.users();
        let taken = users.entry(uid).or_default();
        if *taken >= self.most {
            return None;
        }
        *taken += 1;
        Some(UserPlace { places: self.clone(), uid })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UserPlace {
    /// Number of other slots that the same user holds.
    pub fn others(&self) -> usize {
        self.places.users().get(&self.uid).map_or(0, |taken| taken.saturating_sub(1))
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        let mut users = self.places.users();
        match users.get_mut(&self.uid) {
            Some(taken) if *taken > 1 => *taken -= 1,
            _ => drop(users.remove(&self.uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_places_are_bounded_per_user() {
        let places = UserPlaces::new(2);
        let mut taken: Vec<_> = (0..2).map(|_| places.enter(7).unwrap()).collect();
        assert!(places.enter(7).is_none());
        assert_eq!(taken[0].others(), 1);
        let other = places.enter(8).unwrap();
        taken.pop();
        taken.push(places.enter(7).unwrap());
        assert!(places.enter(7).is_none());
        drop((taken, other));
        assert!(places.users().is_empty(), "a user without a place is not stored");
        assert!(places.enter(7).is_some());
    }
}
