//! Details of one service.

use std::fmt::Write;

use fairmesh_console::{
    arguments::Format,
    cell_text::type_and_protocol,
    failure::Failure,
    output::{self, Listing},
    view_reader::{At, ReadView, ServiceView, View},
};
use fairmesh_model::{
    AuthorizationMode, AuthorizationRule, Capacities, Capacity, DefaultAuthorization, FieldOrigin, Hosts,
    PolicyField, Region, Role, ServiceKind, ServiceName,
    spec::{DefaultAuthorizationSpec, Document, PolicySpec, Resource, ShardMapSpec},
};
use serde_json::{Value, json};

use super::routes;
use crate::records::get;

/// Prints a service.
pub(super) fn describe(name: &ServiceName, view: &View, format: Format) -> Result<(), Failure> {
    let one = view.service(name)?;
    let capacity = capacity(one, &view.hosts.value);
    let health = get::health_rows(name, one, &view.hosts.value);
    let authorization = authorization(one, view.authorization.unwrap_or_default());
    let endpoints = get::endpoint_rows(name, one, view);
    let lists = Lists { endpoints, capacity, health, authorization };
    output::print_one(format, &value(name, one, &lists), &text(name, one, &lists))
}

/// Endpoints of a service, their capacity, and the verdicts on them.
struct Lists {
    endpoints: Listing,
    capacity: Listing,
    health: Listing,
    /// Text about who may call the service.
    authorization: String,
}

/// Text about who may call a service: the rules of its policy, or the default for services without rules.
fn authorization(one: &ServiceView, default: DefaultAuthorization) -> String {
    let policy = one.policy.as_ref().and_then(|policy| policy.value.authorization.as_deref());
    let Some(authorization) = policy else {
        return format!("{}, the default of the mesh", DefaultAuthorizationSpec::of(default).default);
    };
    let mode = match authorization.mode {
        AuthorizationMode::Enforce => "enforced",
        AuthorizationMode::Audit => "audited",
    };
    let rule = |rule: &AuthorizationRule| format!("{}{}", if rule.denies { "not " } else { "" }, rule.name);
    let rules: Vec<_> = authorization.rules.iter().map(rule).collect();
    match rules.is_empty() {
        true => format!("no caller, {mode}"),
        false => format!("by the rules {}, {mode}", rules.join(", ")),
    }
}

/// Capacity of serving endpoints by region and zone, one row each.
fn capacity(one: &ServiceView, hosts: &Hosts) -> Listing {
    let capacities = Capacities::of(one.endpoints.iter().map(|endpoint| &endpoint.value), hosts);
    let mut listing = Listing::new(&["REGION", "ZONE", "SERVING", "POWER", "SHARE"]);
    let mut add = |region: &Region, zone: Option<&str>, capacity: Capacity| {
        let share = capacity.thousandths_of(capacities.total);
        listing.add(
            vec![
                region.to_string(),
                zone.unwrap_or("all").to_owned(),
                capacity.endpoints.to_string(),
                capacity.power.to_string(),
                format!("{}.{} %", share / 10, share % 10),
            ],
            json!({
                "region": region.to_string(),
                "zone": zone,
                "serving": capacity.endpoints,
                "power": capacity.power,
                "shareThousandths": share,
            }),
        );
    };
    for (region, capacity) in &capacities.regions {
        add(region, None, *capacity);
        for (zone, capacity) in capacities.zones_of(region).filter_map(|(zone, c)| Some((zone?, c))) {
            add(region, Some(zone.as_str()), capacity);
        }
    }
    listing
}

fn value(name: &ServiceName, one: &ServiceView, lists: &Lists) -> Value {
    json!({
        "name": name.to_string(),
        "service": one.service.as_ref().map(|service| {
            Document::from(&Resource::Service(name.clone(), service.value.clone()))
        }),
        "policy": PolicySpec::of(name, &one.effective_policy()),
        "policyRevision": one.policy.as_ref().map(|policy| policy.revision),
        "endpoints": lists.endpoints.items,
        "capacity": lists.capacity.items,
        "health": lists.health.items,
        "shardMap": one.shards.as_ref().map(|map| ShardMapSpec::of(name, map)),
        "shardMapVersion": one.shards.as_ref().map(|map| map.version),
        "authorization": lists.authorization,
        "moves": one.moves.len(),
    })
}

fn text(name: &ServiceName, one: &ServiceView, lists: &Lists) -> String {
    let mut lines = vec![("Service", name.to_string())];
    match &one.service {
        Some(At { value, revision }) => {
            let (kind, protocol) = type_and_protocol(value);
            lines.push(("Type", format!("{kind}, {protocol} (revision {revision})")));
        }
        None => lines.push(("Type", "not declared: callers cannot find it".into())),
    }
    lines.push((
        "Policy",
        match &one.policy {
            Some(policy) => format!("written (revision {})", policy.revision),
            None => "none of its own".into(),
        },
    ));
    let (policy, origins) = one.merged_policy();
    lines.push(("Defaults", defaults(&origins)));
    lines.extend(get::policy_summary(&policy, one.service.as_ref().map(|service| service.value.kind)));
    if one.service.as_ref().is_some_and(|at| at.value.kind == ServiceKind::Sharded) {
        lines.push(("Role", role(policy.role.as_ref())));
    }
    lines.push(("Callers", lists.authorization.clone()));
    if !one.endpoints.is_empty() {
        lines.push((
            "Ejections",
            format!("each caller's own: 'fairmesh proxy endpoints {name}' shows those of a proxy"),
        ));
    }
    let mut text = String::new();
    for (title, value) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{title:<10}{value}");
    }
    if !policy.routes.is_empty() {
        section(&mut text, "Routes", &routes::table(name, &policy));
    }
    let Lists { endpoints, capacity, health, .. } = lists;
    section(&mut text, "Endpoints", &table_or_none(endpoints));
    section(&mut text, "Capacity", &table_or_none(capacity));
    if !health.rows.is_empty() {
        section(&mut text, "Health", &table_or_none(health));
    }
    if let Some(map) = &one.shards {
        let title = format!("Shards, version {}, keys {}", map.version, map.interval);
        section(&mut text, &title, &table_or_none(&get::one_map(name, map)));
    }
    if !one.moves.is_empty() {
        let hint = format!("{} in progress; see 'fairmesh shards moves {name}'\n", one.moves.len());
        section(&mut text, "Moves", &hint);
    }
    text
}

/// Text about the role of the copies that get calls without one.
fn role(default: Option<&Role>) -> String {
    match default {
        Some(role) => format!("{role}, for calls that name none and match no route with a role"),
        None => "any, for calls that name none and match no route with a role".to_owned(),
    }
}

/// Text about the policy fields that come from defaults.
fn defaults(origins: &[(PolicyField, FieldOrigin)]) -> String {
    let of = |wanted: FieldOrigin, whose: &str| {
        let fields = origins.iter().filter(|(_, origin)| *origin == wanted);
        let fields: Vec<_> = fields.map(|(field, _)| field.path()).collect();
        (!fields.is_empty()).then(|| format!("{} of the {whose}", fields.join(", ")))
    };
    let inherited = [of(FieldOrigin::Tenant, "tenant"), of(FieldOrigin::Mesh, "mesh")];
    let inherited: Vec<_> = inherited.into_iter().flatten().collect();
    if inherited.is_empty() { "built-in values only".to_owned() } else { inherited.join("; ") }
}

fn table_or_none(listing: &Listing) -> String {
    if listing.rows.is_empty() { "none\n".into() } else { output::table(&listing.head, &listing.rows) }
}

pub(super) fn section(text: &mut String, title: &str, body: &str) {
    text.push('\n');
    text.push_str(title);
    text.push('\n');
    for line in body.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
}
