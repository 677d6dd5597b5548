use std::sync::Arc;

use fairmesh_wire::v1;
use serde_json::json;

use super::given;
use crate::event_delta::{Shown, text};

/// Shows calls that the rules of services do not allow, with a row per service, caller and rule.
pub(crate) fn denied(response: &v1::ReadCallsResponse, window_ms: u64) -> Shown {
    let row = |row: &v1::DeniedCalls| {
        let v1::DeniedCalls { service, caller, rule, audit, count } = row;
        let shown = json!({
            "service": service,
            "caller": given(caller),
            "rule": given(rule),
            "audit": audit,
            "count": count,
        });
        (format!("{service}\n{caller}\n{rule}\n{audit}"), Arc::from(text(&shown)))
    };
    let head = json!({ "windowMs": window_ms, "historyMs": response.history_ms });
    Shown::with_rows(&head, response.denied.iter().map(row))
}
