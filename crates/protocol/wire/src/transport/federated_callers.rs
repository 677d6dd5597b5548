//! Callers of other trust domains that the policy of a server names.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use fairmesh_model::SpiffeId;

/// Callers of federated trust domains that a server accepts: those whose whole id its policy names.
#[derive(Debug, Default)]
pub struct FederatedCallers(RwLock<Arc<BTreeSet<SpiffeId>>>);

impl FederatedCallers {
    /// Accepts these from now on, and no others. Open connections stay open: who decides on requests refuses them.
    pub fn accept(&self, callers: BTreeSet<SpiffeId>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(callers);
    }

    /// Whether a caller is accepted.
    pub fn accepts(&self, caller: &SpiffeId) -> bool {
        self.current().contains(caller)
    }

    /// Those that are accepted now.
    pub fn current(&self) -> Arc<BTreeSet<SpiffeId>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
