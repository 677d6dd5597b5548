use fairmesh_wire::v1;
use serde_json::{Value, json};

use crate::{command_queries::coarse, event_delta::Shown};

/// Shows whose calls use the CPU of a service, like `fairmesh cost`: by callers, and by the first services of the chains
/// of calls. The window is cut to the time since history began.
pub(crate) fn attribution(
    callers: &v1::ReadCostResponse,
    origins: &v1::ReadCostResponse,
    window_ms: u64,
) -> Shown {
    let known_ms = coarse(window_ms.min(callers.history_ms));
    Shown::head(&json!({ "windowMs": known_ms, "callers": rows(callers), "origins": rows(origins) }))
}

/// Each user with its CPU seconds, and its part of the CPU of the service.
fn rows(response: &v1::ReadCostResponse) -> Vec<Value> {
    let total_us: u64 = response.rows.iter().map(|row| row.cpu_us).sum();
    let part = |row: &v1::CostRow| row.cpu_us as f64 / total_us.max(1) as f64;
    let row = |row: &v1::CostRow| json!([row.user, row.cpu_us as f64 / 1e6, part(row)]);
    response.rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribution_has_parts_that_add_up_within_known_history() {
        let row = |user: &str, cpu_us| v1::CostRow { user: user.into(), cpu_us, minutes_us: Vec::new() };
        let callers = v1::ReadCostResponse {
            rows: vec![row("shop/web", 3_000_000), row("(idle)", 1_000_000)],
            history_ms: 90_000,
        };
        let shown = attribution(&callers, &v1::ReadCostResponse::default(), 600_000);
        let data: Value = serde_json::from_str(&shown.since(None).unwrap()).unwrap();
        assert_eq!(data["head"]["windowMs"], 60_000);
        assert_eq!(data["head"]["callers"], json!([["shop/web", 3.0, 0.75], ["(idle)", 1.0, 0.25]]));
        assert_eq!(data["head"]["origins"], json!([]));
    }
}
