use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{RecordKey, Region, ServiceName};
use fairmesh_rib::{Commit, Entry, Node};
use fairmesh_wire::v1;
use prost::Message as _;
use tokio::sync::{Notify, watch};

/// Index of checked services and of verdicts, updated by commits: finding them otherwise means reading every record of
/// every tenant.
#[derive(Debug, Default)]
pub(crate) struct CheckIndex {
    state: Mutex<IndexState>,
    /// Every service whose policy has a health check, whenever that changes.
    services: watch::Sender<Arc<BTreeSet<ServiceName>>>,
    /// Woken when there may be verdicts on endpoints that are gone or no longer checked.
    pub(crate) stale_verdicts: Notify,
}

#[derive(Debug, Default)]
struct IndexState {
    services: BTreeSet<ServiceName>,
    verdicts: BTreeMap<Region, BTreeSet<RecordKey>>,
}

impl CheckIndex {
    /// Rebuilds the index; the caller notifies `stale_verdicts` once the node has these entries.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let mut state = IndexState::default();
        for (key, entry) in entries {
            state.index(key, Some(&entry.value));
        }
        *self.state() = state;
        self.publish();
    }

    /// Indexes a commit that `node` is about to apply; returns whether there may now be verdicts without an endpoint.
    pub(crate) fn apply(&self, commit: &Commit, node: &Node) -> bool {
        let (mut checked, mut gone) = (false, false);
        let mut state = self.state();
        for (key, value) in &commit.changes {
            match kind(key) {
                "policies" => checked |= state.index(key, value.as_deref()),
                "health" => {
                    state.index(key, value.as_deref());
                    // A verdict reported while its endpoint was removed would stay, and a new instance of that name
                    // would start with it.
                    gone |= value.is_some() && !has_endpoint(node, key);
                }
                "endpoints" => gone |= value.is_none(),
                _ => {}
            }
        }
        drop(state);
        if checked {
            self.publish();
        }
        checked || gone
    }

    /// Every checked service, and later changes.
    pub(super) fn services(&self) -> watch::Receiver<Arc<BTreeSet<ServiceName>>> {
        self.services.subscribe()
    }

    /// Keys of verdicts, by region.
    pub(super) fn verdicts(&self) -> BTreeMap<Region, BTreeSet<RecordKey>> {
        self.state().verdicts.clone()
    }

    fn publish(&self) {
        let services = Arc::new(self.state().services.clone());
        self.services.send_replace(services);
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kind of record at a key of a tenant.
fn kind(key: &str) -> &str {
    key.split('/').nth(3).unwrap_or_default()
}

/// Whether the endpoint of a verdict exists.
fn has_endpoint(node: &Node, verdict: &str) -> bool {
    let Ok(RecordKey::Health(service, region, instance)) = RecordKey::parse(verdict) else { return true };
    node.get(&RecordKey::Endpoint(service, region, instance).to_string()).is_some()
}

impl IndexState {
    /// Indexes one record; returns whether the set of checked services changed.
    fn index(&mut self, text: &str, value: Option<&[u8]>) -> bool {
        // Most records are neither, and need no decoding.
        if !matches!(kind(text), "policies" | "health") {
            return false;
        }
        match RecordKey::parse(text) {
            Ok(RecordKey::Policy(service)) => {
                // Decodes the message only: validation would compile its expressions, in the task that applies commits.
                let policy = value.and_then(|value| v1::Policy::decode(value).ok());
                let checked = policy.is_some_and(|policy| policy.health_check.is_some());
                if checked { self.services.insert(service) } else { self.services.remove(&service) }
            }
            Ok(key @ RecordKey::Health(..)) => {
                let RecordKey::Health(_, region, _) = &key else { return false };
                let here = self.verdicts.entry(region.clone()).or_default();
                match value {
                    Some(_) => here.insert(key),
                    None => here.remove(&key),
                };
                false
            }
            _ => false,
        }
    }
}
