//! Agents that run in another region than the one in which they joined.

use std::collections::{BTreeMap, BTreeSet};

use fairmesh_console::rib_reader;
use fairmesh_model::{Label, MeshRole, Prefix, Record, RecordKey, Region, SpiffeId, SpiffePath};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{Watcher, WatchersRequest},
};

use crate::findings_report::{Level, Report, listed};

/// Checks the agents that follow the control plane. Callers who may not read everything get no finding.
pub(super) async fn check(control: &Connection, report: &mut Report) {
    let request = WatchersRequest { prefix: Prefix::everything().to_string() };
    let Ok(answer) = control.rib().watchers(request).await else { return };
    let Ok(stored) = rib_reader::read(control, &[Prefix::identity()]).await else { return };
    let mut recorded = BTreeMap::new();
    for one in &stored {
        if let RecordKey::JoinedAgent(name) = &one.key
            && let Ok(Record::JoinedAgent(joined)) = record_encoding::decode(&one.key, &one.value)
            && let Some(region) = joined.region
        {
            recorded.insert(name.clone(), region);
        }
    }
    let watchers = answer.into_inner().watchers;
    let elsewhere: BTreeSet<String> = watchers.iter().filter_map(|one| elsewhere(one, &recorded)).collect();
    if elsewhere.is_empty() {
        return;
    }
    report.add(
        "agent.region",
        Level::Warning,
        format!("control planes refuse reports and health checks of agents over TCP: {}", listed(&elsewhere)),
        "if the agent has moved, restart it with a new token of 'fairmesh identity token NAME --region REGION'; if two agents have \
         the name, give one of them another --name",
    );
}

/// Describes an agent that runs in another region than the recorded one.
fn elsewhere(watcher: &Watcher, recorded: &BTreeMap<Label, Region>) -> Option<String> {
    let runs = &watcher.peer.as_ref()?.region;
    let id: SpiffeId = watcher.identity.parse().ok()?;
    let SpiffePath::Mesh(MeshRole::Agent, name) = &id.path else { return None };
    let joined = recorded.get(name)?;
    (!runs.is_empty() && joined.as_str() != runs)
        .then(|| format!("{name} joined in the region {joined}, and runs in {runs}"))
}
