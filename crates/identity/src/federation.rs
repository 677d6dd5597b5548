//! Other trust domains, as a process knows them.

use std::sync::{Arc, PoisonError, RwLock};

use fairmesh_model::{FederatedDomains, TrustDomain};

use crate::{IdentityError, Trust};

/// The federated trust domains that a process knows: the same wherever it verifies certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Federation(Arc<RwLock<Arc<Vec<Trust>>>>);

impl Federation {
    /// Replaces them. A domain whose roots are no certificates is left out, so that one mistake ends no other.
    pub(crate) fn set(&self, domains: FederatedDomains) {
        let read = |bundle| {
            let trust: Result<Trust, IdentityError> = Trust::new(bundle);
            trust.inspect_err(|error| tracing::error!(%error, "a federated trust domain is not used")).ok()
        };
        let all = domains.bundles.into_iter().filter_map(read).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(all);
    }

    /// What verifies certificates of a domain; `None` if it is not federated.
    pub(crate) fn find(&self, domain: &TrustDomain) -> Option<Trust> {
        self.current().iter().find(|trust| trust.domain() == domain).cloned()
    }

    /// Whether certificates of a domain are verified.
    pub(crate) fn has(&self, domain: &TrustDomain) -> bool {
        self.current().iter().any(|trust| trust.domain() == domain)
    }

    fn current(&self) -> Arc<Vec<Trust>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
