//! The backends by their positions.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Label, Zone};

use crate::{
    backend_set::BackendSet,
    input::{Backend, ELSEWHERE, HOME},
};

/// All backends, in the order of their names.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    pub(crate) backends: Vec<&'a Backend>,
    positions: BTreeMap<&'a Label, usize>,
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(backends: &'a [Backend]) -> Self {
        // Of two with one name, which no records have, the last one counts.
        let by_name: BTreeMap<&Label, &Backend> = backends.iter().map(|one| (&one.name, one)).collect();
        let positions = by_name.keys().enumerate().map(|(position, name)| (*name, position)).collect();
        Self { backends: by_name.into_values().collect(), positions }
    }

    pub(crate) fn none(&self) -> BackendSet {
        BackendSet::empty(self.backends.len())
    }

    /// The backends with these names that still exist.
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

    /// How many backends in the home zone, and in others, are missing of the least numbers.
    pub(crate) fn lacks(&self, set: &BackendSet, home: &Zone) -> (usize, usize) {
        let at_home = set.iter().filter(|backend| self.is_in(*backend, home)).count();
        (HOME.saturating_sub(at_home), ELSEWHERE.saturating_sub(set.len() - at_home))
    }

    /// Whether a service with these backends survives the loss of a backend in its home zone, and the loss of the zone.
    pub(crate) fn is_spread(&self, set: &BackendSet, home: &Zone) -> bool {
        self.lacks(set, home) == (0, 0)
    }
}
