use std::collections::BTreeMap;

use fairmesh_model::{MeshRole, Record, RecordKey, RevokedCertificates, SpiffeId, SpiffePath, Tenant};
use fairmesh_views::{StoredRecord, instant};
use fairmesh_wire::{record_encoding, v1};
use serde_json::json;

use crate::{event_delta::Shown, page_source::Source};

/// Maximum number of identities that are listed per kind.
const MAX_LISTED: usize = 1_000;

/// Shows the trust domain and the certificates of its authority, like `fairmesh identity show`.
pub(crate) fn authority(response: &v1::DescribeAuthorityResponse, source: &dyn Source) -> Shown {
    let certificate = |kind: &str, der: &[u8]| {
        let info = source.certificate(der);
        json!({
            "kind": kind,
            "digest": info.as_ref().map(|info| &info.digest),
            "expires": info.as_ref().map(|info| time(info.expires_at)),
        })
    };
    let bundle = response.bundle.as_ref();
    let roots = bundle.into_iter().flat_map(|bundle| &bundle.roots).map(|root| certificate("root", root));
    let issuer = (!response.issuer.is_empty()).then(|| certificate("issuer", &response.issuer));
    Shown::head(&json!({
        "domain": bundle.map(|bundle| &bundle.domain),
        "certificates": roots.chain(issuer).collect::<Vec<_>>(),
        "openTokens": response.open_tokens,
        "rootKeyPresent": response.root_key_present,
    }))
}

/// Shows agents that joined, connected programs without an agent, and revocations, like `fairmesh identity list`.
pub(crate) fn identities(stored: &[StoredRecord], watchers: &v1::WatchersResponse) -> Shown {
    let (mut agents, mut revoked) = (Vec::new(), Vec::new());
    for one in stored {
        // Records of a newer release are skipped.
        match (&one.key, record_encoding::decode(&one.key, &one.value)) {
            (RecordKey::JoinedAgent(name), Ok(Record::JoinedAgent(agent))) => agents.push(json!({
                "id": SpiffePath::Mesh(MeshRole::Agent, name.clone()).to_string(),
                "tenants": agent.tenants.iter().map(Tenant::to_string).collect::<Vec<_>>(),
                "region": agent.region.map(|region| region.to_string()),
                "joined": time(agent.joined),
            })),
            (_, Ok(Record::Revocations(revocations))) => {
                revoked.extend(revocations.entries.iter().map(|one| {
                    json!({
                        "id": one.path.to_string(),
                        "certificates": what(&one.certificates),
                        "at": time(one.at),
                    })
                }))
            }
            _ => {}
        }
    }
    let mut programs = BTreeMap::<String, usize>::new();
    for id in watchers.watchers.iter().filter_map(|watcher| watcher.identity.parse::<SpiffeId>().ok()) {
        if let SpiffePath::Service(service) = &id.path {
            *programs.entry(service.to_string()).or_default() += 1;
        }
    }
    let programs: Vec<_> = programs
        .into_iter()
        .map(|(service, connected)| json!({ "id": service, "connected": connected }))
        .collect();
    let more = agents.len().saturating_sub(MAX_LISTED) + programs.len().saturating_sub(MAX_LISTED);
    agents.truncate(MAX_LISTED);
    Shown::head(&json!({
        "agents": agents,
        "programs": programs.into_iter().take(MAX_LISTED).collect::<Vec<_>>(),
        "revoked": revoked,
        "notListed": more,
    }))
}

fn what(certificates: &RevokedCertificates) -> String {
    match certificates {
        RevokedCertificates::All => "all".to_owned(),
        RevokedCertificates::Serial(serial) => {
            let digits: String = serial.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("serial {digits}")
        }
        RevokedCertificates::IssuedBefore(at) => format!("issued before {}", time(*at)),
    }
}

/// Formats a time in seconds since 1970.
fn time(seconds: u64) -> String {
    instant(seconds.saturating_mul(1_000))
}
