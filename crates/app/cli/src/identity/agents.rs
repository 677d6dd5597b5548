//! Joined agents, connected programs without an agent, and revoked identities.

use std::collections::BTreeMap;

use fairmesh_console::{connect, failure::Failure, output::Listing, rib_reader, view_reader::decode_or_warn};
use fairmesh_model::{
    JoinedAgent, MeshRole, Prefix, Record, RecordKey, Revocation, Revocations, SpiffeId, SpiffePath,
    TrustBundle,
};
use fairmesh_wire::{handshake::Connection, v1::WatchersRequest};
use serde_json::{Value, json};

use super::{ReadArgs, revoke};
use fairmesh_console::output::timestamp;

/// Prints one row per agent, one per identity of connected programs without an agent, and one per other identity that is revoked.
pub(super) async fn list(args: ReadArgs) -> Result<(), Failure> {
    let connection = connect::connect(&args.target).await?;
    let mut bundle: Option<TrustBundle> = None;
    let mut agents = Vec::new();
    let mut revoked = Revocations::default();
    for stored in rib_reader::read(&connection, &[Prefix::identity()]).await? {
        match (&stored.key, decode_or_warn(&stored)) {
            (_, Some(Record::TrustBundle(found))) => bundle = Some(found),
            (_, Some(Record::Revocations(found))) => revoked = found,
            (RecordKey::JoinedAgent(name), Some(Record::JoinedAgent(agent))) => {
                agents.push((name.clone(), agent));
            }
            _ => {}
        }
    }
    let mut listing = Listing::new(&["ID", "TENANTS", "REGION", "JOINED", "REVOKED"]);
    listing.why_empty = Some(match &bundle {
        None => "the mesh has no trust domain; start a control plane with --trust-domain NAME".into(),
        Some(bundle) => format!("no agent has joined the trust domain {} yet", bundle.domain),
    });
    let mut rows = Rows { listing, bundle, revoked };
    for (name, agent) in agents {
        rows.add_agent(SpiffePath::Mesh(MeshRole::Agent, name), agent);
    }
    for (path, connected) in programs(&connection).await {
        rows.add_programs(path, connected);
    }
    rows.add_revoked();
    rows.listing.print(args.output.format())
}

/// Services whose programs follow the control plane directly, with a token or an identity from SPIRE. Only connected
/// programs are known, since they have no record.
async fn programs(connection: &Connection) -> BTreeMap<SpiffePath, usize> {
    // All such programs verify their peers, and therefore follow the revocations.
    let request = WatchersRequest { prefix: Prefix::from(&RecordKey::Revocations).to_string() };
    let watchers = connection.rib().watchers(request).await;
    let watchers = watchers.map(|response| response.into_inner().watchers).unwrap_or_default();
    let mut programs = BTreeMap::new();
    for id in watchers.iter().filter_map(|watcher| watcher.identity.parse::<SpiffeId>().ok()) {
        if let SpiffePath::Service(_) = &id.path {
            *programs.entry(id.path).or_default() += 1;
        }
    }
    programs
}

struct Rows {
    listing: Listing,
    bundle: Option<TrustBundle>,
    /// Revocations of identities without a row.
    revoked: Revocations,
}

impl Rows {
    fn id_of(&self, path: SpiffePath) -> String {
        match &self.bundle {
            Some(bundle) => path.within(&bundle.domain).to_string(),
            None => path.to_string(),
        }
    }

    /// The revocations of an identity that gets a row.
    fn take_revoked(&mut self, path: &SpiffePath) -> Vec<Revocation> {
        let all = std::mem::take(&mut self.revoked.entries);
        let (found, others) = all.into_iter().partition(|one| one.path == *path);
        self.revoked.entries = others;
        found
    }

    fn add_agent(&mut self, path: SpiffePath, agent: JoinedAgent) {
        let revoked = self.take_revoked(&path);
        let id = self.id_of(path);
        let tenants: Vec<_> = agent.tenants.iter().map(ToString::to_string).collect();
        let shown = if tenants.is_empty() { "all".to_owned() } else { tenants.join(", ") };
        let region = agent.region.map(String::from);
        let item = json!({
            "id": id, "tenants": tenants, "region": region, "joined": timestamp(agent.joined), "connected": null,
            "revocations": values(&revoked),
        });
        let region = region.unwrap_or_else(|| "any".into());
        self.listing.add(vec![id, shown, region, timestamp(agent.joined), words(&revoked)], item);
    }

    fn add_programs(&mut self, path: SpiffePath, connected: usize) {
        let revoked = self.take_revoked(&path);
        let id = self.id_of(path);
        let item = json!({
            "id": id, "tenants": null, "region": null, "joined": null, "connected": connected,
            "revocations": values(&revoked),
        });
        let joined = format!("without an agent, {connected} connected");
        self.listing.add(vec![id, "-".into(), "-".into(), joined, words(&revoked)], item);
    }

    fn add_revoked(&mut self) {
        for one in std::mem::take(&mut self.revoked.entries) {
            let id = self.id_of(one.path.clone());
            let item = json!({
                "id": id, "tenants": null, "region": null, "joined": null, "connected": null,
                "revocations": [revoke::value(&one)],
            });
            let dash = || "-".to_owned();
            self.listing.add(vec![id, dash(), dash(), dash(), revoke::describe(&one.certificates)], item);
        }
    }
}

fn values(revoked: &[Revocation]) -> Vec<Value> {
    revoked.iter().map(revoke::value).collect()
}

fn words(revoked: &[Revocation]) -> String {
    let what: Vec<_> = revoked.iter().map(|one| revoke::describe(&one.certificates)).collect();
    if what.is_empty() { "-".to_owned() } else { what.join(", ") }
}
