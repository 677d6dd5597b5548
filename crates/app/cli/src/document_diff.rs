//! Text of the changes between two documents, such as `timeout: 5s -> 6s; routes: added canary`.

use serde_json::{Map, Value};

/// Maximum number of changes listed individually.
const MAX_CHANGES: usize = 4;
/// Maximum number of characters shown of a value.
const MAX_VALUE_CHARS: usize = 40;
/// Fields that identify the items of a list.
const NAMES: &[&str] = &["name", "id", "instance", "service", "prefix", "between"];

/// Summarises the changes in one line.
pub(crate) fn summary(old: &Value, new: &Value) -> String {
    let mut changes = Vec::new();
    compare("", old, new, &mut changes);
    match changes.len().saturating_sub(MAX_CHANGES) {
        _ if changes.is_empty() => "unchanged".to_owned(),
        0 => changes.join("; "),
        more => format!("{}; and {more} more", changes[..MAX_CHANGES].join("; ")),
    }
}

fn compare(path: &str, old: &Value, new: &Value, changes: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(old), Value::Object(new)) => compare_fields(path, old, new, changes),
        (Value::Array(old), Value::Array(new)) => compare_items(path, old, new, changes),
        _ => changes.push(format!("{path}: {} -> {}", short(old), short(new))),
    }
}

fn compare_fields(path: &str, old: &Map<String, Value>, new: &Map<String, Value>, changes: &mut Vec<String>) {
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    for (name, value) in old {
        match new.get(name) {
            Some(now) => compare(&below(name), value, now, changes),
            None => changes.push(format!("{}: removed ({})", below(name), short(value))),
        }
    }
    for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
        changes.push(format!("{}: {}", below(name), short(value)));
    }
}

/// Compares items by name if they have names, otherwise as a whole.
fn compare_items(path: &str, old: &[Value], new: &[Value], changes: &mut Vec<String>) {
    let (Some(before), Some(now)) = (named(old), named(new)) else {
        return changes.push(format!("{path}: {} -> {}", short(&old.into()), short(&new.into())));
    };
    let find = |items: &[(String, &Value)], name: &str| {
        items.iter().find(|(other, _)| other == name).map(|(_, item)| (*item).clone())
    };
    let listed = |names: Vec<&str>, verb: &str| {
        (!names.is_empty()).then(|| format!("{path}: {verb} {}", names.join(", ")))
    };
    let missing = |from: &[(String, &Value)], name: &str| find(from, name).is_none();
    let added: Vec<_> =
        now.iter().map(|(name, _)| name.as_str()).filter(|name| missing(&before, name)).collect();
    let removed: Vec<_> =
        before.iter().map(|(name, _)| name.as_str()).filter(|name| missing(&now, name)).collect();
    let is_reordered = added.is_empty() && removed.is_empty() && {
        before.iter().map(|(name, _)| name).ne(now.iter().map(|(name, _)| name))
    };
    changes.extend(listed(added, "added"));
    changes.extend(listed(removed, "removed"));
    for (name, item) in &before {
        if let Some(current) = find(&now, name) {
            compare(&format!("{path}[{name}]"), item, &current, changes);
        }
    }
    if is_reordered {
        changes.push(format!("{path}: in another order"));
    }
}

/// Returns the items with their names, if each has a unique name.
fn named(items: &[Value]) -> Option<Vec<(String, &Value)>> {
    let name = |item: &Value| {
        NAMES.iter().find_map(|field| match item.get(field)? {
            Value::String(text) => Some(text.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        })
    };
    let named: Vec<_> = items.iter().map(|item| Some((name(item)?, item))).collect::<Option<_>>()?;
    let unique =
        named.iter().enumerate().all(|(i, (name, _))| named[..i].iter().all(|(other, _)| other != name));
    unique.then_some(named)
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(MAX_VALUE_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_diff_names_changes_by_path() {
        let old = json!({ "timeout": "5s", "subset": 3, "routes": [
            { "name": "a", "split": [{ "service": "shop/x", "weight": 1 }] }, { "name": "b" },
        ] });
        let new = json!({ "timeout": "6s", "class": "bulk", "routes": [
            { "name": "c" }, { "name": "a", "split": [{ "service": "shop/x", "weight": 9 }] },
        ] });
        assert_eq!(
            summary(&old, &new),
            "routes: added c; routes: removed b; routes[a].split[shop/x].weight: 1 -> 9; subset: removed (3); and 2 more"
        );
        assert_eq!(summary(&old, &old), "unchanged");
    }

    #[test]
    fn document_diff_reports_reordered_routes_as_change() {
        let (old, new) = (
            json!({ "routes": [{ "name": "a" }, { "name": "b" }] }),
            json!({ "routes": [{ "name": "b" }, { "name": "a" }] }),
        );
        assert_eq!(summary(&old, &new), "routes: in another order");
        let weights = |weight: u32| json!({ "routes": [{ "name": "a", "split": [{ "service": "shop/x", "weight": weight }] }] });
        assert_eq!(summary(&weights(1), &weights(9)), "routes[a].split[shop/x].weight: 1 -> 9");
    }

    #[test]
    fn document_diff_cuts_long_values() {
        let text = summary(&json!({ "a": "é".repeat(100) }), &json!({ "a": 1 }));
        assert!(text.ends_with("… -> 1") && text.chars().count() < 60, "{text}");
    }
}
