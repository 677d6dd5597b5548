//! The federated trust domains that a process knows.

use std::sync::{Arc, PoisonError, RwLock};

use fairmesh_model::{FederatedDomains, TrustBundle, TrustDomain};

use crate::{IdentityError, Refused, Trust, chain_verification::RootDigest};

/// The federated trust domains. Shared by all parts of the process that verify certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Federation(Arc<RwLock<Arc<Vec<Trust>>>>);

impl Federation {
    /// Replaces the domains and returns whether they changed. Skips a domain with an invalid root, so that one
    /// mistake does not affect the other domains.
    pub(crate) fn set(&self, domains: FederatedDomains) -> bool {
        let read = |bundle| {
            let trust: Result<Trust, IdentityError> = Trust::new(bundle);
            trust.inspect_err(|error| tracing::error!(%error, "a federated trust domain is not used")).ok()
        };
        let all: Vec<Trust> = domains.bundles.into_iter().filter_map(read).collect();
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let changed = !current.iter().map(Trust::bundle).eq(all.iter().map(Trust::bundle));
        *current = Arc::new(all);
        changed
    }

    /// Returns the verifier for certificates of a domain; `None` if the domain is not federated.
    pub(crate) fn find(&self, domain: &TrustDomain) -> Option<Trust> {
        self.current().iter().find(|trust| trust.domain() == domain).cloned()
    }

    /// Returns the bundles of all domains.
    pub(crate) fn bundles(&self) -> Vec<TrustBundle> {
        self.current().iter().map(|trust| trust.bundle().clone()).collect()
    }

    /// Checks that a domain is federated and that `root` is one of its roots.
    pub(crate) fn check(&self, domain: &TrustDomain, root: Option<&RootDigest>) -> Result<(), Refused> {
        let all = self.current();
        let Some(trust) = all.iter().find(|trust| trust.domain() == domain) else {
            return Err(Refused::NotFederated(domain.clone()));
        };
        match root.is_some_and(|root| trust.has_root(root)) {
            true => Ok(()),
            false => Err(Refused::UnknownIssuer(domain.clone())),
        }
    }

    fn current(&self) -> Arc<Vec<Trust>> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}
