//! The federated trust domains that a process knows.

use std::sync::{Arc, PoisonError, RwLock};

use fairmesh_model::{FederatedDomains, TrustBundle, TrustDomain};

use crate::{IdentityError, Refused, Trust, chain_verification::RootDigest};

/// The federated trust domains. Shared by all parts of the process that verify certificates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Federation(Arc<RwLock<Arc<Vec<Trust>>>>);

impl Federation {
    /// Replaces the domains and returns whether they or their roots changed. Skips a domain with an invalid root, so that one
    /// mistake does not affect the other domains.
    pub(crate) fn set(&self, domains: FederatedDomains) -> bool {
        let read = |bundle| {
            let trust: Result<Trust, IdentityError> = Trust::new(bundle);
            trust.inspect_err(|error| tracing::error!(%error, "a federated trust domain is not used")).ok()
        };
        let all: Vec<Trust> = domains.bundles.into_iter().filter_map(read).collect();
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Keys for JWT-SVIDs change weekly, and verify no connection.
        let verifies = |trust: &Trust| (trust.domain().clone(), trust.bundle().roots.clone());
        let changed = !current.iter().map(verifies).eq(all.iter().map(verifies));
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

#[cfg(test)]
mod tests {
    use fairmesh_model::JwtKey;

    use super::*;
    use crate::{Authority, Clock as _, SystemClock};

    #[test]
    fn other_jwt_keys_of_federated_domain_change_no_connection() {
        let folder = tempfile::tempdir().unwrap();
        let domain = TrustDomain::new("partner").unwrap();
        let bundle = Authority::open(&folder.path().join("ca"), &domain, SystemClock.now()).unwrap().bundle();
        let with_key = |jwk: &str| {
            let jwt_keys = vec![JwtKey { jwk: jwk.into(), expires_at: None }];
            FederatedDomains {
                bundles: vec![TrustBundle { jwt_keys, ..bundle.clone() }],
                ..FederatedDomains::default()
            }
        };
        let federation = Federation::default();
        assert!(federation.set(with_key("1")), "the domain is new");
        assert!(!federation.set(with_key("2")), "TLS sessions stay");
        assert_eq!(federation.bundles()[0].jwt_keys[0].jwk, b"2");
        assert!(federation.set(FederatedDomains::default()));
    }
}
