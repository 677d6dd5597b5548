//! The routes of a service as a table.

use fairmesh_console::{
    output,
    route_cells::{actions, backends, conditions, flow},
};
use fairmesh_model::{Policy, ServiceName, spec::PolicySpec};
use serde_json::{Value, json};

/// Timeouts of a route, with their words.
const TIMEOUTS: [(&str, &str); 4] = [
    ("timeout", ""),
    ("responseHeaderTimeout", " for the response"),
    ("idleTimeout", " of silence"),
    ("serverTimeout", " for the server"),
];
/// Fields of a route about repeated calls.
const RETRIES: [&str; 4] = ["idempotent", "retryOn", "attemptTimeout", "hedge"];

/// One row for each route, in their order.
pub(super) fn table(name: &ServiceName, policy: &Policy) -> String {
    let document = json!(PolicySpec::of(name, policy));
    let routes = document["routes"].as_array().cloned().unwrap_or_default();
    let rows: Vec<_> = routes.iter().map(|route| row(&name.to_string(), route, &document)).collect();
    output::table(&["ROUTE", "MATCH", "GOES TO", "TIMEOUT", "RETRIES", "ACTIONS"], &rows)
}

fn row(service: &str, route: &Value, policy: &Value) -> Vec<String> {
    let shown: Vec<_> = TIMEOUTS.iter().map(|(field, _)| *field).chain(RETRIES).collect();
    vec![
        route["name"].as_str().unwrap_or_default().to_owned(),
        conditions(route),
        backends(service, route),
        timeouts(route, policy),
        retries(route),
        or_dash(actions(route, &shown)),
    ]
}

/// The timeouts of the route; a timeout of the whole call may be the policy's.
fn timeouts(route: &Value, policy: &Value) -> String {
    let own = |field: &str| match (&route[field], field) {
        (Value::Null, "timeout") => policy[field].as_str(),
        (own, _) => own.as_str(),
    };
    let words = TIMEOUTS.iter().filter_map(|(field, words)| Some(format!("{}{words}", own(field)?)));
    or_dash(words.collect())
}

fn retries(route: &Value) -> String {
    let idempotent = (route["idempotent"] == json!(true)).then(|| "idempotent".to_owned());
    let statuses = route["retryOn"].as_array().into_iter().flatten().map(flow).collect::<Vec<_>>().join(", ");
    let statuses = (!statuses.is_empty()).then(|| format!("after {statuses}"));
    let attempt = route["attemptTimeout"].as_str().map(|limit| format!("{limit} an attempt"));
    let hedge = route["hedge"]["after"].as_str().map(|after| format!("hedged after {after}"));
    or_dash([idempotent, statuses, attempt, hedge].into_iter().flatten().collect())
}

fn or_dash(parts: Vec<String>) -> String {
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_row_shows_match_backends_timeouts_retries_and_actions() {
        let route = json!({
            "name": "canary", "match": { "path": { "prefix": "/v2" } }, "timeout": "2s", "idleTimeout": "9s",
            "split": [{ "service": "shop/web", "weight": 9 }, { "service": "shop/next", "weight": 1 }],
            "idempotent": true, "retryOn": [429, 502], "attemptTimeout": "1s", "rewrite": { "host": "a" },
        });
        let row = |route: &Value| row("shop/web", route, &json!({ "timeout": "5s" }));
        assert_eq!(
            row(&route),
            [
                "canary",
                "path /v2 and below",
                "shop/web 90 %, shop/next 10 %",
                "2s, 9s of silence",
                "idempotent, after 429, 502, 1s an attempt",
                "rewrite: {host: a}",
            ]
        );
        assert_eq!(row(&json!({ "name": "rest" })), ["rest", "every call", "shop/web 100 %", "5s", "-", "-"]);
    }
}
