//! Records: services without endpoints, endpoints without callers, and references to missing records.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use fairmesh_console::view_reader::{Scope, ServiceView, View};
use fairmesh_model::{
    Endpoint, EndpointState, ServiceKind, ServiceName,
    spec::{Resource, write_duration},
};
use fairmesh_views::states;
use fairmesh_wire::handshake::Connection;

use super::subsets;
use crate::{
    findings_report::{Level, Report, listed},
    records::apply::warnings::{
        Mention, mentioned, replica_warnings, unknown_roles::RoutedRoles, unknown_traffic_names,
        unreachable_routes,
    },
};

/// Checks the records of the services in a view of these scopes.
pub(super) async fn check(connection: &Connection, (view, scopes): (&View, &[Scope]), report: &mut Report) {
    report.add_unreadable(view);
    for (name, one) in &view.services {
        match &one.service {
            None => undeclared(name, one, report),
            Some(_) => endpoints(name, one, view, report),
        }
        if view.has_trust_domain {
            plaintext(name, one, report);
        }
        policy(name, one, (view, scopes), report);
        unreachable(name, one, report);
        roles(name, one, report);
        injected(name, one, report);
        // Regions and classes may be known from services that were not read.
        if matches!(scopes, [Scope::All]) {
            traffic(name, one, view, report);
        }
        shards(name, one, report);
    }
    regions(view, report);
    shared_addresses(view, report);
    subsets::check(connection, view, report).await;
    report.ok("records", format!("examined the records of {} services", view.services.len()));
}

fn undeclared(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    if !one.endpoints.is_empty() {
        report.add(
            "service.undeclared",
            Level::Error,
            format!("{name} has {} endpoints and is not declared: no caller finds them", one.endpoints.len()),
            format!("apply a document 'kind: Service' named {name}, or stop its servers"),
        );
    }
}

/// Reports endpoints that callers refuse because they use plaintext.
fn plaintext(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let refused: BTreeSet<String> = one.refused().map(|endpoint| endpoint.instance.to_string()).collect();
    if refused.is_empty() {
        return;
    }
    let level = if refused.len() == one.endpoints.len() { Level::Error } else { Level::Warning };
    report.add(
        "endpoint.plaintext",
        level,
        format!("callers do not use plaintext endpoints of {name} in a strict mesh: {}", listed(&refused)),
        format!(
            "register them with mutual TLS, as 'fairmesh register' does without --plaintext, or write 'mtls: permissive' into the policy of {name}; \
             remove what is unknown with 'fairmesh delete endpoint {name} INSTANCE'"
        ),
    );
}

/// Checks whether a declared service has an endpoint for its calls.
fn endpoints(name: &ServiceName, one: &ServiceView, view: &View, report: &mut Report) {
    let states = states(one, view);
    let serving = one.endpoints.iter().filter(|at| at.value.state == EndpointState::Serving).count();
    let unhealthy: BTreeSet<String> = one
        .endpoints
        .iter()
        .zip(&states)
        .filter(|(_, state)| state.state == "unhealthy")
        .map(|(at, _)| at.value.instance.to_string())
        .collect();
    let list = format!("see 'fairmesh get endpoints {name}'");
    if one.endpoints.is_empty() {
        let message = format!("{name} has no endpoint: calls to it fail");
        let remedy = format!(
            "start a server with 'fairmesh register {name} …', or delete it with 'fairmesh delete service {name}'"
        );
        report.add("service.noEndpoints", Level::Warning, message, remedy);
    } else if serving == 0 {
        let message = format!("none of the {} endpoints of {name} is serving", states.len());
        report.add(
            "service.notServing",
            Level::Error,
            message,
            match one.endpoints.iter().any(|at| at.value.state == EndpointState::Draining) {
                true => format!("{list}; 'fairmesh undrain' ends a drain"),
                false => format!("start their servers again; {list}"),
            },
        );
    }
    if serving > 0 {
        some_out(name, one, report);
    }
    if !unhealthy.is_empty() {
        let message = format!("health checks of {name} fail for {}", listed(&unhealthy));
        report.add("endpoint.unhealthy", Level::Warning, message, format!("{list} for the causes"));
    }
}

/// Reports endpoints that are out of service while others of the same service are serving: lost ones, and ones that
/// an operator drained and may have forgotten.
fn some_out(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let named = |is_one: fn(&Endpoint) -> bool| -> BTreeSet<String> {
        let found = one.endpoints.iter().map(|at| &at.value).filter(|endpoint| is_one(endpoint));
        found.map(|endpoint| endpoint.instance.to_string()).collect()
    };
    let lost = named(|endpoint| endpoint.state == EndpointState::Lost);
    if !lost.is_empty() {
        report.add(
            "endpoint.lost",
            Level::Warning,
            format!("{} of {} endpoints of {name} are lost: {}", lost.len(), one.endpoints.len(), listed(&lost)),
            format!(
                "start their servers again, or remove them with 'fairmesh delete endpoint {name} INSTANCE'; 'fairmesh get \
                 endpoints {name}' says since when"
            ),
        );
    }
    let drained = named(|endpoint| endpoint.state == EndpointState::Draining && endpoint.drained().is_some());
    if !drained.is_empty() {
        report.add(
            "endpoint.drained",
            Level::Note,
            format!("'fairmesh drain' keeps calls from endpoints of {name}: {}", listed(&drained)),
            format!("'fairmesh undrain {name} INSTANCE' ends a drain"),
        );
    }
}

/// Reports addresses that endpoints of several services use, since calls to all of these services reach the same
/// program.
fn shared_addresses(view: &View, report: &mut Report) {
    let mut services: BTreeMap<SocketAddr, BTreeSet<String>> = BTreeMap::new();
    for (name, one) in &view.services {
        let live = one.endpoints.iter().map(|at| &at.value).filter(|at| at.state != EndpointState::Lost);
        for endpoint in live {
            services.entry(endpoint.address).or_default().insert(name.to_string());
        }
    }
    for (address, names) in services.into_iter().filter(|(_, names)| names.len() > 1) {
        report.add(
            "endpoint.sharedAddress",
            Level::Note,
            format!("calls to {} reach one program, at {address}", listed(&names)),
            "if it does not serve all of them, correct the address of one",
        );
    }
}

/// Checks references in the policy of a service.
fn policy(name: &ServiceName, one: &ServiceView, (view, scopes): (&View, &[Scope]), report: &mut Report) {
    let Some(policy) = &one.policy else { return };
    let resource = Resource::Policy(name.clone(), policy.value.clone());
    let is_declared = |name: &ServiceName| view.services.get(name).is_some_and(|one| one.service.is_some());
    let mut named = BTreeSet::new();
    for Mention { name: target, reference, effect } in mentioned(&resource) {
        // Services that were not read may be declared.
        let is_read = scopes.iter().any(|scope| scope.contains(&target));
        if is_read && !is_declared(&target) && named.insert(target.clone()) {
            let check = if target == *name { "policy.undeclared" } else { "policy.unknownService" };
            report.add(
                check,
                Level::Error,
                format!("{reference} names {target}, which is not declared: {effect}"),
                format!("apply a document 'kind: Service' named {target}, or correct the policy ('fairmesh get policies {name} -o yaml')"),
            );
        }
    }
}

/// Reports routes of a policy that no call reaches.
fn unreachable(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let Some(policy) = &one.policy else { return };
    for warning in unreachable_routes(name, &policy.value) {
        let remedy = format!(
            "order them by 'fairmesh get policies {name} -o yaml' and 'fairmesh apply', or remove it"
        );
        report.add("policy.unreachableRoute", Level::Warning, warning, remedy);
    }
}

/// Reports roles of a policy that no copy of the service has.
fn roles(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let (Some(service), Some(policy)) = (&one.service, &one.policy) else { return };
    let (kind, policy, map) = (service.value.kind, &policy.value, one.shards.as_ref());
    for warning in (RoutedRoles { name, kind, policy, map }).warnings() {
        let remedy = format!("correct the policy ('fairmesh get policies {name} -o yaml')");
        report.add("policy.unknownRole", Level::Warning, warning, remedy);
    }
}

/// Reports faults that the routes of a policy inject. They are meant as a test, and are easily forgotten.
fn injected(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let Some(policy) = &one.policy else { return };
    for route in &policy.value.routes {
        let abort =
            route.actions.abort.map(|abort| format!("{} for {} of its calls", abort.status, abort.share));
        let delay = route.actions.delay.map(|delay| {
            format!("a delay of {} for {} of its calls", write_duration(delay.time), delay.share)
        });
        let faults: Vec<_> = abort.into_iter().chain(delay).collect();
        if !faults.is_empty() {
            let message = format!("route {} of {name} injects {}", route.name, faults.join(", and "));
            let remedy = format!(
                "end the test by removing 'fault' from the route: 'fairmesh get policies {name} -o yaml', then 'fairmesh apply'"
            );
            report.add("policy.fault", Level::Warning, message, remedy);
        }
    }
}

/// Reports regions and classes in the traffic section of a policy that occur nowhere else.
fn traffic(name: &ServiceName, one: &ServiceView, view: &View, report: &mut Report) {
    let Some(policy) = &one.policy else { return };
    let stored = view.services.iter().filter_map(|(name, one)| Some((name, &one.policy.as_ref()?.value)));
    let regions = unknown_traffic_names::regions(view, &[]);
    let unknown = [
        ("policy.unknownRegion", unknown_traffic_names::unknown_regions(name, &policy.value, &regions)),
        ("policy.unknownClass", unknown_traffic_names::unknown_classes(name, &policy.value, stored)),
    ];
    for (check, warning) in unknown {
        let Some(warning) = warning else { continue };
        let remedy = format!(
            "correct the policy ('fairmesh get policies {name} -o yaml'), or declare the region or set the class"
        );
        report.add(check, Level::Warning, warning, remedy);
    }
}

/// Reports replicas that callers do not find, and servers without a shard.
fn shards(name: &ServiceName, one: &ServiceView, report: &mut Report) {
    let kind = one.service.as_ref().map(|service| service.value.kind);
    let Some(map) = &one.shards else {
        if kind == Some(ServiceKind::Sharded) {
            let remedy = "apply a document 'kind: ShardMap' for it";
            report.add(
                "shards.missing",
                Level::Error,
                format!("{name} is sharded and has no shard map"),
                remedy,
            );
        }
        return;
    };
    if kind != Some(ServiceKind::Sharded) {
        let why = if kind.is_none() { "declared" } else { "sharded" };
        report.add(
            "shards.unused",
            Level::Warning,
            format!("{name} has a shard map and is not {why}: no caller uses the map"),
            format!(
                "delete it with 'fairmesh delete shardmap {name}', or apply a document 'kind: Service' named {name} with 'type: sharded'"
            ),
        );
        return;
    }
    for warning in replica_warnings(name, map, Some(one)) {
        let remedy = format!("register these instances, or move their shards: 'fairmesh shards get {name}'");
        report.add("shards.replicas", Level::Error, warning, remedy);
    }
    let holders: BTreeSet<_> =
        map.shards.iter().flat_map(|shard| &shard.replicas).map(|copy| &copy.instance).collect();
    let idle =
        one.endpoints.iter().map(|at| &at.value.instance).filter(|instance| !holders.contains(instance));
    let idle: BTreeSet<String> = idle.map(ToString::to_string).collect();
    if !idle.is_empty() {
        report.add(
            "endpoint.unreachable",
            Level::Warning,
            format!("no call reaches endpoints of {name} that hold no shard: {}", listed(&idle)),
            format!("move or add shards to them: 'fairmesh shards move {name} …'"),
        );
    }
}

/// Reports regions that endpoints are in but the declared topology does not have.
fn regions(view: &View, report: &mut Report) {
    let declared = &view.regions.value.regions;
    if declared.is_empty() {
        return;
    }
    let used = view.services.values().flat_map(|one| &one.endpoints).map(|at| &at.value.location.region);
    let unknown: BTreeSet<String> =
        used.filter(|region| !declared.contains_key(*region)).map(ToString::to_string).collect();
    if !unknown.is_empty() {
        report.add(
            "region.undeclared",
            Level::Warning,
            format!("endpoints are in regions that the topology does not declare: {}", listed(&unknown)),
            "add them to 'kind: Topology', or correct --region of their agents: undeclared regions have no neighbours",
        );
    }
}
