//! The agents that joined.

use fairmesh_model::{MeshRole, Prefix, Record, RecordKey, SpiffePath, TrustBundle};
use fairmesh_wire::records;
use serde_json::json;

use super::{ReadArgs, timestamp};
use crate::{connect, failure::Failure, output::Listing, rib_reader};

/// Prints one row per agent.
pub(super) async fn list(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut bundle: Option<TrustBundle> = None;
    let mut agents = Vec::new();
    for stored in rib_reader::read(&connection, &[Prefix::identity()]).await? {
        match (&stored.key, records::decode(&stored.key, &stored.value)?) {
            (_, Record::TrustBundle(found)) => bundle = Some(found),
            (RecordKey::JoinedAgent(name), Record::JoinedAgent(agent)) => agents.push((name.clone(), agent)),
            _ => {}
        }
    }
    let mut listing = Listing::new(&["ID", "TENANTS", "REGION", "JOINED"]);
    listing.why_empty = Some(match &bundle {
        None => "the mesh has no trust domain; start a control plane with --trust-domain NAME".into(),
        Some(bundle) => format!("no agent has joined the trust domain {} yet", bundle.domain),
    });
    for (name, agent) in agents {
        let path = SpiffePath::Mesh(MeshRole::Agent, name);
        let id = bundle
            .as_ref()
            .map_or_else(|| path.to_string(), |it| path.clone().within(&it.domain).to_string());
        let tenants: Vec<_> = agent.tenants.iter().map(ToString::to_string).collect();
        let shown = if tenants.is_empty() { "all".to_owned() } else { tenants.join(", ") };
        let region = agent.region.map(String::from);
        let item = json!({ "id": id, "tenants": tenants, "region": region, "joined": agent.joined });
        listing.add(vec![id, shown, region.unwrap_or_else(|| "any".into()), timestamp(agent.joined)], item);
    }
    listing.print(args.output.format())
}
