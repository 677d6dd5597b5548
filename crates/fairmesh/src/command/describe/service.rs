//! Everything about one service.

use std::fmt::Write;

use fairmesh_model::{
    ServiceName,
    spec::{Document, Plan, PolicySpec, ShardMapSpec},
};
use serde_json::{Value, json};

use crate::{
    cli::Format,
    command::get,
    failure::Failure,
    output,
    view::{At, ServiceView},
};

/// Prints a service.
pub(super) fn describe(name: &ServiceName, one: &ServiceView, format: Format) -> Result<(), Failure> {
    output::print_one(format, &value(name, one), &text(name, one)?)
}

fn value(name: &ServiceName, one: &ServiceView) -> Value {
    json!({
        "name": name.to_string(),
        "service": one.service.as_ref().map(|service| {
            Document::from(&Plan::Service(name.clone(), service.value.clone()))
        }),
        "policy": PolicySpec::of(name, &one.effective_policy()),
        "policyRevision": one.policy.as_ref().map(|policy| policy.revision),
        "endpoints": get::endpoint_rows(name, one).items,
        "shardMap": one.shards.as_ref().map(|map| ShardMapSpec::of(name, map)),
        "shardMapVersion": one.shards.as_ref().map(|map| map.version),
        "moves": one.moves.len(),
    })
}

fn text(name: &ServiceName, one: &ServiceView) -> Result<String, Failure> {
    let mut lines = vec![("Service", name.to_string())];
    match &one.service {
        Some(At { value, revision }) => {
            let (kind, protocol) = get::service_words(value);
            lines.push(("Type", format!("{kind}, {protocol} (revision {revision})")));
        }
        None => lines.push(("Type", "not declared: callers cannot find it".into())),
    }
    lines.push((
        "Policy",
        match &one.policy {
            Some(policy) => format!("written (revision {})", policy.revision),
            None => "default".into(),
        },
    ));
    let policy = one.effective_policy();
    lines.extend(get::policy_summary(&policy));
    let mut text = String::new();
    for (title, value) in lines {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{title:<10}{value}");
    }
    if !policy.routes.is_empty() {
        section(&mut text, "Routes", &output::yaml(&PolicySpec::of(name, &policy).routes)?);
    }
    let endpoints = get::endpoint_rows(name, one);
    section(&mut text, "Endpoints", &table_or_none(&endpoints));
    if let Some(map) = &one.shards {
        let title = format!("Shards, version {}, keys {}", map.version, map.interval);
        section(&mut text, &title, &table_or_none(&get::one_map(name, map)));
    }
    if !one.moves.is_empty() {
        let hint = format!("{} under way; see 'fairmesh shards moves {name}'\n", one.moves.len());
        section(&mut text, "Moves", &hint);
    }
    Ok(text)
}

fn table_or_none(listing: &output::Listing) -> String {
    if listing.rows.is_empty() { "none\n".into() } else { output::table(listing.head, &listing.rows) }
}

fn section(text: &mut String, title: &str, body: &str) {
    text.push('\n');
    text.push_str(title);
    text.push('\n');
    for line in body.lines() {
        text.push_str("  ");
        text.push_str(line);
        text.push('\n');
    }
}
