//! Defaults of policies: of the mesh, and of the tenants whose services are followed.

use std::collections::BTreeMap;

use fairmesh_model::{
    DefaultsByScope, DefaultsScope, InheritedDefaults, PolicyDefaults, Prefix, RecordKey, Tenant,
};
use tokio::time::Instant;

/// The followed defaults. A scope is the mesh or a tenant.
#[derive(Debug, Default)]
pub(super) struct FollowedDefaults {
    /// By scope, until when services wait for its defaults; `None` once they have arrived, or it is known that they do not come.
    scopes: BTreeMap<DefaultsScope, Option<Instant>>,
    received: DefaultsByScope,
}

/// The prefix of the defaults of a scope.
fn prefix(scope: &DefaultsScope) -> Prefix {
    Prefix::from(&RecordKey::PolicyDefaults(scope.clone()))
}

/// The scope that a prefix is of.
pub(super) fn scope_of(prefix: &Prefix) -> Option<DefaultsScope> {
    match RecordKey::parse(prefix.as_str()) {
        Ok(RecordKey::PolicyDefaults(scope)) => Some(scope),
        _ => None,
    }
}

impl FollowedDefaults {
    /// Follows the defaults of a scope; returns what has to be subscribed to, if it was not followed.
    pub(super) fn follow(&mut self, scope: DefaultsScope, until: Instant) -> Option<Prefix> {
        if self.scopes.contains_key(&scope) {
            return None;
        }
        let prefix = prefix(&scope);
        self.scopes.insert(scope, Some(until));
        Some(prefix)
    }

    /// Stops following the defaults of a tenant; returns what has to be unsubscribed from.
    pub(super) fn unfollow(&mut self, tenant: &Tenant) -> Option<Prefix> {
        let scope = DefaultsScope::Tenant(tenant.clone());
        self.scopes.remove(&scope)?;
        self.received.set(scope.clone(), None);
        Some(prefix(&scope))
    }

    /// The defaults of a scope have arrived, or do not come. Returns whether the scope is followed.
    pub(super) fn mark_arrived(&mut self, scope: &DefaultsScope) -> bool {
        self.scopes.get_mut(scope).map(|until| *until = None).is_some()
    }

    /// Services wait for all outstanding defaults until then.
    pub(super) fn wait_until(&mut self, until: Instant) {
        self.scopes.values_mut().flatten().for_each(|waiting| *waiting = until);
    }

    /// Scopes whose defaults are outstanding, and no longer waited for at a time.
    pub(super) fn overdue(&self, now: Instant) -> Vec<DefaultsScope> {
        let overdue = self.scopes.iter().filter(|(_, until)| until.is_some_and(|until| now >= until));
        overdue.map(|(scope, _)| scope.clone()).collect()
    }

    /// Prefixes that have not arrived.
    pub(super) fn missing(&self) -> Vec<Prefix> {
        self.scopes.iter().filter(|(_, until)| until.is_some()).map(|(scope, _)| prefix(scope)).collect()
    }

    /// Sets or removes defaults that are followed; returns whether they changed.
    pub(super) fn put(&mut self, scope: &DefaultsScope, defaults: Option<PolicyDefaults>) -> bool {
        self.scopes.contains_key(scope) && self.received.set(scope.clone(), defaults)
    }

    /// The defaults of the services of a tenant; `None` while they are waited for.
    pub(super) fn of(&self, tenant: &Tenant) -> Option<InheritedDefaults> {
        let arrived = |scope: &DefaultsScope| self.scopes.get(scope).is_some_and(Option::is_none);
        let is_complete = arrived(&DefaultsScope::Mesh) && arrived(&DefaultsScope::Tenant(tenant.clone()));
        is_complete.then(|| self.received.of(tenant))
    }
}
