//! Names in the traffic section of policies that occur nowhere else: regions, and traffic classes that no route sets.

use std::collections::BTreeSet;

use fairmesh_console::view_reader::{ReadView, Scope, View};
use fairmesh_model::{
    Label, Policy, RecordKind, Region, Regions, Ring, ServiceName, Share, Tenant, spec::Resource,
};
use fairmesh_wire::handshake::Connection;

use super::some;

/// Kinds of records needed to find misspelt names.
const KINDS: &[RecordKind] = &[RecordKind::Endpoint, RecordKind::Policy];

/// Adds the regions of endpoints and the policies of all services, if the traffic section of a policy has names that
/// the resources themselves do not define. Records that the caller may not read are left out.
pub(super) async fn add_known(connection: &Connection, resources: &[&Resource], known: &mut View) {
    let (policies, regions) = (policies(resources), regions(known, resources));
    let is_explained = |(name, policy): &&(&ServiceName, &Policy)| {
        traffic_regions(policy).iter().all(|region| regions.contains(*region))
            && unset_classes(name, policy, policies.iter().copied()).is_empty()
    };
    let tenants: BTreeSet<&Tenant> =
        policies.iter().filter(|one| !is_explained(one)).map(|(name, _)| &name.tenant).collect();
    if tenants.is_empty() {
        return;
    }
    let mut views = Vec::new();
    match View::read_silently(connection, &Scope::All, KINDS).await {
        Ok(all) => views.push(all),
        // The caller may be allowed to read only its own tenants.
        Err(_) => {
            for tenant in tenants {
                views.extend(
                    View::read_silently(connection, &Scope::Tenant(tenant.clone()), KINDS).await.ok(),
                );
            }
        }
    }
    for view in views {
        known.regions = view.regions;
        for (name, one) in view.services {
            known.services.entry(name).or_insert(one);
        }
    }
}

/// The policies among resources.
pub(super) fn policies<'a>(resources: &[&'a Resource]) -> Vec<(&'a ServiceName, &'a Policy)> {
    let policy = |resource: &&'a Resource| match *resource {
        Resource::Policy(name, policy) => Some((name, policy)),
        _ => None,
    };
    resources.iter().filter_map(policy).collect()
}

/// Regions that are declared or have endpoints. A topology among the resources replaces the stored one.
pub(crate) fn regions(known: &View, resources: &[&Resource]) -> BTreeSet<Region> {
    let declared = &topology(known, resources).regions;
    let used = known.services.values().flat_map(|one| &one.endpoints);
    let used = used.map(|endpoint| &endpoint.value.location.region);
    declared.keys().chain(used).cloned().collect()
}

/// The topology among the resources, or the stored one.
pub(super) fn topology<'a>(known: &'a View, resources: &[&'a Resource]) -> &'a Regions {
    let written = resources.iter().find_map(|resource| match *resource {
        Resource::Topology(regions, _) => Some(regions),
        _ => None,
    });
    written.unwrap_or(&known.regions.value)
}

/// Warning about regions with manual shares in a policy that are not `known`; none if no region is known.
pub(crate) fn unknown_regions(
    name: &ServiceName,
    policy: &Policy,
    known: &BTreeSet<Region>,
) -> Option<String> {
    let unknown = traffic_regions(policy).into_iter().filter(|region| !known.contains(*region));
    let unknown: BTreeSet<String> = unknown.map(ToString::to_string).collect();
    let is_known = known.is_empty() || unknown.is_empty();
    (!is_known).then(|| {
        format!(
            "the policy of {name} has shares of regions that no topology declares and that have no endpoint: {}",
            some(&unknown)
        )
    })
}

/// Warning about classes in the traffic section of a policy that no route sets, neither of this policy nor of other
/// policies that send calls to the service.
pub(crate) fn unknown_classes<'a>(
    name: &ServiceName,
    policy: &Policy,
    policies: impl Iterator<Item = (&'a ServiceName, &'a Policy)>,
) -> Option<String> {
    let unset = unset_classes(name, policy, policies);
    (!unset.is_empty()).then(|| {
        format!(
            "the policy of {name} {} traffic classes that no route sets ('class'), so that no call has them: {}",
            if by_hand(policy).next().is_some() { "has shares of" } else { "lists (traffic.classes)" },
            some(&unset)
        )
    })
}

fn unset_classes<'a>(
    name: &ServiceName,
    policy: &Policy,
    policies: impl Iterator<Item = (&'a ServiceName, &'a Policy)>,
) -> BTreeSet<String> {
    let mut unset: BTreeSet<&Label> = traffic_classes(policy).collect();
    unset.retain(|class| !sets(name, name, policy, class));
    for (of, other) in policies.filter(|(of, _)| *of != name) {
        unset.retain(|class| !sets(name, of, other, class));
    }
    unset.into_iter().map(ToString::to_string).collect()
}

/// Whether a route of a policy sets the class on calls to `target`.
fn sets(target: &ServiceName, of: &ServiceName, policy: &Policy, class: &Label) -> bool {
    let leads = |split: &[fairmesh_model::Backend]| {
        (of == target && split.is_empty()) || split.iter().any(|backend| backend.service == *target)
    };
    policy.routes.iter().any(|route| route.class.as_ref() == Some(class) && leads(&route.split))
}

fn traffic_regions(policy: &Policy) -> BTreeSet<&Region> {
    let shares = policy.traffic.iter().flat_map(|traffic| &traffic.shares);
    shares
        .flat_map(|(from, shares)| {
            std::iter::once(from).chain(shares.iter().flat_map(|(_, shares)| shares.to.keys()))
        })
        .collect()
}

fn traffic_classes(policy: &Policy) -> impl Iterator<Item = &Label> {
    by_hand(policy).chain(policy.traffic.iter().flat_map(|traffic| &traffic.classes))
}

/// The classes with manual shares.
fn by_hand(policy: &Policy) -> impl Iterator<Item = &Label> {
    let shares = policy.traffic.iter().flat_map(|traffic| traffic.shares.values());
    shares.flat_map(|shares| shares.classes.keys())
}

/// Warnings about manual shares that no router follows because the rings do not allow their region, and about tables
/// that drop all calls.
pub(super) fn serving_no_call(name: &ServiceName, policy: &Policy, topology: &Regions) -> Vec<String> {
    let tables = policy.traffic.iter().flat_map(|traffic| &traffic.shares);
    let rows = tables.flat_map(|(from, shares)| shares.iter().map(move |(class, row)| (from, class, row)));
    let (mut outside, mut dropping) = (BTreeSet::new(), BTreeSet::new());
    for (from, class, row) in rows {
        let beyond = row.to.keys().filter(|to| !may_reach(policy, from, to, topology));
        outside.extend(beyond.map(|to| format!("{from} to {to}")));
        if row.dropped == Share::ALL {
            let of_class = class.map(|class| format!(" of class {class}")).unwrap_or_default();
            dropping.insert(format!("from {from}{of_class}"));
        }
    }
    let warning = |what: &str, found: &BTreeSet<String>| {
        (!found.is_empty()).then(|| format!("the policy of {name} {what}: {}", some(found)))
    };
    let outside = warning(
        "has shares of regions that its locality does not allow (rings, localOnly), so that no call goes there",
        &outside,
    );
    outside.into_iter().chain(warning("drops all calls", &dropping)).collect()
}

/// Whether the locality of a policy allows a region, independent of distances.
pub(crate) fn may_reach(policy: &Policy, from: &Region, to: &Region, topology: &Regions) -> bool {
    let locality = &policy.locality;
    if from == to {
        return true;
    }
    let info = |region| topology.regions.get(region);
    let includes = |ring: &Ring| match ring {
        Ring::Region => false,
        Ring::Neighbours => info(from).is_some_and(|info| info.neighbours.contains(to)),
        Ring::Continent => info(from)
            .zip(info(to))
            .is_some_and(|(a, b)| !a.continent.is_empty() && a.continent == b.continent),
        Ring::Within(_) | Ring::Any => true,
    };
    !locality.local_only && (locality.rings.is_empty() || locality.rings.iter().any(includes))
}
