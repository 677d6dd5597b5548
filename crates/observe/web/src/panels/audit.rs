use serde_json::{Value, json};

/// Maximum number of entries that are shown.
pub(crate) const MAX_SHOWN: usize = 300;
/// Maximum number of changes that are shown per entry.
const MAX_CHANGES: usize = 20;

/// Returns the newest entries of a write log, newest first. `lines` are lines of the log file: a hash, and the entry
/// as JSON.
pub(crate) fn entries(lines: &[String]) -> Value {
    lines
        .iter()
        .rev()
        .filter_map(|line| serde_json::from_str(line.split_once(' ')?.1).ok())
        .map(entry)
        .collect()
}

fn entry(entry: Value) -> Value {
    let none = Vec::new();
    let changes = entry["changes"].as_array().unwrap_or(&none);
    let change = |change: &Value| {
        let what = match (change["before"].is_null(), change["after"].is_null()) {
            (true, _) => "created",
            (false, true) => "deleted",
            (false, false) => "changed",
        };
        json!({ "key": change["key"], "what": what })
    };
    let event = entry["event"].as_object().and_then(|event| event.iter().next());
    json!({
        "number": entry["number"],
        "atMs": entry["at_ms"],
        "who": entry["who"],
        "message": entry["message"],
        "changes": changes.iter().take(MAX_CHANGES).map(change).collect::<Vec<_>>(),
        "allChanges": changes.len(),
        "event": event.map(|(kind, _)| kind),
        "details": event.map(|(_, details)| details),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn audit_entries_are_shown_newest_first_with_changes() {
        let write = r#"ab {"number":1,"at_ms":5,"who":"alice","revision":3,"changes":[{"key":"/k","after":{"base64":"AA=="}}],"previous":"0"}"#;
        let event = r#"cd {"number":2,"at_ms":9,"who":"bob","revision":3,"changes":[],"event":{"denied":{"method":"/m","reason":"no"}},"previous":"ab"}"#;
        let shown = entries(&[write.to_owned(), "torn".to_owned(), event.to_owned()]);
        assert_eq!((&shown[0]["event"], &shown[0]["details"]["method"]), (&json!("denied"), &json!("/m")));
        assert_eq!(shown[1]["changes"], json!([{"key": "/k", "what": "created"}]));
        assert_eq!(shown[1]["who"], "alice");
    }
}
