//! `fairmesh proxy routes`: how one proxy routes calls of its services.

use std::process::ExitCode;

use clap::Args;
use fairmesh_model::ServiceName;
use serde_json::{Value, json};

use super::admin_page::{AdminArgs, page};
use crate::{cli::OutputArgs, failure::Failure, output::Listing};

/// Fields of a route that have a column of their own.
const OWN_COLUMNS: &[&str] = &["name", "match", "split"];

/// Arguments of `fairmesh proxy routes`.
#[derive(Debug, Args)]
pub(super) struct RoutesArgs {
    /// A service that was called through the proxy, as tenant/service [default: all that were].
    service: Option<ServiceName>,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    output_args: OutputArgs,
}

pub(super) async fn run(args: RoutesArgs) -> Result<ExitCode, Failure> {
    let mut listing = Listing::new(&["SERVICE", "ROUTE", "MATCH", "GOES TO", "ACTIONS", "REVISION"]);
    listing.why_empty = Some("no service was called through the proxy".into());
    for service in services(&args).await? {
        let routed = page(args.admin.address, &format!("/services/{service}/routes")).await?;
        let routes = routed["policy"]["routes"].as_array().cloned().unwrap_or_default();
        let policy = &routed["policy"];
        let rows = routes.iter().map(|route| row(&service, route, policy));
        listing.rows.extend(rows.map(|row| with_revision(row, &routed)));
        // What calls that match no route get.
        let rest = json!({ "name": "(default)" });
        listing.rows.push(with_revision(row(&service, &rest, policy), &routed));
        listing.items.push(routed);
    }
    listing.print(args.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

/// The services to list; of all, those whose records the proxy has.
async fn services(args: &RoutesArgs) -> Result<Vec<String>, Failure> {
    if let Some(service) = &args.service {
        return Ok(vec![service.to_string()]);
    }
    let services = page(args.admin.address, "/services").await?;
    let ready = services.as_array().into_iter().flatten().filter(|row| row["state"] == json!("ready"));
    Ok(ready.filter_map(|row| row["service"].as_str().map(str::to_owned)).collect())
}

fn with_revision(mut row: Vec<String>, routed: &Value) -> Vec<String> {
    row.push(routed["revision"].to_string());
    row
}

fn row(service: &str, route: &Value, policy: &Value) -> Vec<String> {
    let matches = match &route["match"] {
        Value::Null => "every call".to_owned(),
        matches => flow(matches),
    };
    let mut actions: Vec<_> = route
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| !OWN_COLUMNS.contains(&name.as_str()))
        .map(|(name, value)| format!("{name}: {}", flow(value)))
        .collect();
    if let (Value::Null, Value::String(timeout)) = (&route["timeout"], &policy["timeout"]) {
        actions.push(format!("timeout: {timeout}"));
    }
    let name = route["name"].as_str().unwrap_or_default();
    vec![service.to_owned(), name.to_owned(), matches, backends(service, route), actions.join(", ")]
}

/// The backends with their shares.
fn backends(service: &str, route: &Value) -> String {
    if !route["redirect"].is_null() {
        return "a redirect".to_owned();
    }
    let split = route["split"].as_array().cloned().unwrap_or_default();
    let weight = |backend: &Value| backend["weight"].as_f64().unwrap_or_default();
    let total: f64 = split.iter().map(weight).sum();
    if total == 0.0 {
        return format!("{service} 100 %");
    }
    let share = |backend: &Value| {
        let percent = (weight(backend) * 1000.0 / total).round() / 10.0;
        format!("{} {percent} %", backend["service"].as_str().unwrap_or_default())
    };
    split.iter().map(share).collect::<Vec<_>>().join(", ")
}

/// A value in one line, as flow style of YAML.
fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name}: {}", flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_shows_shares_and_actions() {
        let route = json!({
            "name": "canary", "match": { "path": { "prefix": "/a" } },
            "split": [{ "service": "shop/web", "weight": 9 }, { "service": "shop/web-canary", "weight": 1 }],
            "fault": { "abort": { "percent": 50 } },
        });
        let row = row("shop/web", &route, &json!({ "timeout": "5s" }));
        assert_eq!(row[1..4], ["canary", "{path: {prefix: /a}}", "shop/web 90 %, shop/web-canary 10 %"]);
        assert_eq!(row[4], "fault: {abort: {percent: 50}}, timeout: 5s");
    }
}
