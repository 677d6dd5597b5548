//! Policy defaults of the mesh, and of the tenants whose services are followed.

use std::collections::BTreeMap;

use fairmesh_model::{
    DefaultsByScope, DefaultsScope, InheritedDefaults, PolicyDefaults, Prefix, RecordKey, Tenant,
};
use tokio::time::Instant;

/// Policy defaults by scope, which is the mesh or a tenant.
#[derive(Debug, Default)]
pub(super) struct FollowedDefaults {
    /// Deadline by scope until which services wait for its defaults; `None` once they have arrived or are known not
    /// to come.
    scopes: BTreeMap<DefaultsScope, Option<Instant>>,
    received: DefaultsByScope,
}

/// Returns the prefix of the defaults of a scope.
fn prefix(scope: &DefaultsScope) -> Prefix {
    Prefix::from(&RecordKey::PolicyDefaults(scope.clone()))
}

/// Returns the scope to which a prefix belongs.
pub(super) fn scope_of(prefix: &Prefix) -> Option<DefaultsScope> {
    match RecordKey::parse(prefix.as_str()) {
        Ok(RecordKey::PolicyDefaults(scope)) => Some(scope),
        _ => None,
    }
}

impl FollowedDefaults {
    /// Follows the defaults of a scope. Returns the prefix to subscribe to, if the scope was not followed before.
    pub(super) fn follow(&mut self, scope: DefaultsScope, until: Instant) -> Option<Prefix> {
        if self.scopes.contains_key(&scope) {
            return None;
        }
        let prefix = prefix(&scope);
        self.scopes.insert(scope, Some(until));
        Some(prefix)
    }

    /// Stops following the defaults of a tenant. Returns the prefix to unsubscribe from.
    pub(super) fn unfollow(&mut self, tenant: &Tenant) -> Option<Prefix> {
        let scope = DefaultsScope::Tenant(tenant.clone());
        self.scopes.remove(&scope)?;
        self.received.set(scope.clone(), None);
        Some(prefix(&scope))
    }

    /// Records that the defaults of a scope have arrived, or will not come. Returns whether the scope is followed.
    pub(super) fn mark_arrived(&mut self, scope: &DefaultsScope) -> bool {
        self.scopes.get_mut(scope).map(|until| *until = None).is_some()
    }

    /// Makes services wait for all outstanding defaults until this time.
    pub(super) fn wait_until(&mut self, until: Instant) {
        self.scopes.values_mut().flatten().for_each(|waiting| *waiting = until);
    }

    /// Scopes whose defaults have not arrived, although services no longer wait for them at `now`.
    pub(super) fn overdue(&self, now: Instant) -> Vec<DefaultsScope> {
        let overdue = self.scopes.iter().filter(|(_, until)| until.is_some_and(|until| now >= until));
        overdue.map(|(scope, _)| scope.clone()).collect()
    }

    /// Prefixes that have not yet arrived.
    pub(super) fn missing(&self) -> Vec<Prefix> {
        self.scopes.iter().filter(|(_, until)| until.is_some()).map(|(scope, _)| prefix(scope)).collect()
    }

    /// Sets or removes the defaults of a followed scope. Returns whether they changed.
    pub(super) fn put(&mut self, scope: &DefaultsScope, defaults: Option<PolicyDefaults>) -> bool {
        self.scopes.contains_key(scope) && self.received.set(scope.clone(), defaults)
    }

    /// Returns the defaults for the services of a tenant; `None` while services wait for them.
    pub(super) fn of(&self, tenant: &Tenant) -> Option<InheritedDefaults> {
        let arrived = |scope: &DefaultsScope| self.scopes.get(scope).is_some_and(Option::is_none);
        let is_complete = arrived(&DefaultsScope::Mesh) && arrived(&DefaultsScope::Tenant(tenant.clone()));
        is_complete.then(|| self.received.of(tenant))
    }
}
