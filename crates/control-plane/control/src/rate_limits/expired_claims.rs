use std::fmt;

use fairmesh_controllers::{BoxError, Controller, Decision, Now, Triggers, Wake};
use fairmesh_model::rate_limit_quota;
use fairmesh_rib::Node;

use super::{LimitName, Limits, Quotas, STARTUP_GRACE};

/// Forgets callers that no longer claim, and limits that have no callers or are no longer declared.
#[derive(Clone, Debug)]
pub(crate) struct QuotaController(pub(crate) Quotas);

/// Effect: forget the expired callers of some limits.
#[derive(Debug)]
pub(crate) struct ForgetClaims(Vec<LimitName>);

impl fmt::Display for ForgetClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "forget expired callers of {} mesh-wide limits", self.0.len())
    }
}

impl Controller for QuotaController {
    const NAME: &'static str = "quotas";
    /// Limits from which something can be forgotten.
    type Facts = Vec<LimitName>;
    type Effect = ForgetClaims;

    fn triggers(&self) -> Triggers {
        Triggers { interval: Some(STARTUP_GRACE), ..Triggers::default() }
    }

    async fn read_facts(&mut self, node: &Node, _: Wake) -> Result<Self::Facts, BoxError> {
        let now = self.0.now();
        let mut limits = self.0.lock();
        let Limits { by_name, declared, .. } = &mut *limits;
        declared.refresh(node);
        let expired = by_name.iter().filter(|(name, quota)| !declared.holds(name) || quota.has_expired(now));
        Ok(expired.map(|(name, _)| name.clone()).collect())
    }

    fn reconcile(&mut self, expired: Self::Facts, _: Now) -> Decision<Self::Effect> {
        let effects = (!expired.is_empty()).then_some(ForgetClaims(expired)).into_iter().collect();
        Decision { effects, ..Decision::default() }
    }

    async fn apply(&mut self, ForgetClaims(names): ForgetClaims) -> Result<(), BoxError> {
        let now = self.0.now();
        let mut limits = self.0.lock();
        let Limits { by_name, declared, shares } = &mut *limits;
        for name in names {
            let Some(quota) = by_name.get_mut(&name) else { continue };
            if !declared.holds(&name) || !quota.expire(now) {
                by_name.remove(&name);
            }
        }
        *shares = by_name.values().map(rate_limit_quota::Quota::callers).sum();
        Ok(())
    }
}
