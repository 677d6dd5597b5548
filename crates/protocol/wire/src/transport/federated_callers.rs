//! Callers of other trust domains that a server's policy names.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use fairmesh_model::SpiffeId;

/// Callers of federated trust domains that a server accepts. Its policy names each of them by full id.
#[derive(Debug, Default)]
pub struct FederatedCallers(RwLock<Arc<BTreeSet<SpiffeId>>>);

impl FederatedCallers {
    /// Replaces the set of accepted callers. Open connections stay open, but request
    /// authorization refuses their requests.
    pub fn accept(&self, callers: BTreeSet<SpiffeId>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
    }

    /// Whether a caller is accepted.
    pub fn accepts(&self, caller: &SpiffeId) -> bool {
        self.current().contains(caller)
    }

    /// The currently accepted callers.
    pub fn current(&self) -> Arc<BTreeSet<SpiffeId>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
