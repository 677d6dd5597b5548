use fairmesh_model::TrustDomain;

/// The choice of a store's trust domain. A store that has a trust domain keeps it.
#[derive(Clone, Debug, Default)]
pub enum TrustDomainChoice {
    /// The domain that the store already has; none if it has none.
    #[default]
    Stored,
    /// This domain, if the store is new.
    OfNewStore(TrustDomain),
    /// This domain. The control plane does not start if the store has another domain.
    Given(TrustDomain),
}

impl TrustDomainChoice {
    /// Returns the domain to use, unless the store already has one.
    pub fn told(&self, is_new: bool, recorded: Option<&TrustDomain>) -> Option<TrustDomain> {
        match self {
            Self::Given(domain) => Some(domain.clone()),
            Self::OfNewStore(domain) if is_new && recorded.is_none() => Some(domain.clone()),
            Self::OfNewStore(_) | Self::Stored => None,
        }
    }
}
