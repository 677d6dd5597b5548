//! Follows the defaults of policies.

use fairmesh_model::{DefaultsScope, PolicyDefaults, Tenant};
use tokio::time::Instant;

use super::{CONNECT_PATIENCE, Worker};
use crate::discovery::endpoint_transport::EndpointTransport;

impl<T: EndpointTransport> Worker<T> {
    /// Follows the defaults of a tenant whose services are called.
    pub(super) fn follow_defaults(&mut self, tenant: &Tenant) {
        let scope = DefaultsScope::Tenant(tenant.clone());
        if let Some(prefix) = self.defaults.follow(scope, Instant::now() + CONNECT_PATIENCE) {
            self.handle.subscribe(prefix);
        }
    }

    /// Stops following the defaults of a tenant if none of its services is followed.
    pub(super) fn unfollow_defaults(&mut self, tenant: &Tenant) {
        if !self.services.keys().any(|name| name.tenant == *tenant) {
            let unfollowed = self.defaults.unfollow(tenant);
            self.unsubscribe(unfollowed.into_iter().collect());
        }
    }

    /// Records that the defaults of a scope have arrived, or will not come.
    pub(super) fn defaults_arrived(&mut self, scope: &DefaultsScope) {
        if self.defaults.mark_arrived(scope) {
            self.mark_scope_stale(scope);
        }
    }

    /// Sets or removes the defaults of a scope.
    pub(super) fn put_defaults(&mut self, scope: &DefaultsScope, defaults: Option<PolicyDefaults>) {
        if self.defaults.put(scope, defaults) {
            self.mark_scope_stale(scope);
        }
    }

    fn mark_scope_stale(&mut self, scope: &DefaultsScope) {
        let names = self.services.keys().filter(|name| scope.includes(&name.tenant));
        self.stale.extend(names.cloned());
    }
}
