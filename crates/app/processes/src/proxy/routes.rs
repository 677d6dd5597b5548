//! `fairmesh proxy routes`: how one proxy routes calls of its services.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use fairmesh_console::{
    arguments::OutputArgs,
    cell_text::rough_age,
    failure::Failure,
    output::{Listing, decimal},
    route_cells,
};
use fairmesh_model::ServiceName;
use serde_json::{Value, json};

use super::admin_page::{AdminArgs, page};

/// Columns of the table of region tables.
const TABLES: &[&str] = &["SERVICE", "CALLERS IN", "CLASS", "SHARES", "DROPPED", "CONFIRMED", "STATE"];

/// Columns of the table of requests by route and backend.
const COUNTS: &[&str] =
    &["SERVICE", "ROUTE", "BACKEND", "REQUESTS", "4XX", "5XX", "GRPC FAILED", "ERRORS", "WITHOUT SERVER"];

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
    let (mut counts, mut tables) = (Vec::new(), Vec::new());
    for service in services(&args).await? {
        let routed = page(args.admin.address, &format!("/services/{service}/routes")).await?;
        let routes = routed["policy"]["routes"].as_array().cloned().unwrap_or_default();
        let policy = &routed["policy"];
        let rows = routes.iter().map(|route| row(&service, route, policy));
        listing.rows.extend(rows.map(|row| with_revision(row, &routed)));
        // The default for calls that match no route.
        let rest = json!({ "name": "(default)" });
        listing.rows.push(with_revision(row(&service, &rest, policy), &routed));
        counts.extend(count_rows(&service, &routed["counts"]));
        tables.extend(table_rows(&service, &routed["table"]));
        listing.items.push(routed);
    }
    listing.further.extend([(COUNTS, counts), (TABLES, tables)]);
    listing.print(args.output_args.format())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the services to list: the given one, or all services whose records the proxy has.
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

/// A row for each route and backend that had a request.
fn count_rows(service: &str, counts: &Value) -> Vec<Vec<String>> {
    let row = |pair: &Value| {
        let class = |class: usize| pair["responses"][class].as_u64().unwrap_or_default();
        let all: u64 = (0..5).map(class).sum();
        let number = |field: &str| pair[field].as_u64().unwrap_or_default();
        let grpc = number("grpcFailures");
        let failed = class(4) + grpc + number("refused");
        let text = |field: &str| pair[field].as_str().unwrap_or_default().to_owned();
        vec![
            service.to_owned(),
            // Same name as in the table of routes.
            text("route").replace("(none)", "(default)"),
            text("backend"),
            all.to_string(),
            class(3).to_string(),
            class(4).to_string(),
            grpc.to_string(),
            format!("{} %", decimal(failed as f64 * 100.0 / all.max(1) as f64, 1)),
            pair["withoutServer"].to_string(),
        ]
    };
    counts.as_array().into_iter().flatten().map(row).collect()
}

/// One row for each class of the region table in use.
fn table_rows(service: &str, table: &Value) -> Vec<Vec<String>> {
    let percent = |value: &Value| format!("{}%", value.as_f64().unwrap_or_default());
    let confirmed = match (table["byHand"].as_bool(), table["ageSeconds"].as_f64()) {
        (Some(false), Some(age)) => {
            format!("{} ago", rough_age(Duration::try_from_secs_f64(age).unwrap_or_default()))
        }
        _ => "by hand".to_owned(),
    };
    let row = |shares: &Value| {
        let to = shares["toPercent"].as_object().into_iter().flatten();
        let to = to.map(|(region, share)| format!("{region} {}", percent(share)));
        vec![
            service.to_owned(),
            table["from"].as_str().unwrap_or_default().to_owned(),
            shares["class"].as_str().unwrap_or("-").to_owned(),
            to.collect::<Vec<_>>().join(", "),
            percent(&shares["droppedPercent"]),
            confirmed.clone(),
            table_state(table),
        ]
    };
    table["shares"].as_array().into_iter().flatten().map(row).collect()
}

/// Describes the remaining weight of a region table and its remaining time.
fn table_state(table: &Value) -> String {
    let weakens = table["weakensInSeconds"].as_f64();
    let left = weakens.map(|seconds| rough_age(Duration::try_from_secs_f64(seconds).unwrap_or_default()));
    let mut classes = table["shares"].as_array().into_iter().flatten();
    let drops = classes.any(|class| class["droppedPercent"].as_f64().is_some_and(|percent| percent > 0.0));
    match (table["force"].as_str().unwrap_or_default(), left) {
        ("full", None) => "in force".to_owned(),
        ("full", Some(left)) if drops => format!("in force; unconfirmed, it drops nothing in {left}"),
        ("full", Some(left)) => format!("in force; unconfirmed, rings decide in {left}"),
        ("withoutDrops", left) => {
            format!(
                "not confirmed for 60 s: drops nothing; unconfirmed, rings decide in {}",
                left.unwrap_or_default()
            )
        }
        _ => "not confirmed for 15 min: no force, rings decide".to_owned(),
    }
}

fn row(service: &str, route: &Value, policy: &Value) -> Vec<String> {
    let mut actions = route_cells::actions(route, &[]);
    if let (Value::Null, Value::String(timeout)) = (&route["timeout"], &policy["timeout"]) {
        actions.push(format!("timeout: {timeout}"));
    }
    let name = route["name"].as_str().unwrap_or_default();
    let (conditions, backends) = (route_cells::conditions(route), route_cells::backends(service, route));
    vec![service.to_owned(), name.to_owned(), conditions, backends, actions.join(", ")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_table_row_shows_age_and_when_it_weakens() {
        let table = |force: &str, age: f64, weakens: Value| {
            json!({ "from": "eu", "byHand": false, "ageSeconds": age, "force": force, "weakensInSeconds": weakens,
                "shares": [{ "class": null, "toPercent": { "eu": 70.0, "us": 20.5 }, "droppedPercent": 9.5 }] })
        };
        let row = &table_rows("shop/web", &table("full", 12.3, json!(47.7)))[0];
        assert_eq!(row[..6], ["shop/web", "eu", "-", "eu 70%, us 20.5%", "9.5%", "12 s ago"]);
        assert_eq!(row[6], "in force; unconfirmed, it drops nothing in 47 s");
        let mut without_drops = table("full", 12.3, json!(887.7));
        without_drops["shares"][0]["droppedPercent"] = json!(0.0);
        assert_eq!(
            table_rows("shop/web", &without_drops)[0][6],
            "in force; unconfirmed, rings decide in 14 min"
        );
        let state = |force, age, weakens| table_rows("shop/web", &table(force, age, weakens))[0][6].clone();
        let weaker = state("withoutDrops", 300.0, json!(600.0));
        assert_eq!(weaker, "not confirmed for 60 s: drops nothing; unconfirmed, rings decide in 10 min");
        assert!(state("lapsed", 901.0, Value::Null).contains("rings decide"));
        assert!(table_rows("shop/web", &Value::Null).is_empty());
    }

    #[test]
    fn route_row_shows_requests_and_share_of_errors() {
        let counts = json!([
            { "route": "canary", "backend": "shop/next", "responses": [0, 60, 0, 4, 16], "grpcFailures": 8,
              "withoutServer": 2, "refused": 0 },
            { "route": "(none)", "backend": "shop/web", "responses": [0, 1, 0, 0, 0], "withoutServer": 0 },
            { "route": "undeclared", "backend": "shop/nxt", "responses": [0, 0, 0, 4, 0], "withoutServer": 4, "refused": 4 },
        ]);
        let rows = count_rows("shop/web", &counts);
        assert_eq!(rows[0], ["shop/web", "canary", "shop/next", "80", "4", "16", "8", "30.0 %", "2"]);
        assert_eq!(rows[1][1..8], ["(default)", "shop/web", "1", "0", "0", "0", "0.0 %"]);
        assert_eq!(rows[2][3..9], ["4", "4", "0", "0", "100.0 %", "4"]);
        assert!(count_rows("shop/web", &Value::Null).is_empty(), "a proxy of the release before");
    }

    #[test]
    fn route_row_shows_split_shares_and_actions() {
        let route = json!({
            "name": "canary", "match": { "path": { "prefix": "/a" } },
            "split": [{ "service": "shop/web", "weight": 9 }, { "service": "shop/web-canary", "weight": 1 }],
            "fault": { "abort": { "percent": 50 } },
        });
        let row = row("shop/web", &route, &json!({ "timeout": "5s" }));
        assert_eq!(row[1..4], ["canary", "path /a and below", "shop/web 90 %, shop/web-canary 10 %"]);
        assert_eq!(row[4], "fault: {abort: {percent: 50}}, timeout: 5s");
    }
}
