//! The addresses that replicas of backends share, as text and JSON, for `gateway status`.

use fairmesh_wire::v1::{GatewayEntry, GatewayReplicaLoad};
use serde_json::{Value, json};

use super::backend_load_text::rate;

/// Columns of the table.
pub(super) const HEAD: &[&str] =
    &["REPLICA", "BACKEND", "ENTRY", "SHARE", "NEW/S", "PASSED ON/S", "UNCLAIMED/S", "UNREACHABLE"];

/// A row for each replica that shares an address.
pub(super) fn rows(replicas: &[GatewayReplicaLoad]) -> Vec<Vec<String>> {
    let row = |replica: &GatewayReplicaLoad| {
        let entry = replica.entry.as_ref()?;
        let unreachable =
            if entry.unreachable.is_empty() { "-".to_owned() } else { entry.unreachable.join(", ") };
        Some(vec![
            replica.address.clone(),
            replica.backend.clone(),
            entry.address.clone(),
            format!("{}%", permille(entry).div_ceil(10)),
            rate(entry.begun),
            rate(entry.passed_on),
            rate(entry.unclaimed),
            unreachable,
        ])
    };
    replicas.iter().filter_map(row).collect()
}

/// The shared addresses of a backend's replicas as JSON.
pub(super) fn items(replicas: &[GatewayReplicaLoad], backend: &str) -> Vec<Value> {
    let item = |replica: &GatewayReplicaLoad| {
        let entry = replica.entry.as_ref()?;
        let number = |thousandths: u64| thousandths as f64 / 1e3;
        Some(json!({
            "replica": replica.address,
            "address": entry.address,
            "share": number(permille(entry)),
            "newConnectionsPerSecond": number(entry.begun),
            "passedOnPerSecond": number(entry.passed_on),
            "unclaimedPerSecond": number(entry.unclaimed),
            "unreachable": entry.unreachable,
        }))
    };
    replicas.iter().filter(|replica| replica.backend == backend).filter_map(item).collect()
}

/// The share of new connections, in thousandths.
fn permille(entry: &GatewayEntry) -> u64 {
    u64::from(entry.head_buckets) * 1_000 / u64::from(entry.buckets).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_address_is_shown_for_replicas_that_have_one() {
        let entry = GatewayEntry {
            address: "10.99.0.1:7440".into(),
            head_buckets: 1_368,
            buckets: 4_096,
            begun: 1_500,
            passed_on: 250_000,
            unclaimed: 0,
            unreachable: vec!["10.77.0.3:7440".into()],
        };
        let replica = |address: &str, entry| GatewayReplicaLoad {
            address: address.into(),
            backend: "gw-1".into(),
            entry,
            ..GatewayReplicaLoad::default()
        };
        let replicas = [replica("10.77.0.1:7440", Some(entry)), replica("10.77.0.2:7440", None)];
        let row = ["10.77.0.1:7440", "gw-1", "10.99.0.1:7440", "34%", "1.5", "250", "0.0", "10.77.0.3:7440"];
        assert_eq!(rows(&replicas), [row.map(str::to_owned).to_vec()]);
        let items = items(&replicas, "gw-1");
        assert_eq!(
            (items.len(), &items[0]["share"], &items[0]["passedOnPerSecond"]),
            (1, &json!(0.333), &json!(250.0))
        );
        assert!(super::items(&replicas, "gw-2").is_empty());
    }
}
