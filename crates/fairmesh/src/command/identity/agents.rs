//! The agents that joined, and the identities that are revoked.

use fairmesh_model::{MeshRole, Prefix, Record, RecordKey, Revocations, SpiffePath, TrustBundle};
use fairmesh_wire::records;
use serde_json::json;

use super::{ReadArgs, revoke, timestamp};
use crate::{connect, failure::Failure, output::Listing, rib_reader};

/// Prints one row per agent, and one per revocation of another identity.
pub(super) async fn list(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut bundle: Option<TrustBundle> = None;
    let mut agents = Vec::new();
    let mut revoked = Revocations::default();
    for stored in rib_reader::read(&connection, &[Prefix::identity()]).await? {
        match (&stored.key, records::decode(&stored.key, &stored.value)?) {
            (_, Record::TrustBundle(found)) => bundle = Some(found),
            (_, Record::Revocations(found)) => revoked = found,
            (RecordKey::JoinedAgent(name), Record::JoinedAgent(agent)) => agents.push((name.clone(), agent)),
            _ => {}
        }
    }
    let mut listing = Listing::new(&["ID", "TENANTS", "REGION", "JOINED", "REVOKED"]);
    listing.why_empty = Some(match &bundle {
        None => "the mesh has no trust domain; start a control plane with --trust-domain NAME".into(),
        Some(bundle) => format!("no agent has joined the trust domain {} yet", bundle.domain),
    });
    let id_of = |path: SpiffePath| match &bundle {
        Some(bundle) => path.within(&bundle.domain).to_string(),
        None => path.to_string(),
    };
    for (name, agent) in agents {
        let path = SpiffePath::Mesh(MeshRole::Agent, name);
        let (of_agent, others): (Vec<_>, Vec<_>) =
            revoked.entries.into_iter().partition(|one| one.path == path);
        revoked.entries = others;
        let id = id_of(path);
        let tenants: Vec<_> = agent.tenants.iter().map(ToString::to_string).collect();
        let shown = if tenants.is_empty() { "all".to_owned() } else { tenants.join(", ") };
        let region = agent.region.map(String::from);
        let values: Vec<_> = of_agent.iter().map(revoke::value).collect();
        let item = json!({
            "id": id, "tenants": tenants, "region": region, "joined": agent.joined, "revocations": values,
        });
        let region = region.unwrap_or_else(|| "any".into());
        let what: Vec<_> = of_agent.iter().map(|one| revoke::describe(&one.certificates)).collect();
        let what = if what.is_empty() { "-".to_owned() } else { what.join(", ") };
        listing.add(vec![id, shown, region, timestamp(agent.joined), what], item);
    }
    for one in &revoked.entries {
        let id = id_of(one.path.clone());
        let item = json!({
            "id": id, "tenants": null, "region": null, "joined": null, "revocations": [revoke::value(one)],
        });
        let dash = || "-".to_owned();
        listing.add(vec![id, dash(), dash(), dash(), revoke::describe(&one.certificates)], item);
    }
    listing.print(args.output.format())
}
