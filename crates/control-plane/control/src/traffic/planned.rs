use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use fairmesh_model::{RecordKey, ServiceName};
use fairmesh_rib::{Commit, Entry};
use fairmesh_wire::records;

/// The services whose policies ask for a planner, updated by commits: finding them otherwise means reading every policy.
#[derive(Debug, Default)]
pub(crate) struct PlannedServices(Mutex<Arc<BTreeSet<ServiceName>>>);

impl PlannedServices {
    /// Rebuilds the index.
    pub(crate) fn load(&self, entries: &[(Arc<str>, Entry)]) {
        let policies = entries.iter().filter_map(|(key, entry)| Some((policy_of(key)?, &entry.value)));
        let planned = policies.filter(|(_, value)| is_planned(value)).map(|(service, _)| service).collect();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(planned);
    }

    /// Indexes a commit.
    pub(crate) fn apply(&self, commit: &Commit) {
        for (key, value) in &commit.changes {
            let Some(service) = policy_of(key) else { continue };
            let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let is_planned = value.as_deref().is_some_and(is_planned);
            if is_planned != services.contains(&service) {
                let services = Arc::make_mut(&mut services);
                if is_planned {
                    services.insert(service)
                } else {
                    services.remove(&service)
                };
            }
        }
    }

    /// All of them.
    pub(super) fn all(&self) -> Arc<BTreeSet<ServiceName>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The service of the policy at a key.
fn policy_of(key: &str) -> Option<ServiceName> {
    if !records::is_costly(key) {
        return None;
    }
    match RecordKey::parse(key) {
        Ok(RecordKey::Policy(service)) => Some(service),
        _ => None,
    }
}

fn is_planned(policy: &[u8]) -> bool {
    records::traffic(policy).is_some_and(|traffic| traffic.is_planned())
}
