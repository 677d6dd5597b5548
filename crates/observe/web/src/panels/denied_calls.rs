use std::sync::Arc;

use fairmesh_wire::v1;
use serde_json::json;

use super::given;
use crate::event_delta::{Shown, text};

/// Shows calls that the rules of services do not allow, with a row per service, caller and rule, and the number of
/// minutes since the last one.
pub(crate) fn denied(rows: &[(v1::DeniedCalls, u64)], (window_ms, history_ms): (u64, u64)) -> Shown {
    let row = |(row, minutes_ago): &(v1::DeniedCalls, u64)| {
        let v1::DeniedCalls { service, caller, rule, audit, count, method, path } = row;
        let shown = json!({
            "service": service,
            "caller": given(caller),
            "rule": given(rule),
            "method": given(method),
            "path": given(path),
            "audit": audit,
            "count": count,
            "minutesAgo": minutes_ago,
        });
        (format!("{service}\n{caller}\n{rule}\n{audit}\n{method}\n{path}"), Arc::from(text(&shown)))
    };
    let head = json!({ "windowMs": window_ms, "historyMs": history_ms });
    Shown::with_rows(&head, rows.iter().map(row))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn denied_row_has_minutes_since_last_call() {
        let row = v1::DeniedCalls { service: "shop/cart".into(), count: 2, ..v1::DeniedCalls::default() };
        let shown = denied(&[(row, 3)], (60_000, 60_000)).since(None).unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let row = &shown["rows"]["shop/cart\n\n\nfalse\n\n"];
        assert_eq!((&row["count"], &row["minutesAgo"], &row["caller"]), (&json!(2), &json!(3), &Value::Null));
    }
}
