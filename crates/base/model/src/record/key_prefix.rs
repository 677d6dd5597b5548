//! Prefixes of keys, which are the scopes of watches.

use std::{borrow::Borrow, fmt, sync::Arc};

use crate::{Invalid, Region, ServiceName, Tenant};

use super::{RecordKey, RecordKind, ShardPart};

/// The scope of a watch: every key below a folder, or one key. Clones share one string, since a watcher of many
/// prefixes keeps each prefix in several places.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// Validates a prefix, which must start with `/`. A prefix that ends in `/` is a folder; any other prefix is one
    /// key.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        if text.starts_with('/') && text.len() <= 512 && !text.contains("//") {
            return Ok(Self(text.into()));
        }
        Err(Invalid::new(
            "prefix",
            format!("'{text}' is not a RIB prefix"),
            "start with '/', end a folder with '/', and keep it under 512 bytes, such as /t/shop/endpoints/cart/",
        ))
    }

    /// Prefix of all keys in the RIB.
    pub fn everything() -> Self {
        Self("/".into())
    }

    /// Prefix of all region drains.
    pub fn drains() -> Self {
        Self("/g/drains/".into())
    }

    /// Prefix of a tenant's records of one kind. The kind must belong to services.
    pub fn tenant(tenant: &Tenant, kind: RecordKind) -> Self {
        Self(format!("/t/{tenant}/{}/", kind.path()).into())
    }

    /// Prefix of a service's records of one kind: a single key, or a folder.
    pub(super) fn of_service(kind: RecordKind, service: &ServiceName) -> Self {
        let ServiceName { tenant, service } = service;
        let end = if kind.is_single() { "" } else { "/" };
        Self(format!("/t/{tenant}/{}/{service}{end}", kind.path()).into())
    }

    /// Prefix of a service's endpoints in one region, or in all regions.
    pub fn endpoints(service: &ServiceName, region: Option<&Region>) -> Self {
        Self::below(RecordKind::Endpoint, service, region)
    }

    /// Prefix of the verdicts on a service's endpoints in one region, or in all regions.
    pub fn health(service: &ServiceName, region: Option<&Region>) -> Self {
        Self::below(RecordKind::Health, service, region)
    }

    /// Prefix of one part of a service's shard map, or of all parts.
    pub fn shards(service: &ServiceName, part: Option<&ShardPart>) -> Self {
        Self::below(RecordKind::ShardMap, service, part)
    }

    /// Prefix of a service's shard moves in progress.
    pub fn moves(service: &ServiceName) -> Self {
        RecordKind::Move.prefix_of(service)
    }

    /// Prefix of a service's region tables.
    pub fn tables(service: &ServiceName) -> Self {
        RecordKind::RegionTable.prefix_of(service)
    }

    /// Prefix of the earlier values of a service's record, oldest first. Only for kinds with history records.
    pub fn history(kind: RecordKind, service: &ServiceName) -> Self {
        let ServiceName { tenant, service } = service;
        Self(format!("/t/{tenant}/history/{}/{service}/", kind.kept_name().unwrap_or_default()).into())
    }

    /// Prefix of the earlier values of a mesh record, oldest first. Only for kinds with history records.
    pub fn mesh_history(kind: RecordKind) -> Self {
        Self(format!("/g/history/{}/", kind.kept_name().unwrap_or_default()).into())
    }

    /// Prefix of the elected checkers.
    pub fn checkers() -> Self {
        Self("/g/checkers/".into())
    }

    /// Prefix of regions, round trips, measured distances and hosts.
    pub fn topology() -> Self {
        Self("/g/topology/".into())
    }

    /// Prefix of the gateway backends.
    pub fn gateway_backends() -> Self {
        Self("/g/gateway/backends/".into())
    }

    /// Prefix of the gateway quotas of tenants.
    pub fn gateway_quotas() -> Self {
        Self("/g/gateway-quotas/".into())
    }

    /// Prefix of the policy defaults of all tenants and of the mesh.
    pub fn policy_defaults() -> Self {
        Self("/g/policy-defaults/".into())
    }

    /// Prefix of the role bindings.
    pub fn roles() -> Self {
        Self("/g/roles/".into())
    }

    /// Prefix of the trust bundle, the joined agents and the other identity records.
    pub fn identity() -> Self {
        Self("/g/identity/".into())
    }

    /// Prefix of the joined agents.
    pub fn agents() -> Self {
        Self("/g/identity/agents/".into())
    }

    /// Prefix of a service's records of a kind: all records, or those whose keys begin with `field`, such as a
    /// region.
    fn below(kind: RecordKind, service: &ServiceName, field: Option<impl fmt::Display>) -> Self {
        let all = kind.prefix_of(service);
        field.map_or_else(|| all.clone(), |field| Self(format!("{all}{field}/").into()))
    }

    /// Whether the prefix is a folder rather than one key.
    pub fn is_folder(&self) -> bool {
        self.0.ends_with('/')
    }

    /// Whether the prefix includes a key.
    pub fn covers(&self, key: &str) -> bool {
        if self.is_folder() { key.starts_with(&*self.0) } else { *key == *self.0 }
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Prefix {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&RecordKey> for Prefix {
    /// The prefix that covers exactly this key.
    fn from(key: &RecordKey) -> Self {
        Self(key.to_string().into())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_of_folder_covers_keys_below_and_prefix_of_key_only_itself() {
        let cart = ServiceName::new("shop/cart").unwrap();
        let folder = Prefix::endpoints(&cart, None);
        assert!(folder.covers("/t/shop/endpoints/cart/eu/a"));
        assert!(!folder.covers("/t/shop/endpoints/cart2/eu/a"));
        let key = Prefix::from(&RecordKey::Service(cart));
        assert!(key.covers("/t/shop/services/cart") && !key.covers("/t/shop/services/cart2"));
    }
}
