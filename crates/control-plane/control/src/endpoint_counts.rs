use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{EndpointState, Record, RecordKey};
use fairmesh_rib::{Commit, Entry};
use fairmesh_wire::record_encoding;

/// All states, in the order of [`EndpointCounts::counts`].
pub(crate) const STATES: [EndpointState; 4] =
    [EndpointState::Starting, EndpointState::Serving, EndpointState::Draining, EndpointState::Lost];

/// Number of endpoints by state, updated by commits. In a large fleet, reading all endpoints for every scrape would
/// delay readers.
#[derive(Debug, Default)]
pub(crate) struct EndpointCounts(Mutex<HashMap<Arc<str>, EndpointSummary>>);

#[derive(Clone, Copy, Debug)]
struct EndpointSummary {
    state: EndpointState,
    leased: bool,
}

impl EndpointCounts {
    /// Counts all entries from scratch.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let summary =
            entries.iter().filter_map(|(key, entry)| Some((key.clone(), summarize(key, &entry.value)?)));
        *self.endpoints() = summary.collect();
    }

    /// Applies a commit.
    pub(crate) fn apply(&self, commit: &Commit) {
        let mut endpoints = self.endpoints();
        for (key, value) in &commit.changes {
            match value.as_ref().and_then(|value| summarize(key, value)) {
                Some(summary) => endpoints.insert(key.clone(), summary),
                None => endpoints.remove(key),
            };
        }
    }

    /// Number of endpoints in each state, in the order of [`STATES`].
    pub(crate) fn counts(&self) -> [usize; STATES.len()] {
        let endpoints = self.endpoints();
        STATES.map(|state| endpoints.values().filter(|summary| summary.state == state).count())
    }

    /// Number of endpoints with a live lease.
    pub(crate) fn leases(&self) -> usize {
        let held = |summary: &&EndpointSummary| summary.leased && summary.state != EndpointState::Lost;
        self.endpoints().values().filter(held).count()
    }

    fn endpoints(&self) -> MutexGuard<'_, HashMap<Arc<str>, EndpointSummary>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Summary of the endpoint stored at `key`; `None` for records of other kinds.
fn summarize(key: &str, value: &[u8]) -> Option<EndpointSummary> {
    if key.split('/').nth(3) != Some("endpoints") {
        return None;
    }
    match record_encoding::decode(&RecordKey::parse(key).ok()?, value).ok()? {
        Record::Endpoint(endpoint) => {
            Some(EndpointSummary { state: endpoint.state, leased: endpoint.lease.is_some() })
        }
        _ => None,
    }
}
