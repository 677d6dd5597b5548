//! Warnings about valid documents that would make calls fail or have no effect. They are printed rather than refused,
//! since the missing records may follow. Changes that break working calls are handled by [`breaking_change`].

pub(crate) mod unknown_roles;
pub(crate) mod unknown_traffic_names;
mod unreadable;
pub(crate) mod wider_access;

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_console::{
    cell_text::type_and_protocol,
    failure::Failure,
    output, rib_reader,
    view_reader::{ReadView, Scope, ServiceView, View},
};
use fairmesh_model::{
    BalancingPolicy, DefaultsByScope, InstanceId, Policy, Prefix, RecordKey, RecordKind, Region, Service,
    ServiceKind, ServiceName, ShardMap, spec::Resource,
};
use fairmesh_wire::handshake::Connection;

use crate::records::breaking_change::{self, Change};

/// Instances named in one warning.
const MAX_NAMED: usize = 5;

/// Words of `lint` about a service that may be declared in other files.
pub(crate) const UNDECLARED_IN_FILES: &str = " in these files";

/// Kinds of records that warnings depend on.
const KINDS: &[RecordKind] = &[
    RecordKind::Service,
    RecordKind::Endpoint,
    RecordKind::Policy,
    RecordKind::ShardMap,
    RecordKind::Authorization,
];

/// Prints warnings about calls that would fail once the resources are written to standard error. Returns warnings about
/// currently working calls, which need confirmation.
///
/// # Errors
/// When a shard map belongs to a service that is not sharded: it would be refused after the rest is written.
pub(crate) async fn print_warnings(
    connection: &Connection,
    resources: &[&Resource],
) -> Result<Vec<String>, Failure> {
    let known = read_known(connection, resources).await?;
    unreadable::warn(&known, resources);
    // First, because it does the most harm.
    for warning in wider_access::widened(&known, resources) {
        output::warn(warning);
    }
    wider_access::kept(&known, resources).into_iter().for_each(output::note);
    check_maps(&known, resources)?;
    for warning in warnings(Some(&known), resources) {
        output::warn(warning);
    }
    Ok(breaking_changes(&known, resources))
}

/// Reads the records that warnings depend on. What the resources replace may be unreadable.
async fn read_known(connection: &Connection, resources: &[&Resource]) -> Result<View, Failure> {
    let changes_mesh =
        resources.iter().any(|one| matches!(one, Resource::Authorization(_) | Resource::Topology(..)));
    let mut known = match changes_mesh {
        true => {
            let prefixes = [Prefix::topology(), Prefix::from(&RecordKey::DefaultAuthorization)];
            View::of_readable(rib_reader::read(connection, &prefixes).await?)
        }
        false => View::default(),
    };
    let mut names: BTreeSet<ServiceName> =
        resources.iter().flat_map(|resource| mentioned(resource)).map(|mention| mention.name).collect();
    names.extend(declared(resources).map(|(name, _)| name.clone()));
    for name in names {
        let view = View::read_silently(connection, &Scope::Service(name), KINDS).await?;
        known.regions = view.regions;
        known.has_trust_domain |= view.has_trust_domain;
        known.authorization = view.authorization;
        for (scope, defaults) in view.policy_defaults.iter() {
            known.policy_defaults.set(scope.clone(), Some(defaults.clone()));
        }
        known.services.extend(view.services);
        known.unreadable.extend(view.unreadable);
    }
    unknown_traffic_names::add_known(connection, resources, &mut known).await;
    Ok(known)
}

/// Checks that each shard map belongs to a service that is sharded once the resources are written.
fn check_maps(known: &View, resources: &[&Resource]) -> Result<(), Failure> {
    for resource in resources {
        let Resource::ShardMap(name, _) = resource else { continue };
        let written = declared(resources).find_map(|(n, service)| (n == name).then_some(service));
        let stored = || known.services.get(name)?.service.as_ref().map(|at| &at.value);
        let problem = match written.or_else(stored).map(|service| service.kind) {
            Some(ServiceKind::Sharded) => continue,
            Some(_) => format!("the shard map of {name} is refused: {name} is not sharded"),
            None => format!("the shard map of {name} is refused: {name} is not declared"),
        };
        let hint = "apply a document of kind Service with 'type: sharded' along with it, or before it";
        return Err(Failure::failed_with(problem, hint));
    }
    Ok(())
}

/// Effects of the resources on calls that currently work.
fn breaking_changes(known: &View, resources: &[&Resource]) -> Vec<String> {
    let mapped = |name: &ServiceName| {
        resources.iter().any(|resource| matches!(resource, Resource::ShardMap(n, _) if n == name))
    };
    let damage = |(name, to)| {
        let change = Change { name, to: Some(to), mapped: mapped(name) };
        breaking_change::consequences(known.services.get(name)?, &change)
    };
    declared(resources).filter_map(damage).collect()
}

/// The declarations among resources.
fn declared<'a>(resources: &[&'a Resource]) -> impl Iterator<Item = (&'a ServiceName, &'a Service)> {
    resources.iter().filter_map(|resource| match resource {
        Resource::Service(name, service) => Some((name, service)),
        _ => None,
    })
}

/// A reference to a service in a resource.
pub(crate) struct Mention {
    pub(crate) name: ServiceName,
    /// Description of the reference.
    pub(crate) reference: String,
    /// Effect while the service is not declared.
    pub(crate) effect: &'static str,
}

/// The services that a resource refers to.
pub(crate) fn mentioned(resource: &Resource) -> Vec<Mention> {
    let mention =
        |name: &ServiceName, reference: String, effect| Mention { name: name.clone(), reference, effect };
    match resource {
        Resource::Policy(of, policy) => {
            let mut mentions =
                vec![mention(of, format!("the policy of {of}"), "calls to it fail until it is")];
            for route in &policy.routes {
                let reference = || format!("route '{}' of the policy of {of}", route.name);
                let backends = route.split.iter().map(|backend| match backend.weight {
                    0 => mention(
                        &backend.service,
                        reference(),
                        "it has weight 0, so that no call goes there yet",
                    ),
                    _ => mention(&backend.service, reference(), "calls to it fail until it is"),
                });
                mentions.extend(backends);
                let mirror = route.actions.mirror.as_ref().map(|mirror| &mirror.service);
                let effect = "copies of calls are lost until it is, and the calls themselves succeed";
                mentions.extend(
                    mirror.map(|name| mention(name, format!("the mirror of {}", reference()), effect)),
                );
            }
            mentions
        }
        Resource::ShardMap(of, _) => {
            vec![mention(of, format!("the shard map of {of}"), "calls to it fail until it is")]
        }
        Resource::ServiceAuthorization(of, _) => {
            vec![mention(of, format!("the authorization of {of}"), "it has no effect until it is")]
        }
        Resource::GatewayService(of, _) => {
            vec![mention(of, format!("the gateway service {of}"), "calls to it fail until it is")]
        }
        Resource::Service(..)
        | Resource::GatewayBackend(..)
        | Resource::GatewayQuota(..)
        | Resource::PolicyDefaults(..)
        | Resource::Topology(..)
        | Resource::Hosts(_)
        | Resource::Endpoints(..)
        | Resource::Workload(..)
        | Resource::RoleBinding(..)
        | Resource::Authorization(_) => Vec::new(),
    }
}

/// Warnings about resources, given the `known` records; `None` if only the files are known.
pub(crate) fn warnings(known: Option<&View>, resources: &[&Resource]) -> Vec<String> {
    let (stored_records, nothing) = (known, View::default());
    let known = known.unwrap_or(&nothing);
    let written = |name: &ServiceName| {
        resources.iter().any(|resource| matches!(resource, Resource::Service(n, _) if n == name))
    };
    let stored = |name: &ServiceName| known.services.get(name).is_some_and(|of| of.service.is_some());
    // Files without any declaration, such as only a policy, concern services that are declared elsewhere.
    let declares = stored_records.is_some() || declared(resources).next().is_some();
    let defaults = defaults(known, resources);
    let mut warnings = Vec::new();
    for resource in resources {
        for Mention { name, reference, effect } in mentioned(resource) {
            let is_elsewhere = !declares && is_subject(resource, &name);
            if !written(&name) && !stored(&name) && !is_elsewhere {
                let whence = if stored_records.is_none() { UNDECLARED_IN_FILES } else { "" };
                warnings.push(format!("{reference} names {name}, which is not declared{whence}: {effect}"));
            }
        }
        match resource {
            Resource::ShardMap(name, map) if stored_records.is_some() => {
                warnings.extend(replica_warnings(name, map, known.services.get(name)));
            }
            Resource::Policy(name, policy) => {
                warnings.extend(unreachable_routes(name, policy));
                warnings.extend(unaccepted_routes(name, policy, known, resources));
                let conflict = defaults.of(&name.tenant).apply(policy.clone()).ring_conflict();
                warnings.extend(conflict.map(|why| format!("the policy of {name}: {why}")));
                warnings.extend(unknown_traffic_names::unknown_regions(
                    name,
                    policy,
                    &unknown_traffic_names::regions(known, resources),
                ));
                warnings.extend(unknown_classes(name, policy, known, resources));
                warnings.extend(unknown_traffic_names::serving_no_call(
                    name,
                    policy,
                    unknown_traffic_names::topology(known, resources),
                ));
            }
            _ => {}
        }
    }
    warnings.extend(unhashed(known, resources));
    warnings.extend(unknown_roles::warnings(known, resources));
    warnings.extend(refused_endpoints(known, resources));
    warnings.dedup();
    warnings
}

/// The defaults of policies once the resources are written.
fn defaults(known: &View, resources: &[&Resource]) -> DefaultsByScope {
    let mut defaults = known.policy_defaults.clone();
    for resource in resources {
        if let Resource::PolicyDefaults(scope, written) = resource {
            defaults.set(scope.clone(), Some(written.clone()));
        }
    }
    defaults
}

/// Whether a resource belongs to this service, as opposed to referring to it.
fn is_subject(resource: &Resource, service: &ServiceName) -> bool {
    matches!(resource, Resource::Policy(name, _) | Resource::ShardMap(name, _) if name == service)
}

/// Routes that no call reaches, since an earlier one matches every call that they match.
pub(crate) fn unreachable_routes(name: &ServiceName, policy: &Policy) -> Vec<String> {
    let routes = policy.routes.iter().enumerate().filter_map(|(position, route)| {
        let before = policy.routes[..position].iter().find(|before| before.matches.covers(&route.matches))?;
        Some(format!(
            "no call reaches route '{}' of the policy of {name}: route '{}' before it matches the same calls; the first match wins, \
             so put the narrower one first",
            route.name, before.name
        ))
    });
    routes.take(MAX_NAMED).collect()
}

/// Routes to services of other tenants whose policies do not accept them.
fn unaccepted_routes(
    name: &ServiceName,
    policy: &Policy,
    known: &View,
    resources: &[&Resource],
) -> Vec<String> {
    let accepts = |target: &ServiceName| {
        let written = unknown_traffic_names::policies(resources).into_iter().find(|(of, _)| *of == target);
        let stored = || Some(&known.services.get(target)?.policy.as_ref()?.value);
        let policy = written.map(|(_, policy)| policy).or_else(stored);
        target.tenant == name.tenant || policy.is_some_and(|policy| policy.accepts_routes_from(target, name))
    };
    let targets: BTreeSet<_> = policy.routes.iter().flat_map(|route| route.targets()).collect();
    let refused = targets.into_iter().filter(|target| !accepts(target)).map(|target| {
        format!(
            "calls that routes of the policy of {name} send to {target}, a service of another tenant, fail, and its mirrors send \
             nothing, until the policy of {target} accepts them: its operator writes 'acceptRoutesFrom: [{name}]'"
        )
    });
    refused.take(MAX_NAMED).collect()
}

/// Traffic classes with shares that no route sets, in policies of the resources and in stored policies that stay.
fn unknown_classes(
    name: &ServiceName,
    policy: &Policy,
    known: &View,
    resources: &[&Resource],
) -> Option<String> {
    let written = unknown_traffic_names::policies(resources);
    let stored = known
        .services
        .iter()
        .filter_map(|(name, one)| Some((name, &one.policy.as_ref()?.value)))
        .filter(|(name, _)| !written.iter().any(|(written, _)| written == name));
    unknown_traffic_names::unknown_classes(name, policy, written.iter().copied().chain(stored))
}

/// Plaintext endpoints that callers in a mesh with a trust domain will refuse because of a policy in the resources.
fn refused_endpoints(known: &View, resources: &[&Resource]) -> Vec<String> {
    let warning = |(name, policy): (&ServiceName, &Policy)| {
        let stored = known.services.get(name).filter(|_| known.has_trust_domain)?;
        let written = declared(resources).find_map(|(n, service)| (n == name).then_some(service));
        let service = written.or_else(|| stored.service.as_ref().map(|at| &at.value));
        let endpoints = stored.endpoints.iter().map(|at| &at.value);
        let refused = endpoints.filter(|endpoint| policy.mtls.refuses(service, endpoint));
        let refused: BTreeSet<String> = refused.map(|endpoint| endpoint.instance.to_string()).collect();
        (!refused.is_empty()).then(|| {
            format!(
                "by the policy of {name}, callers do not use its plaintext endpoints in this strict mesh: {}; 'mtls: permissive' permits them",
                some(&refused)
            )
        })
    };
    unknown_traffic_names::policies(resources).into_iter().filter_map(warning).collect()
}

/// Policies that balance by a hash that their services do not compute.
fn unhashed(known: &View, resources: &[&Resource]) -> Vec<String> {
    let subjects: BTreeSet<&ServiceName> = resources
        .iter()
        .filter_map(|resource| match resource {
            Resource::Service(name, _) | Resource::Policy(name, _) => Some(name),
            _ => None,
        })
        .collect();
    let warning = |name: &ServiceName| {
        let stored = known.services.get(name);
        let written = declared(resources).find_map(|(n, service)| (n == name).then_some(service));
        let service = written.or_else(|| stored?.service.as_ref().map(|at| &at.value))?;
        let written = resources.iter().find_map(|resource| match resource {
            Resource::Policy(n, policy) if n == name => Some(policy),
            _ => None,
        });
        let policy: &Policy = written.or_else(|| stored?.policy.as_ref().map(|at| &at.value))?;
        let hashed = service.kind == ServiceKind::ConsistentHash;
        if hashed || policy.balancing.policy != BalancingPolicy::BoundedHash {
            return None;
        }
        let (kind, _) = type_and_protocol(service);
        Some(format!(
            "the policy of {name} balances by boundedHash, which is for consistent-hash services: {name} is {kind}, \
             so that 'score' is used instead"
        ))
    };
    subjects.into_iter().filter_map(warning).collect()
}

/// Replicas that callers would not find: they look up the instance among the endpoints of the replica's region.
pub(crate) fn replica_warnings(
    name: &ServiceName,
    map: &ShardMap,
    known: Option<&ServiceView>,
) -> Vec<String> {
    let endpoints = known.into_iter().flat_map(|of| &of.endpoints);
    let regions: BTreeMap<&InstanceId, &Region> =
        endpoints.map(|endpoint| (&endpoint.value.instance, &endpoint.value.location.region)).collect();
    let (mut missing, mut elsewhere) = (BTreeSet::new(), BTreeSet::new());
    for replica in map.shards.iter().flat_map(|shard| &shard.replicas) {
        match regions.get(&replica.instance) {
            None => _ = missing.insert(replica.instance.to_string()),
            Some(region) if **region != replica.region => {
                elsewhere
                    .insert(format!("{} in {}, registered in {region}", replica.instance, replica.region));
            }
            Some(_) => {}
        }
    }
    let mut warnings = Vec::new();
    if !missing.is_empty() {
        warnings.push(format!(
            "the shard map of {name} has replicas on instances that are not registered: {}",
            some(&missing)
        ));
    }
    if !elsewhere.is_empty() {
        let some = some(&elsewhere);
        warnings.push(format!("the shard map of {name} has replicas that callers do not find, in another region than their endpoint's: {some}"));
    }
    warnings
}

fn some(names: &BTreeSet<String>) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMED).map(String::as_str).collect();
    match names.len().saturating_sub(MAX_NAMED) {
        0 => shown.join("; "),
        more => format!("{}; and {more} more", shown.join("; ")),
    }
}
