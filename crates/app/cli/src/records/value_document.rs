//! Values of records, for display.

use fairmesh_console::output::timestamp;
use fairmesh_model::{
    ConnectionLimit, ElectedChecker, Endpoint, FederatedDomains, JoinedAgent, Placement, PlacementPin,
    Record, RecordKey, RegionDrain, Regions, Revocation, RoundTrips, ShardMove,
    spec::{Document, EndpointSpec, Resource},
    write_duration,
};
use fairmesh_wire::record_encoding;
use serde_json::{Value, json};

use crate::identity::{bundle_value, describe_revoked, federated_value, token_issuer_value};

/// How commands show a record.
#[allow(clippy::large_enum_variant, reason = "destructured at once")]
enum Shown {
    /// Shown as the document that `apply` reads.
    Document(Resource),
    /// Shown as JSON, for records that no file contains.
    Json(Value),
    /// Not shown: the record is measured or computed many times a minute, and the write log omits its kind.
    Omitted,
}

/// The value at a key as the document that `apply` reads, or as JSON if `apply` reads no such record. `None` if it
/// cannot be decoded, or is not shown.
pub(crate) fn value_document(key: &str, value: &[u8]) -> Option<Value> {
    let key = RecordKey::parse(key).ok()?;
    match shown(&key, record_encoding::decode(&key, value).ok()?)? {
        Shown::Document(resource) => Some(json!(Document::from(&resource))),
        Shown::Json(value) => Some(value),
        Shown::Omitted => None,
    }
}

/// The document content of a record; `None` for records that no file contains.
pub(super) fn resource(key: &RecordKey, record: Record) -> Option<Resource> {
    match shown(key, record)? {
        Shown::Document(resource) => Some(resource),
        Shown::Json(_) | Shown::Omitted => None,
    }
}

/// A document as JSON without its kind and name, which the context shows.
pub(crate) fn contents(mut document: Value) -> Value {
    if let Value::Object(fields) = &mut document {
        for said in ["kind", "name", "service"] {
            fields.remove(said);
        }
    }
    document
}

/// How a record is shown; `None` if its kind does not match the key.
fn shown(key: &RecordKey, record: Record) -> Option<Shown> {
    let service = || key.service().cloned();
    Some(match record {
        Record::Service(declared) => Shown::Document(Resource::Service(service()?, declared)),
        Record::Policy(policy) => Shown::Document(Resource::Policy(service()?, policy)),
        Record::Workload(entry) => Shown::Document(Resource::Workload(service()?, entry)),
        Record::Authorization(rules) => Shown::Document(Resource::ServiceAuthorization(service()?, rules)),
        Record::DefaultAuthorization(default) => Shown::Document(Resource::Authorization(default)),
        Record::PolicyDefaults(defaults) => match key {
            RecordKey::PolicyDefaults(scope) => {
                Shown::Document(Resource::PolicyDefaults(scope.clone(), defaults))
            }
            _ => return None,
        },
        Record::RoleBinding(binding) => match key {
            RecordKey::RoleBinding(name) => Shown::Document(Resource::RoleBinding(name.clone(), binding)),
            _ => return None,
        },
        Record::GatewayBackend(backend) => match key {
            RecordKey::GatewayBackend(name) => {
                Shown::Document(Resource::GatewayBackend(name.clone(), backend))
            }
            _ => return None,
        },
        Record::GatewayQuota(quota) => match key {
            RecordKey::GatewayQuota(tenant) => Shown::Document(Resource::GatewayQuota(tenant.clone(), quota)),
            _ => return None,
        },
        Record::GatewayService(used) => Shown::Document(Resource::GatewayService(service()?, used)),
        Record::Placement(placement) => Shown::Json(placement_value(&placement)),
        Record::Hosts(hosts) => Shown::Document(Resource::Hosts(hosts)),
        Record::Regions(regions) => Shown::Document(Resource::Topology(regions, RoundTrips::default())),
        Record::RoundTrips(distances) => Shown::Document(Resource::Topology(Regions::default(), distances)),
        Record::Endpoint(endpoint) => Shown::Json(endpoint_value(&endpoint)),
        Record::Move(one) => Shown::Json(move_value(&one)),
        Record::RegionDrain(drain) => Shown::Json(drain_value(&drain)),
        Record::TrustBundle(bundle) => Shown::Json(bundle_value(&bundle).ok()?),
        Record::FederatedDomains(domains) => Shown::Json(domains_value(&domains)?),
        Record::TokenIssuers(all) => {
            Shown::Json(json!({ "issuers": all.issuers.iter().map(token_issuer_value).collect::<Vec<_>>() }))
        }
        Record::Revocations(all) => {
            Shown::Json(json!({ "revocations": all.entries.iter().map(revocation).collect::<Vec<_>>() }))
        }
        Record::JoinedAgent(joined) => Shown::Json(joined_value(&joined)),
        Record::ElectedChecker(checker) => Shown::Json(checker_value(&checker)),
        Record::Verdict(_) | Record::RegionTable(_) | Record::MeasuredDistances(_) => Shown::Omitted,
    })
}

fn endpoint_value(endpoint: &Endpoint) -> Value {
    let mut value = json!(EndpointSpec::of(endpoint));
    // The document omits the default state.
    value["state"] = json!(endpoint.state);
    value
}

fn move_value(ShardMove { shard, role, from, to }: &ShardMove) -> Value {
    json!({
        "shard": shard.0,
        "role": role.to_string(),
        "from": from.as_ref().map(ToString::to_string),
        "to": to.as_ref().map(ToString::to_string),
    })
}

fn drain_value(RegionDrain { keep, returns, over, .. }: &RegionDrain) -> Value {
    json!({ "keep": keep.to_string(), "returns": returns, "over": write_duration(*over) })
}

pub(super) fn placement_value(placement: &Placement) -> Value {
    let Placement { home_zone, zones, added, pinned, connection_limit } = placement;
    let zones = zones.iter().map(|(zone, backends)| {
        (zone.to_string(), json!(backends.iter().map(ToString::to_string).collect::<Vec<_>>()))
    });
    json!({
        "homeZone": home_zone.to_string(),
        "zones": zones.collect::<serde_json::Map<_, _>>(),
        "added": added,
        "pinned": pinned.as_ref().map(|pin| {
            let PlacementPin { reason, at_ms, ends_connections, is_sandbox } = pin;
            json!({ "reason": reason, "at": timestamp(at_ms / 1000), "endsConnections": ends_connections, "sandbox": is_sandbox })
        }),
        "connectionLimit": connection_limit.as_ref().map(|limit| {
            let ConnectionLimit { per_second, reason, at_ms, is_automatic } = limit;
            json!({ "perSecond": per_second, "reason": reason, "at": timestamp(at_ms / 1000), "automatic": is_automatic })
        }),
    })
}

fn domains_value(domains: &FederatedDomains) -> Option<Value> {
    let value = |bundle| federated_value(domains, bundle).ok();
    let bundles: Option<Vec<Value>> = domains.bundles.iter().map(value).collect();
    Some(json!({ "domains": bundles? }))
}

fn joined_value(JoinedAgent { tenants, joined, region }: &JoinedAgent) -> Value {
    json!({
        "tenants": tenants.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "joined": timestamp(*joined),
        "region": region.as_ref().map(ToString::to_string),
    })
}

fn checker_value(ElectedChecker { agent, elected_at_ms }: &ElectedChecker) -> Value {
    json!({ "agent": agent.to_string(), "elected": timestamp(elected_at_ms / 1000) })
}

fn revocation(one: &Revocation) -> Value {
    json!({
        "id": one.path.to_string(),
        "revoked": describe_revoked(&one.certificates),
        "at": timestamp(one.at),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{Revocations, RevokedCertificates, Share};

    use super::*;

    fn shown(key: &str, record: Record) -> Value {
        value_document(key, &record_encoding::encode(&record)).unwrap()
    }

    #[test]
    fn records_without_document_are_shown_by_their_fields() {
        let revocation =
            Revocation { path: "shop/web".parse().unwrap(), certificates: RevokedCertificates::All, at: 7 };
        let value =
            shown("/g/identity/revocations", Record::Revocations(Revocations { entries: vec![revocation] }));
        let one = json!({ "id": "shop/web", "revoked": "all certificates", "at": "1970-01-01T00:00:07Z" });
        assert_eq!(value, json!({ "revocations": [one] }));
        let joined = JoinedAgent { tenants: vec!["shop".parse().unwrap()], joined: 7, region: None };
        let value = shown("/g/identity/agents/web-1", Record::JoinedAgent(joined));
        assert_eq!(value, json!({ "tenants": ["shop"], "joined": "1970-01-01T00:00:07Z", "region": null }));
        let drain =
            RegionDrain { keep: Share::NONE, returns: false, over: Duration::from_secs(60), began_at_ms: 1 };
        let value = shown("/g/drains/eu", Record::RegionDrain(drain));
        assert_eq!(value, json!({ "keep": "0%", "returns": false, "over": "1m" }));
    }
}
