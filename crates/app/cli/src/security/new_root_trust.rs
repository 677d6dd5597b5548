//! Whether a new root of the mesh is trusted everywhere before it signs.

use std::{collections::BTreeSet, time::Duration};

use fairmesh_console::output::timestamp;
use fairmesh_console::{failure::Failure, rib_reader};
use fairmesh_identity::{Authority, CertificateInfo, Clock as _, SystemClock, sha256};
use fairmesh_model::{MeshRole, Prefix, Record, RecordKey, SpiffeId, SpiffePath, TrustBundle};
use fairmesh_wire::{
    handshake::Connection,
    record_encoding,
    v1::{Watcher, WatchersRequest, peer_info::Kind},
};

use crate::findings_report::{Level, Report, listed};

/// Prefix of the name by which an agent introduces itself.
const AGENT: &str = "agent ";

/// Checks which processes trust the newest root. With only one root, all do.
pub(super) async fn check(
    connection: &Connection,
    bundle: &TrustBundle,
    report: &mut Report,
) -> Result<(), Failure> {
    let was_rotated = bundle.roots.len() > 1 || !bundle.retired.is_empty();
    let Some(newest) = bundle.roots.last().filter(|_| was_rotated) else { return Ok(()) };
    programs(bundle, newest, report)?;
    let connected = match connected(connection).await {
        Some(watchers) => Agents::of(&watchers, newest),
        // A caller who may not read everything gets no list of watchers.
        None => return Ok(()),
    };
    let joined = joined(connection).await?;
    connected.report(&joined, report);
    Ok(())
}

/// Programs do not report which roots they trust. Each gets the roots with its next certificate, which bounds the time.
fn programs(bundle: &TrustBundle, newest: &[u8], report: &mut Report) -> Result<(), Failure> {
    let learned = Authority::newest_root_learned_at(bundle).map_err(Failure::failed)?;
    let Some(learned) = learned.filter(|learned| *learned > SystemClock.now()) else {
        report.ok("root.programs", "programs have renewed their certificates since the newest root began");
        return Ok(());
    };
    let root = CertificateInfo::of(newest).map_err(Failure::failed)?.digest;
    report.add(
        "root.programs",
        Level::Note,
        format!(
            "programs that have not renewed their certificates since the root {root} began do not trust it: all do by {}",
            time(learned)
        ),
        "run 'fairmesh identity rotate' then, to sign with it, unless that was done with --force",
    );
    Ok(())
}

fn time(since_1970: Duration) -> String {
    timestamp(since_1970.as_secs())
}

async fn connected(connection: &Connection) -> Option<Vec<Watcher>> {
    let request = WatchersRequest { prefix: Prefix::everything().to_string() };
    Some(connection.rib().watchers(request).await.ok()?.into_inner().watchers)
}

/// The names of the agents that joined.
async fn joined(connection: &Connection) -> Result<BTreeSet<String>, Failure> {
    let mut names = BTreeSet::new();
    for stored in rib_reader::read(connection, &[Prefix::identity()]).await? {
        if let (RecordKey::JoinedAgent(name), Record::JoinedAgent(_)) =
            (&stored.key, record_encoding::decode(&stored.key, &stored.value)?)
        {
            names.insert(name.to_string());
        }
    }
    Ok(names)
}

/// Agents that follow the control plane, by reported roots.
#[derive(Debug, Default, PartialEq, Eq)]
struct Agents {
    trusting: BTreeSet<String>,
    lacking: BTreeSet<String>,
    /// Agents of releases that do not report their roots.
    silent: BTreeSet<String>,
}

impl Agents {
    fn of(watchers: &[Watcher], newest: &[u8]) -> Self {
        let (mut agents, newest) = (Self::default(), sha256(newest));
        for watcher in watchers {
            let Some(peer) = watcher.peer.as_ref().filter(|peer| peer.kind() == Kind::Agent) else {
                continue;
            };
            let proved = watcher.identity.parse().ok().and_then(|id: SpiffeId| match id.path {
                SpiffePath::Mesh(MeshRole::Agent, name) => Some(name.to_string()),
                _ => None,
            });
            // Beside the control plane, an agent may connect without its certificate.
            let stated = || watcher.software.strip_prefix(AGENT).map(str::to_owned);
            let Some(name) = proved.or_else(stated) else { continue };
            let set = match peer.roots.iter().any(|root| root.as_ref() == newest.as_slice()) {
                true => &mut agents.trusting,
                false if peer.roots.is_empty() => &mut agents.silent,
                false => &mut agents.lacking,
            };
            set.insert(name.to_ascii_lowercase());
        }
        agents
    }

    fn report(&self, joined: &BTreeSet<String>, report: &mut Report) {
        if self.lacking.is_empty() {
            let message =
                format!("the {} agents that say so here trust the newest root", self.trusting.len());
            report.ok("root.agents", message);
        } else {
            report.add(
                "root.agents",
                Level::Warning,
                format!("agents do not trust the newest root: {}", listed(&self.lacking)),
                "wait 10 s, look into their logs, and do not run 'fairmesh identity rotate' before",
            );
        }
        let seen = |name: &&String| !self.trusting.contains(*name) && !self.lacking.contains(*name);
        let unknown: BTreeSet<String> = joined.iter().filter(seen).chain(&self.silent).cloned().collect();
        if !unknown.is_empty() {
            report.add(
                "root.unknown",
                Level::Note,
                format!("it is not known here whether agents trust the newest root: {}", listed(&unknown)),
                "they are away, follow a replica or another control plane, or are of an earlier release; 'fairmesh rib status' shows \
                 those behind replicas",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_wire::v1::PeerInfo;

    use super::*;

    fn watcher(software: &str, kind: Kind, roots: &[&[u8]]) -> Watcher {
        let roots = roots.iter().map(|root| sha256(root).to_vec().into()).collect();
        let peer = PeerInfo { kind: kind.into(), roots, ..PeerInfo::default() };
        Watcher { software: software.into(), peer: Some(peer), ..Watcher::default() }
    }

    #[test]
    fn agents_without_newest_root_are_listed_apart_from_silent_agents() {
        let watchers = [
            watcher("agent web-1", Kind::Agent, &[b"old", b"new"]),
            watcher("agent Web-2", Kind::Agent, &[b"old"]),
            watcher("agent web-3", Kind::Agent, &[]),
            watcher("replica eu", Kind::Replica, &[]),
            Watcher { software: "client cart".into(), ..Watcher::default() },
        ];
        let agents = Agents::of(&watchers, b"new");
        let set = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let expected =
            Agents { trusting: set(&["web-1"]), lacking: set(&["web-2"]), silent: set(&["web-3"]) };
        assert_eq!(agents, expected);
        let mut report = Report::default();
        agents.report(&set(&["web-1", "web-4"]), &mut report);
        let text = report.to_string();
        assert!(text.contains("do not trust the newest root: web-2"), "{text}");
        assert!(text.contains("not known here whether agents trust the newest root: web-3, web-4"), "{text}");
    }
}
