use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{EndpointState, Record, RecordKey};
use fairmesh_rib::{Commit, Entry};
use fairmesh_wire::records;

/// Every state, in the order of [`Census::counts`].
pub(crate) const STATES: [EndpointState; 4] =
    [EndpointState::Starting, EndpointState::Serving, EndpointState::Draining, EndpointState::Lost];

/// Which endpoints there are, noted as they change: reading all of them for every scrape of the metrics would hold
/// readers up in a large fleet.
#[derive(Debug, Default)]
pub(crate) struct Census(Mutex<HashMap<Arc<str>, Noted>>);

#[derive(Clone, Copy, Debug)]
struct Noted {
    state: EndpointState,
    leased: bool,
}

impl Census {
    /// Counts anew.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let noted = entries.iter().filter_map(|(key, entry)| Some((key.clone(), note(key, &entry.value)?)));
        *self.endpoints() = noted.collect();
    }

    /// Counts what a commit changed.
    pub(crate) fn apply(&self, commit: &Commit) {
        let mut endpoints = self.endpoints();
        for (key, value) in &commit.changes {
            match value.as_ref().and_then(|value| note(key, value)) {
                Some(noted) => endpoints.insert(key.clone(), noted),
                None => endpoints.remove(key),
            };
        }
    }

    /// The number of endpoints in each of [`STATES`].
    pub(crate) fn counts(&self) -> [usize; STATES.len()] {
        let endpoints = self.endpoints();
        STATES.map(|state| endpoints.values().filter(|noted| noted.state == state).count())
    }

    /// The number of endpoints that keep a lease.
    pub(crate) fn leases(&self) -> usize {
        let held = |noted: &&Noted| noted.leased && noted.state != EndpointState::Lost;
        self.endpoints().values().filter(held).count()
    }

    fn endpoints(&self) -> MutexGuard<'_, HashMap<Arc<str>, Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be noted of the endpoint at `key`; nothing where another record stands.
fn note(key: &str, value: &[u8]) -> Option<Noted> {
    if key.split('/').nth(3) != Some("endpoints") {
        return None;
    }
    match records::decode(&RecordKey::parse(key).ok()?, value).ok()? {
        Record::Endpoint(endpoint) => Some(Noted { state: endpoint.state, leased: endpoint.lease.is_some() }),
        _ => None,
    }
}
