//! Limits the number of routes of a tenant by its quota: each replica of a gateway compiles all routes of the
//! services that it serves.

use std::collections::BTreeMap;

use bytes::Bytes;
use fairmesh_model::{Invalid, Prefix, Record, RecordKey, RecordKind, Tenant};
use fairmesh_rib::Node;
use fairmesh_wire::record_encoding;

/// Refuses writes that give a tenant more routes than its quota allows. Writes that do not increase the
/// number are accepted even above the quota, so that a tenant can remove routes after its quota was lowered.
/// Two concurrent batches may exceed the quota together.
///
/// # Errors
/// Names the quota of the first tenant that has too many routes, or a quota that cannot be decoded while
/// routes are added.
pub(crate) fn check<'a>(
    node: &Node,
    written: impl IntoIterator<Item = (&'a RecordKey, Option<&'a Bytes>)>,
) -> Result<(), Invalid> {
    let mut by_tenant: BTreeMap<&Tenant, BTreeMap<String, usize>> = BTreeMap::new();
    for (key, value) in written {
        if let RecordKey::Policy(service) = key {
            let routes = value.map_or(0, |policy| record_encoding::route_count(policy));
            by_tenant.entry(&service.tenant).or_default().insert(key.to_string(), routes);
        }
    }
    by_tenant.into_iter().try_for_each(|(tenant, changed)| check_tenant(node, tenant, &changed))
}

fn check_tenant(node: &Node, tenant: &Tenant, changed: &BTreeMap<String, usize>) -> Result<(), Invalid> {
    if node.get(&RecordKey::GatewayQuota(tenant.clone()).to_string()).is_none() {
        return Ok(());
    }
    let (mut kept, mut replaced) = (0, 0);
    for (key, entry) in node.read(&[Prefix::tenant(tenant, RecordKind::Policy)]).1 {
        let of = if changed.contains_key(&*key) { &mut replaced } else { &mut kept };
        *of += record_encoding::route_count(&entry.value);
    }
    let new: usize = changed.values().sum();
    // Checked before the quota is decoded: even with an undecodable quota, a tenant may remove routes.
    if new <= replaced {
        return Ok(());
    }
    let Some(most) = most_routes(node, tenant)? else { return Ok(()) };
    if kept + new <= most as usize {
        return Ok(());
    }
    let problem = format!("{} routes are more than the {most} that tenant {tenant} may have", kept + new);
    let hint = format!(
        "merge or remove routes, or have an administrator raise 'routes' of the GatewayQuota {tenant}"
    );
    Err(Invalid::new("routes", problem, hint))
}

fn most_routes(node: &Node, tenant: &Tenant) -> Result<Option<u32>, Invalid> {
    let key = RecordKey::GatewayQuota(tenant.clone());
    let Some(entry) = node.get(&key.to_string()) else { return Ok(None) };
    match record_encoding::decode(&key, &entry.value).map_err(|error| error.within(key.to_string()))? {
        Record::GatewayQuota(quota) => Ok(quota.routes),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{GatewayQuota, Policy, Route, ServiceName, StoreId};
    use fairmesh_rib::Entry;

    use super::*;

    fn policy(service: &str, routes: usize) -> (RecordKey, Bytes) {
        let route = |number| Route::new(format!("r-{number}").parse().unwrap());
        let policy = Policy { routes: (0..routes).map(route).collect(), ..Policy::default() };
        (RecordKey::Policy(ServiceName::new(service).unwrap()), record_encoding::encode(&policy.into()))
    }

    fn check_one(node: &Node) -> Result<(), Invalid> {
        let more = policy("red/web", 4);
        check(node, [(&more.0, Some(&more.1))])
    }

    #[test]
    fn policies_over_tenants_route_quota_are_refused() {
        let quota = GatewayQuota { routes: Some(4), ..GatewayQuota::default() };
        let quota =
            (RecordKey::GatewayQuota(Tenant::new("red").unwrap()), record_encoding::encode(&quota.into()));
        let stored = [quota, policy("red/web", 3), policy("blue/web", 3)];
        let entries = stored.map(|(key, value)| (key.to_string().into(), Entry { value, revision: 1 }));
        let node = Node::load(StoreId(7), 1, entries);
        let check = |written: &[(RecordKey, Bytes)]| {
            super::check(&node, written.iter().map(|(key, value)| (key, Some(value))))
        };
        assert!(check(&[policy("red/api", 1)]).is_ok());
        let refused = check(&[policy("red/api", 2)]).unwrap_err().to_string();
        assert!(refused.contains("5 routes are more than the 4"), "{refused}");
        assert!(check(&[policy("red/api", 2), policy("red/web", 2)]).is_ok(), "the batch counts as a whole");
        assert!(check(&[policy("red/web", 5)]).is_err() && check(&[policy("blue/web", 5)]).is_ok());
        let lowered = GatewayQuota { routes: Some(1), ..GatewayQuota::default() };
        let lowered = Entry { value: record_encoding::encode(&lowered.into()), revision: 2 };
        let web = policy("red/web", 3);
        let key = |key: &RecordKey| key.to_string().into();
        let quota = RecordKey::GatewayQuota(Tenant::new("red").unwrap());
        let entries = [(key(&quota), lowered), (key(&web.0), Entry { value: web.1, revision: 1 })];
        let node = Node::load(StoreId(7), 2, entries);
        let fewer = policy("red/web", 2);
        assert!(super::check(&node, [(&fewer.0, Some(&fewer.1))]).is_ok(), "fewer routes are accepted");
        let garbage = Entry { value: Bytes::from_static(&[0xff]), revision: 2 };
        let web = policy("red/web", 3);
        let entries = [(key(&quota), garbage), (key(&web.0), Entry { value: web.1, revision: 1 })];
        let node = Node::load(StoreId(7), 2, entries);
        assert!(super::check(&node, [(&fewer.0, Some(&fewer.1))]).is_ok() && check_one(&node).is_err());
    }
}
