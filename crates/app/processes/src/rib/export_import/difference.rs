use std::{collections::BTreeMap, sync::Arc};

use fairmesh_rib::Entry;

/// Differences between the store and a file, by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Difference {
    /// Keys that are only in the file.
    pub(super) missing: Vec<String>,
    /// Keys that are in both, with different values.
    pub(super) different: Vec<String>,
    /// Keys that are only in the store.
    pub(super) further: Vec<String>,
}

impl Difference {
    /// Compares keys and values; revisions differ between stores.
    pub(super) fn between(file: &[(Arc<str>, Entry)], stored: &[(Arc<str>, Entry)]) -> Self {
        let mut stored: BTreeMap<_, _> = stored.iter().map(|(key, entry)| (&**key, &entry.value)).collect();
        let mut difference = Self::default();
        for (key, entry) in file {
            match stored.remove(&**key) {
                None => difference.missing.push(key.to_string()),
                Some(value) if *value != entry.value => difference.different.push(key.to_string()),
                Some(_) => {}
            }
        }
        difference.further = stored.into_keys().map(str::to_owned).collect();
        difference
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// All kinds of differences, each with its name.
    pub(super) fn kinds(&self) -> [(&'static str, &Vec<String>); 3] {
        [
            ("only in the file", &self.missing),
            ("different from the file", &self.different),
            ("only in the store", &self.further),
        ]
    }
}
