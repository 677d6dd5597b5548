//! The loads of backends as text, for `gateway status` and `gateway explain`.

use std::collections::BTreeMap;

use fairmesh_console::{
    failure::Failure,
    output::{ago, decimal},
};
use fairmesh_wire::{
    handshake::Connection,
    v1::{GatewayAlert, GatewayBackendLoad, GatewayReplicaLoad, ReadGatewayRequest},
};
use serde_json::{Value, json};

/// Reads the loads of all backends, by name, and of all replicas.
pub(super) async fn read(
    connection: &Connection,
) -> Result<(BTreeMap<String, GatewayBackendLoad>, Vec<GatewayReplicaLoad>), Failure> {
    let read = connection.admin().read_gateway(ReadGatewayRequest {}).await?.into_inner();
    let backends = read.backends.into_iter().map(|load| (load.backend.clone(), load));
    Ok((backends.collect(), read.replicas))
}

/// Formats the CPU in use and its limit, such as `0.42 of 2.00 (21%)`.
pub(super) fn cpu(load: &GatewayBackendLoad) -> String {
    let used = per_second(load.cpu_millicores, 2);
    match load.limit_millicores {
        0 => used,
        limit => {
            format!("{used} of {} ({}%)", per_second(limit, 2), load.cpu_millicores * 100 / limit)
        }
    }
}

/// Formats the requests per second of all services on the backend.
pub(super) fn requests(load: &GatewayBackendLoad) -> String {
    rate(load.requests)
}

/// Describes the alert in a sentence.
pub(super) fn sentence(alert: &GatewayAlert) -> String {
    let since = ago(alert.age_ms);
    match alert.cause.as_str() {
        "undetermined" => format!("too much CPU for {since}, and the cause is not known"),
        _ => format!("too much CPU for {since}: {}", alert.reason),
    }
}

/// Formats thousandths per second as a rate.
pub(super) fn rate(thousandths: u64) -> String {
    per_second(thousandths, usize::from(thousandths < 10_000))
}

fn per_second(thousandths: u64, places: usize) -> String {
    decimal(thousandths as f64 / 1e3, places)
}

/// Formats the load as JSON.
pub(super) fn item(load: &GatewayBackendLoad) -> Value {
    let number = |thousandths: u64| thousandths as f64 / 1e3;
    let services = load.services.iter().map(|one| {
        json!({
            "service": one.service,
            "requestsPerSecond": number(one.requests),
            "usualRequestsPerSecond": number(one.usual_requests),
            "errorsPerSecond": number(one.errors),
            "connectionsPerSecond": number(one.connections),
            "usualConnectionsPerSecond": number(one.usual_connections),
        })
    });
    let alert = load.alert.as_ref().map(|alert| {
        let service = Some(&alert.service).filter(|service| !service.is_empty());
        json!({
            "ageMs": alert.age_ms,
            "cause": alert.cause,
            "service": service,
            "reason": alert.reason,
            "proposedLimit": Some(alert.proposed_limit).filter(|limit| *limit > 0),
        })
    });
    json!({
        "replicas": load.replicas,
        "cores": number(load.cpu_millicores),
        "usualCores": number(load.usual_cpu_millicores),
        "limitCores": (load.limit_millicores > 0).then(|| number(load.limit_millicores)),
        "connectionsPerSecond": number(load.connections),
        "services": services.collect::<Vec<_>>(),
        "alert": alert,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_of_gateway_backend_is_shown_with_share_of_limit() {
        let load = GatewayBackendLoad {
            cpu_millicores: 420,
            limit_millicores: 2_000,
            ..GatewayBackendLoad::default()
        };
        assert_eq!(cpu(&load), "0.42 of 2.00 (21%)");
        assert_eq!(cpu(&GatewayBackendLoad { limit_millicores: 0, ..load }), "0.42");
        assert_eq!((rate(1_234), rate(123_456)), ("1.2".to_owned(), "123".to_owned()));
    }
}
