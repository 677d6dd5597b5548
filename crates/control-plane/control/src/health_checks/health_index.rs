//! Index of health checks: which services have a check, and which endpoints have a verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fairmesh_model::{EndpointState, Record, RecordKey, RecordKind, Region, ServiceName};
use fairmesh_rib::{Commit, Entry, Node};
use fairmesh_wire::{record_encoding, v1};
use prost::Message as _;
use tokio::sync::{Notify, watch};

use super::distance_targets::{DistanceTargets, ServingEndpoints};

/// Index of checked services and verdicts, updated by commits. Without it, every record of every tenant would have to
/// be read.
#[derive(Debug, Default)]
pub(crate) struct CheckIndex {
    state: Mutex<IndexState>,
    /// All services whose policies have a health check. Its receivers are notified of changes.
    services: watch::Sender<Arc<BTreeSet<ServiceName>>>,
    /// Notified when verdicts may exist for endpoints that are gone or no longer checked.
    pub(super) stale_verdicts: Arc<Notify>,
    /// Notified when the targets for measuring distances may change.
    pub(super) targets_changed: Arc<Notify>,
}

/// The tasks to wake once the node has applied a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Woken {
    pub(super) stale_verdicts: bool,
    targets: bool,
}

#[derive(Debug, Default)]
struct IndexState {
    services: BTreeSet<ServiceName>,
    verdicts: BTreeMap<Region, BTreeSet<RecordKey>>,
    /// Keys of verdicts that an endpoint is unhealthy.
    unhealthy: BTreeMap<Region, BTreeSet<RecordKey>>,
    serving: ServingEndpoints,
}

impl CheckIndex {
    /// Rebuilds the index. The caller must wake all tasks ([`Woken::ALL`]) once the node has these entries.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let mut state = IndexState::default();
        for (key, entry) in entries {
            state.index(key, Some(&entry.value));
        }
        *self.state() = state;
        self.publish();
    }

    /// Indexes a commit that `node` is about to apply. Returns the tasks to [`wake`](Self::wake) afterwards.
    pub(crate) fn apply(&self, commit: &Commit, node: &Node) -> Woken {
        let (mut checked, mut gone, mut targets) = (false, false, false);
        let mut state = self.state();
        for (key, value) in &commit.changes {
            match RecordKind::of(key) {
                Some(RecordKind::Policy) => {
                    checked |= state.index(key, value.as_deref());
                    targets = true;
                }
                Some(RecordKind::Service) => targets = true,
                Some(RecordKind::Health) => {
                    state.index(key, value.as_deref());
                    // A verdict that was reported while its endpoint was removed would otherwise stay, and
                    // apply to a new instance of the same name.
                    gone |= value.is_some() && !has_endpoint(node, key);
                }
                Some(RecordKind::Endpoint) => {
                    gone |= value.is_none();
                    targets |= state.index(key, value.as_deref());
                }
                _ => {}
            }
        }
        drop(state);
        if checked {
            self.publish();
        }
        Woken { stale_verdicts: checked || gone, targets }
    }

    /// Wakes the tasks, which then read the node.
    pub(crate) fn wake(&self, woken: Woken) {
        if woken.stale_verdicts {
            self.stale_verdicts.notify_one();
        }
        if woken.targets {
            self.targets_changed.notify_one();
        }
    }

    /// Chooses the targets for measuring distances.
    pub(super) fn choose_targets(&self, node: &Node) -> DistanceTargets {
        self.state().serving.choose(node)
    }

    /// All checked services. The receiver is notified of changes.
    pub(super) fn services(&self) -> watch::Receiver<Arc<BTreeSet<ServiceName>>> {
        self.services.subscribe()
    }

    /// Keys of verdicts, by region.
    pub(super) fn verdicts(&self) -> BTreeMap<Region, BTreeSet<RecordKey>> {
        self.state().verdicts.clone()
    }

    /// Number of endpoints with an unhealthy verdict, by region of the endpoint.
    pub(crate) fn unhealthy(&self) -> Vec<(Region, usize)> {
        let state = self.state();
        state.unhealthy.iter().map(|(region, keys)| (region.clone(), keys.len())).collect()
    }

    fn publish(&self) {
        let services = Arc::new(self.state().services.clone());
        self.services.send_replace(services);
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the record at an endpoint's key describes a serving endpoint.
fn serves(key: &str, value: &[u8]) -> bool {
    let endpoint = RecordKey::parse(key).and_then(|key| record_encoding::decode(&key, value));
    matches!(endpoint, Ok(Record::Endpoint(endpoint)) if endpoint.state == EndpointState::Serving)
}

/// Whether the endpoint of a verdict exists.
fn has_endpoint(node: &Node, verdict: &str) -> bool {
    let Ok(RecordKey::Health(service, region, instance)) = RecordKey::parse(verdict) else { return true };
    node.get(&RecordKey::Endpoint(service, region, instance).to_string()).is_some()
}

impl Woken {
    /// Wakes all tasks, after a load.
    pub(crate) const ALL: Self = Self { stale_verdicts: true, targets: true };
}

impl IndexState {
    /// Indexes one record. Returns whether the checked services or the serving endpoints changed.
    fn index(&mut self, text: &Arc<str>, value: Option<&[u8]>) -> bool {
        // Other records need no decoding.
        match RecordKind::of(text) {
            Some(RecordKind::Endpoint) => {
                return self.serving.index(text, value.is_some_and(|value| serves(text, value)));
            }
            Some(RecordKind::Policy | RecordKind::Health) => {}
            _ => return false,
        }
        match RecordKey::parse(text) {
            Ok(RecordKey::Policy(service)) => {
                // Decodes only the message: full validation would compile expressions in the task that
                // applies commits.
                let policy = value.and_then(|value| v1::Policy::decode(value).ok());
                let checked = policy.is_some_and(|policy| policy.health_check.is_some());
                if checked { self.services.insert(service) } else { self.services.remove(&service) }
            }
            Ok(key @ RecordKey::Health(..)) => {
                let RecordKey::Health(_, region, _) = &key else { return false };
                let verdict = value.and_then(|value| v1::Verdict::decode(value).ok());
                let unhealthy = self.unhealthy.entry(region.clone()).or_default();
                // A stale verdict has no effect.
                match verdict.is_some_and(|verdict| !verdict.healthy && !verdict.stale) {
                    true => unhealthy.insert(key.clone()),
                    false => unhealthy.remove(&key),
                };
                // Removed, so that a region stays a metric label only while it has unhealthy endpoints.
                if unhealthy.is_empty() {
                    self.unhealthy.remove(region);
                }
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
