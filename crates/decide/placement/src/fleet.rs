//! The backends of the fleet, numbered by position.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Label, Zone};

use crate::{
    backend_set::BackendSet,
    input::{Backend, ELSEWHERE, HOME},
};

/// All backends, ordered by name.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    pub(crate) backends: Vec<&'a Backend>,
    positions: BTreeMap<&'a Label, usize>,
    /// Zone of each backend, as a position among all zones.
    zones: Vec<usize>,
    zone_names: Vec<&'a Zone>,
}

impl<'a> Fleet<'a> {
    /// Sandboxes are left out.
    pub(crate) fn new(backends: &'a [Backend]) -> Self {
        let ordinary = backends.iter().filter(|one| !one.is_sandbox);
        // Records never have two backends with one name. If it happens, the last one counts.
        let by_name: BTreeMap<&Label, &Backend> = ordinary.map(|one| (&one.name, one)).collect();
        let positions = by_name.keys().enumerate().map(|(position, name)| (*name, position)).collect();
        let backends: Vec<&Backend> = by_name.into_values().collect();
        let zone_names: BTreeSet<&Zone> = backends.iter().map(|one| &one.zone).collect();
        let zone_names: Vec<&Zone> = zone_names.into_iter().collect();
        let zones = backends.iter().filter_map(|one| zone_names.binary_search(&&one.zone).ok()).collect();
        Self { backends, positions, zones, zone_names }
    }

    pub(crate) fn none(&self) -> BackendSet {
        BackendSet::empty(self.backends.len())
    }

    /// The set of the existing backends with these names.
    pub(crate) fn set_of(&self, names: &BTreeSet<Label>) -> BackendSet {
        let mut set = self.none();
        names.iter().filter_map(|name| self.positions.get(name)).for_each(|position| set.insert(*position));
        set
    }

    pub(crate) fn names_of(&self, set: &BackendSet) -> BTreeSet<Label> {
        set.iter().map(|backend| self.backends[backend].name.clone()).collect()
    }

    pub(crate) fn is_in(&self, backend: usize, zone: &Zone) -> bool {
        self.backends[backend].zone == *zone
    }

    /// Backends that accept further services.
    pub(crate) fn open(&self) -> BackendSet {
        let mut open = self.none();
        let positions = (0..self.backends.len()).filter(|backend| self.backends[*backend].is_open);
        positions.for_each(|backend| open.insert(backend));
        open
    }

    /// Position of a zone among those of the fleet.
    pub(crate) fn zone(&self, name: &Zone) -> Option<usize> {
        self.zone_names.binary_search(&name).ok()
    }

    /// Number of minimum-size combinations within a set, by home zone. No other service can have one of these
    /// combinations.
    pub(crate) fn combinations(&self, set: &BackendSet) -> Vec<u64> {
        let mut in_zone = vec![0_u64; self.zone_names.len()];
        set.iter().for_each(|backend| in_zone[self.zones[backend]] += 1);
        let all = set.len() as u64;
        // Two backends at home, one elsewhere.
        in_zone.into_iter().map(|home| home * home.saturating_sub(1) / 2 * (all - home)).collect()
    }

    /// Number of backends missing for the minimum in the home zone and in other zones.
    pub(crate) fn lacks(&self, set: &BackendSet, home: &Zone) -> (usize, usize) {
        let at_home = set.iter().filter(|backend| self.is_in(*backend, home)).count();
        (HOME.saturating_sub(at_home), ELSEWHERE.saturating_sub(set.len() - at_home))
    }

    /// Whether a service with these backends survives the loss of one backend in its home zone, and the loss of the
    /// whole zone.
    pub(crate) fn is_spread(&self, set: &BackendSet, home: &Zone) -> bool {
        self.lacks(set, home) == (0, 0)
    }
}
