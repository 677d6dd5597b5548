use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use fairmesh_model::{KeyRange, Role, ServiceName};

use super::cell::{Cell, Wanted};

/// The most cells of a mesh: one for each service, and for each shard and role that is called.
const MOST: usize = 4096;

/// Which cell is for which calls.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// By the first key, which is `None` for calls without one.
    by_role: HashMap<(ServiceName, Option<Role>), BTreeMap<Option<u128>, Place>>,
    len: usize,
}

#[derive(Debug)]
struct Place {
    last: Option<u128>,
    cell: Arc<Cell>,
}

impl Places {
    /// The cell for such calls, where there is one.
    pub(super) fn find(&self, wanted: &Wanted) -> Option<Arc<Cell>> {
        let key = wanted.key.map(|key| key.0);
        let cells = self.by_role.get(&(wanted.service.clone(), wanted.role.clone()))?;
        let (first, place) = cells.range(..=key).next_back()?;
        // Without a key comes before all keys, and is none of them.
        let fits = first.is_some() == key.is_some() && key <= place.last;
        fits.then(|| Arc::clone(&place.cell))
    }

    /// Puts a cell in, for one key until its first leases say for which.
    pub(super) fn put(&mut self, wanted: Wanted, cell: Arc<Cell>) {
        if self.len >= MOST {
            self.remove_oldest();
        }
        let key = wanted.key.map(|key| key.0);
        let cells = self.by_role.entry((wanted.service, wanted.role)).or_default();
        self.len += usize::from(cells.insert(key, Place { last: key, cell }).is_none());
    }

    /// The leases of a cell are for these keys, as long as it has a place.
    pub(super) fn extend(&mut self, wanted: &Wanted, cell: &Arc<Cell>, keys: KeyRange) {
        if wanted.key.is_none() || !self.remove(wanted, cell) {
            return;
        }
        let cells = self.by_role.entry((wanted.service.clone(), wanted.role.clone())).or_default();
        let place = Place { last: Some(keys.last.0), cell: Arc::clone(cell) };
        self.len += usize::from(cells.insert(Some(keys.first.0), place).is_none());
    }

    /// Takes a cell out; whether it was there.
    pub(super) fn remove(&mut self, wanted: &Wanted, cell: &Arc<Cell>) -> bool {
        let name = (wanted.service.clone(), wanted.role.clone());
        let Some(cells) = self.by_role.get_mut(&name) else { return false };
        let before = cells.len();
        cells.retain(|_, place| !Arc::ptr_eq(&place.cell, cell));
        let removed = before - cells.len();
        self.len -= removed;
        if cells.is_empty() {
            self.by_role.remove(&name);
        }
        removed > 0
    }

    fn remove_oldest(&mut self) {
        let all = self.by_role.iter().flat_map(|(name, cells)| {
            cells.iter().map(move |(key, place)| (place.cell.last_used(), name, key))
        });
        let oldest = all.min_by_key(|(used, ..)| *used).map(|(_, name, key)| (name.clone(), *key));
        if let Some((name, key)) = oldest
            && let Some(cells) = self.by_role.get_mut(&name)
        {
            self.len -= usize::from(cells.remove(&key).is_some());
            if cells.is_empty() {
                self.by_role.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::ShardKey;

    use super::*;

    fn wanted(key: Option<u128>, role: Option<&str>) -> Wanted {
        let service = ServiceName::new("shop/cart").unwrap();
        Wanted { service, role: role.map(|role| Role::new(role).unwrap()), key: key.map(ShardKey) }
    }

    fn put(places: &mut Places, wanted: &Wanted) -> Arc<Cell> {
        let cell = Arc::new(Cell::new(wanted.service.clone()));
        places.put(wanted.clone(), Arc::clone(&cell));
        cell
    }

    fn found(places: &Places, wanted: &Wanted, cell: &Arc<Cell>) -> bool {
        places.find(wanted).is_some_and(|found| Arc::ptr_eq(&found, cell))
    }

    #[test]
    fn leases_are_found_by_every_key_that_they_are_for_and_by_no_other() {
        let mut places = Places::default();
        let five = put(&mut places, &wanted(Some(618), None));
        assert!(found(&places, &wanted(Some(618), None), &five));
        assert!(places.find(&wanted(Some(619), None)).is_none(), "nothing is known of it yet");
        let keys = KeyRange { first: ShardKey(500), last: ShardKey(899) };
        places.extend(&wanted(Some(618), None), &five, keys);
        for key in [500, 618, 899] {
            assert!(found(&places, &wanted(Some(key), None), &five), "{key}");
        }
        for other in [
            wanted(Some(499), None),
            wanted(Some(900), None),
            wanted(Some(618), Some("primary")),
            wanted(None, None),
        ] {
            assert!(places.find(&other).is_none(), "{other:?}");
        }
        let keyless = put(&mut places, &wanted(None, None));
        assert!(found(&places, &wanted(None, None), &keyless));
        assert!(places.find(&wanted(Some(499), None)).is_none(), "no key is not a key");
        assert!(
            places.remove(&wanted(Some(618), None), &five) && !places.remove(&wanted(Some(618), None), &five)
        );
        assert_eq!(places.len, 1);
    }

    #[test]
    fn the_cells_are_bounded_and_the_one_used_longest_ago_goes() {
        let mut places = Places::default();
        let used = put(&mut places, &wanted(Some(0), None));
        let cells: Vec<_> =
            (1..=MOST as u128).map(|key| put(&mut places, &wanted(Some(key), None))).collect();
        assert_eq!((places.len, cells.len()), (MOST, MOST));
        assert!(places.find(&wanted(Some(0), None)).is_none());
        drop(used);
    }
}
