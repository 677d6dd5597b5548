use std::sync::Arc;

use fairmesh_wire::v1;
use serde_json::{Value, json};

use super::given;
use crate::{
    command_queries::coarse,
    event_delta::{Shown, text},
};

/// Shows the network between zones, with a row per ordered pair, like `fairmesh probe`.
pub(crate) fn probes(response: &v1::ReadProbesResponse) -> Shown {
    let rows = response.pairs.iter().map(|pair| {
        let from = place(&pair.from_region, &pair.from_zone);
        let to = place(&pair.to_region, &pair.to_zone);
        (format!("{from}\n{to}"), Arc::from(text(&row(pair))))
    });
    Shown::with_rows(&json!({ "agents": response.agents }), rows)
}

fn place(region: &str, zone: &str) -> String {
    match zone {
        "" => region.to_owned(),
        zone => format!("{region}/{zone}"),
    }
}

fn row(pair: &v1::ProbedPair) -> Value {
    let protocol = |one: &v1::ProbedProtocol| json!({ "protocol": one.protocol, "passed": one.passed, "failed": one.failed, "tookUs": one.took_us });
    json!({
        "verdict": pair.verdict,
        "fault": given(&pair.fault),
        "ageMs": coarse(pair.age_ms),
        "protocols": pair.protocols.iter().map(protocol).collect::<Vec<_>>(),
    })
}
