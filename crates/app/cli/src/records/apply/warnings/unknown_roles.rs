//! Roles in policies that no copy of the service has, so that calls without a role fail.

use std::collections::BTreeSet;

use fairmesh_console::view_reader::View;
use fairmesh_model::{Policy, Role, ServiceKind, ServiceName, ShardMap, spec::Resource};

use super::{declared, some};

/// A service with its policy, as far as roles matter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoutedRoles<'a> {
    pub(crate) name: &'a ServiceName,
    pub(crate) kind: ServiceKind,
    pub(crate) policy: &'a Policy,
    /// The map whose copies have roles; `None` without one.
    pub(crate) map: Option<&'a ShardMap>,
}

impl RoutedRoles<'_> {
    /// One warning for each role of the policy that calls cannot be sent to.
    pub(crate) fn warnings(self) -> Vec<String> {
        let Self { name, kind, policy, map } = self;
        let replicas = map.into_iter().flat_map(|map| map.shards.iter().flat_map(|shard| &shard.replicas));
        let held: BTreeSet<String> = replicas.map(|replica| replica.role.to_string()).collect();
        let warning = |(subject, role): (String, &Role)| match (kind, map) {
            (ServiceKind::Sharded, Some(_)) if !held.contains(&role.to_string()) => Some(format!(
                "{subject} sends calls without a role to copies of role '{role}', and the shard map of {name} has none: they fail \
                 with no_replica; its roles are {}",
                some(&held)
            )),
            (ServiceKind::Sharded, _) => None,
            _ => Some(format!(
                "{subject} names role '{role}', which has no effect: {name} is not sharded, so that its endpoints have no roles"
            )),
        };
        let of_policy = policy.role.iter().map(|role| (format!("the policy of {name}"), role));
        // The role of a route with a split is one of its backends.
        let own = policy.routes.iter().filter(|route| route.split.is_empty());
        let of_routes = own.filter_map(|route| {
            Some((format!("route '{}' of the policy of {name}", route.name), route.actions.role.as_ref()?))
        });
        of_policy.chain(of_routes).filter_map(warning).collect()
    }
}

/// Warnings about the services whose declaration, policy or shard map is among the resources.
pub(super) fn warnings(known: &View, resources: &[&Resource]) -> Vec<String> {
    let subject = |resource: &&Resource| match resource {
        Resource::Service(name, _) | Resource::Policy(name, _) | Resource::ShardMap(name, _) => {
            Some(name.clone())
        }
        _ => None,
    };
    let subjects: BTreeSet<ServiceName> = resources.iter().filter_map(subject).collect();
    let of = |name: &ServiceName| {
        let stored = known.services.get(name);
        let written = declared(resources).find_map(|(of, service)| (of == name).then_some(service));
        let kind = written.or_else(|| Some(&stored?.service.as_ref()?.value))?.kind;
        let written = resources.iter().find_map(|resource| match resource {
            Resource::Policy(of, policy) if of == name => Some(policy),
            _ => None,
        });
        let policy = written.or_else(|| Some(&stored?.policy.as_ref()?.value))?;
        let written = resources.iter().find_map(|resource| match resource {
            Resource::ShardMap(of, map) if of == name => Some(map),
            _ => None,
        });
        let map = written.or_else(|| stored?.shards.as_ref());
        Some(RoutedRoles { name, kind, policy, map }.warnings())
    };
    subjects.iter().filter_map(of).flatten().collect()
}
