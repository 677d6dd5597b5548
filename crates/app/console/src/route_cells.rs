//! Cells of tables of routes, from the JSON of a policy document.

use serde_json::Value;

/// Fields of a route with columns of their own in every table.
const OWN_COLUMNS: &[&str] = &["name", "match", "split"];

/// Returns the conditions of a route in words.
pub fn conditions(route: &Value) -> String {
    let fields = route["match"].as_object().into_iter().flatten();
    let words: Vec<_> = fields.flat_map(|(name, value)| condition(name, value)).collect();
    if words.is_empty() { "every call".to_owned() } else { words.join("; ") }
}

/// Returns where a route sends calls: backends with their shares, or a redirect.
pub fn backends(service: &str, route: &Value) -> String {
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

/// Returns the other fields of a route, without those that have columns: `shown` names the further ones.
pub fn actions(route: &Value, shown: &[&str]) -> Vec<String> {
    let fields = route.as_object().into_iter().flatten();
    let rest = fields.filter(|(name, _)| !OWN_COLUMNS.contains(&&***name) && !shown.contains(&&***name));
    rest.map(|(name, value)| format!("{name}: {}", flow(value))).collect()
}

fn condition(name: &str, value: &Value) -> Vec<String> {
    let list = || {
        let items = value.as_array().into_iter().flatten();
        items.map(flow).collect::<Vec<_>>().join(", ")
    };
    let texts = |what: &str| {
        let items = value.as_array().into_iter().flatten();
        items.map(|one| format!("{what} {}", text_condition(one))).collect()
    };
    match name {
        "path" => vec![format!("path {}", path(value))],
        "methods" => vec![list()],
        "hosts" => vec![format!("host {}", list())],
        "clients" => vec![format!("client {}", list())],
        "headers" => texts("header"),
        "query" => texts("query"),
        "grpc" => vec![format!("gRPC {}", grpc(value))],
        _ => vec![format!("{name}: {}", flow(value))],
    }
}

fn path(value: &Value) -> String {
    match (value["exact"].as_str(), value["prefix"].as_str(), value["template"].as_str()) {
        (Some(exact), ..) => exact.to_owned(),
        (_, Some(prefix), _) => format!("{prefix} and below"),
        (.., Some(template)) => template.to_owned(),
        _ => format!("~ {}", flow(&value["regex"])),
    }
}

fn text_condition(one: &Value) -> String {
    let name = one["name"].as_str().unwrap_or_default();
    let [exact, prefix, regex] = ["exact", "prefix", "regex"].map(|field| one[field].as_str());
    match (exact, prefix, regex, one["present"].as_bool()) {
        (Some(exact), ..) => format!("{name} = {exact}"),
        (_, Some(prefix), ..) => format!("{name} = {prefix}…"),
        (_, _, Some(regex), _) => format!("{name} ~ {regex}"),
        (.., Some(false)) => format!("{name} absent"),
        _ => format!("{name} present"),
    }
}

fn grpc(value: &Value) -> String {
    let service = value["service"].as_str().unwrap_or_default();
    format!("{service}/{}", value["method"].as_str().unwrap_or("*"))
}

/// Formats a value on one line, in YAML flow style.
pub fn flow(value: &Value) -> String {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_of_route_are_words() {
        let route = json!({ "match": {
            "path": { "prefix": "/a" }, "methods": ["GET", "PUT"], "hosts": ["a.example"],
            "headers": [{ "name": "x-tier", "exact": "gold" }, { "name": "x-old", "present": false }],
            "query": [{ "name": "q", "regex": "[0-9]+" }], "grpc": { "service": "shop.v1.Cart" },
        } });
        let words = conditions(&route);
        for part in [
            "path /a and below",
            "GET, PUT",
            "host a.example",
            "header x-tier = gold",
            "header x-old absent",
            "query q ~ [0-9]+",
            "gRPC shop.v1.Cart/*",
        ] {
            assert!(words.split("; ").any(|one| one == part), "{part}: {words}");
        }
        assert_eq!(conditions(&json!({ "name": "all" })), "every call");
    }
}
