//! Values of records, for display.

use fairmesh_model::{
    JoinedAgent, Record, RecordKey, RegionDrain, Revocation, RoundTrips, ShardMove,
    spec::{Document, EndpointSpec, Resource},
    write_duration,
};
use fairmesh_wire::records;
use serde_json::{Value, json};

use crate::command::identity::{bundle_value, describe_revoked, federated_value, timestamp};

/// The value at a key as the document that `apply` reads, or as JSON where it reads none; `None` if it cannot be read, or is
/// none that people write.
pub(crate) fn value_document(key: &str, value: &[u8]) -> Option<Value> {
    let key = RecordKey::parse(key).ok()?;
    let record = records::decode(&key, value).ok()?;
    let resource = match (record, key) {
        (Record::Service(service), RecordKey::Service(name)) => Resource::Service(name, service),
        (Record::Policy(policy), RecordKey::Policy(name)) => Resource::Policy(name, policy),
        (Record::Workload(entry), RecordKey::Workload(name)) => Resource::Workload(name, entry),
        (Record::RoleBinding(binding), RecordKey::RoleBinding(name)) => Resource::RoleBinding(name, binding),
        (Record::Authorization(rules), RecordKey::Authorization(name)) => {
            Resource::ServiceAuthorization(name, rules)
        }
        (Record::DefaultAuthorization(default), _) => Resource::Authorization(default),
        (Record::Hosts(hosts), _) => Resource::Hosts(hosts),
        (Record::Regions(regions), _) => Resource::Topology(regions, RoundTrips::default()),
        (Record::RoundTrips(distances), _) => Resource::Topology(Default::default(), distances),
        (record, _) => return other(record),
    };
    Some(json!(Document::from(&resource)))
}

/// A document in JSON without its kind and name, which are known where it is shown.
pub(crate) fn contents(mut document: Value) -> Value {
    if let Value::Object(fields) = &mut document {
        for said in ["kind", "name", "service"] {
            fields.remove(said);
        }
    }
    document
}

/// A record that no file has.
fn other(record: Record) -> Option<Value> {
    Some(match record {
        Record::Endpoint(endpoint) => {
            let mut value = json!(EndpointSpec::of(&endpoint));
            // Omitted in files if it is the default.
            value["state"] = json!(endpoint.state);
            value
        }
        Record::Move(ShardMove { shard, role, from, to }) => json!({
            "shard": shard.0,
            "role": role.to_string(),
            "from": from.map(|instance| instance.to_string()),
            "to": to.map(|instance| instance.to_string()),
        }),
        Record::RegionDrain(RegionDrain { keep, returns, over, .. }) => json!({
            "keep": keep.to_string(),
            "returns": returns,
            "over": write_duration(over),
        }),
        Record::TrustBundle(bundle) => bundle_value(&bundle).ok()?,
        Record::FederatedDomains(domains) => {
            let value = |bundle| federated_value(&domains, bundle).ok();
            let bundles: Option<Vec<Value>> = domains.bundles.iter().map(value).collect();
            json!({ "domains": bundles? })
        }
        Record::Revocations(all) => {
            json!({ "revocations": all.entries.iter().map(revocation).collect::<Vec<_>>() })
        }
        Record::JoinedAgent(JoinedAgent { tenants, joined, region }) => json!({
            "tenants": tenants.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "joined": timestamp(joined),
            "region": region.map(|region| region.to_string()),
        }),
        // Measured or computed, many times a minute: the log of writes has none of them. The others have documents.
        _ => return None,
    })
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
        value_document(key, &records::encode(&record)).unwrap()
    }

    #[test]
    fn records_without_a_document_are_shown_by_their_fields() {
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
