//! Services declared by their first registration, and the removal of such declarations.
//!
//! New services need no file: a registration declares an undeclared service. The declaration is removed some minutes
//! after the service's last endpoint, so that names without an operator do not pile up. The service's history marks
//! the declaration. Applying any declaration makes it an operator's, which stays. A field of the record was rejected:
//! every reader of services would have to know it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceName};
use fairmesh_rib::{Entry, Expect, Node, Op};
use fairmesh_wire::{
    LogLimiter,
    records::{self, History},
};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{Registry, RegistryError, clock::now_ms};

/// How long a declaration outlives its last endpoint: longer than a program takes to restart.
pub const DECLARATION_GRACE: Duration = Duration::from_secs(5 * 60);
/// The most services declared by registrations at a time; operators have to apply further ones.
pub const MAX_AUTO_DECLARED: usize = 20_000;

/// Interval of scans, and the number of declarations per scan.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
const SCAN_BATCH: usize = 2_000;
/// The most declarations removed in one batch.
const REMOVE_BATCH: usize = 100;
/// Prefix of authors without an identity.
const ANONYMOUS: &str = "anonymous";
/// The author in a marker of a declaration by registration.
const DECLARED_BY: &str = "its first registration";

static REMOVED: LogLimiter = LogLimiter::new();

/// The known declarations by registration.
#[derive(Debug, Default)]
pub(crate) struct AutoDeclarations {
    known: BTreeMap<ServiceName, AutoDeclaration>,
    /// The number of declarations of each peer.
    by_peer: HashMap<Arc<str>, usize>,
    /// The service at which the last scan ended.
    scan_cursor: Option<ServiceName>,
}

#[derive(Debug, Default)]
struct AutoDeclaration {
    /// Since when the service has no endpoints.
    unused: Option<Instant>,
    /// The peer whose registration declared the service; `None` after a restart, and for peers without an identity.
    peer: Option<Arc<str>>,
}

/// The peer in an author, without the program for which it registers. `None` without an identity, since all such peers would be
/// one.
pub(crate) fn peer_of(author: &str) -> Option<Arc<str>> {
    let peer = author.split(" for ").next().unwrap_or_default();
    (!peer.starts_with(ANONYMOUS)).then(|| peer.into())
}

impl AutoDeclarations {
    pub(crate) fn add(&mut self, service: ServiceName, peer: Option<Arc<str>>) {
        if let Some(peer) = &peer {
            *self.by_peer.entry(Arc::clone(peer)).or_default() += 1;
        }
        let before = self.known.insert(service, AutoDeclaration { unused: None, peer });
        self.release(before);
    }

    fn remove(&mut self, service: &ServiceName) {
        let removed = self.known.remove(service);
        self.release(removed);
    }

    /// Releases a removed declaration from its peer.
    fn release(&mut self, removed: Option<AutoDeclaration>) {
        let Some(peer) = removed.and_then(|removed| removed.peer) else { return };
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// Whether a peer may declare another service, besides `more` in the same batch. A peer may have as many as it leaves free,
    /// so that no peer takes all.
    pub(crate) fn admits(&self, peer: Option<&str>, more: usize) -> bool {
        let all = self.known.len() + more;
        let own = peer.map_or(0, |peer| self.by_peer.get(peer).copied().unwrap_or_default() + more);
        all < MAX_AUTO_DECLARED && own < MAX_AUTO_DECLARED - all
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The services of the next scan, in rotation.
    fn next_batch(&mut self) -> Vec<ServiceName> {
        let after = self.scan_cursor.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.known.range((after, Bound::Unbounded)).take(SCAN_BATCH);
        let next: Vec<_> = next.map(|(service, _)| service.clone()).collect();
        self.scan_cursor = next.last().filter(|_| next.len() == SCAN_BATCH).cloned();
        next
    }
}

impl Registry {
    /// The history entry that marks a declaration by registration.
    pub(crate) fn declaration_marker(&self, service: &ServiceName) -> Op {
        let at = self.node().revision().number;
        let history = History {
            key: RecordKey::Service(service.clone()),
            value: None,
            replaced_at_ms: now_ms(),
            replaced_by: DECLARED_BY.to_owned(),
            replaced_message: String::new(),
            revision: 0,
        };
        let key = RecordKey::History(RecordKind::Service, service.clone(), at);
        Op::put(key.to_string(), records::encode_history(&history))
    }

    /// The number of services declared by registrations, of refused and of removed declarations.
    pub fn self_declared(&self) -> (usize, u64, u64) {
        let (refused, removed) = (&self.shared.declarations_refused, &self.shared.declarations_removed);
        (self.declarations().len(), refused.load(Relaxed), removed.load(Relaxed))
    }

    /// Removes declarations without endpoints; never returns.
    pub(crate) async fn run_declaration_cleanup(&self) {
        let (_, entries) = self.node().read(&[Prefix::everything()]);
        let services = entries.iter().filter_map(|(key, entry)| declared_by(key, entry));
        let services: Vec<_> = services.filter(|service| marker(self.node(), service).is_some()).collect();
        drop(entries);
        services.into_iter().for_each(|service| self.declarations().add(service, None));
        let mut ticks = interval(SCAN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let due = self.expired(Instant::now());
            for services in due.chunks(REMOVE_BATCH) {
                if let Err(error) = self.remove_declarations(services).await {
                    tracing::warn!(%error, "declarations without endpoints cannot be removed; retrying");
                    break;
                }
            }
        }
    }

    /// The declarations without endpoints for the grace period.
    fn expired(&self, now: Instant) -> Vec<ServiceName> {
        let batch = self.declarations().next_batch();
        let mut due = Vec::new();
        for service in batch {
            let stays = marker(self.node(), &service).map(|_| self.is_used(&service));
            let mut declarations = self.declarations();
            match stays {
                None => declarations.remove(&service),
                Some(true) => declarations.known.entry(service).or_default().unused = None,
                Some(false) => {
                    let known = declarations.known.entry(service.clone()).or_default();
                    let since = known.unused.get_or_insert(now);
                    if now.saturating_duration_since(*since) >= DECLARATION_GRACE {
                        due.push(service);
                    }
                }
            }
        }
        due
    }

    /// Whether records depend on the declaration: endpoints, a policy or a shard map.
    fn is_used(&self, service: &ServiceName) -> bool {
        let policy = RecordKey::Policy(service.clone()).to_string();
        let below = [Prefix::endpoints(service, None), Prefix::shards(service, None)];
        self.node().get(&policy).is_some() || !self.node().read(&below).1.is_empty()
    }

    /// Removes declarations that are still unused. Registrations wait meanwhile, because they would still find the
    /// service declared.
    async fn remove_declarations(&self, services: &[ServiceName]) -> Result<(), RegistryError> {
        let _registering = self.shared.registering.write().await;
        let plan = || {
            let (mut ops, mut gone) = (Vec::new(), Vec::new());
            for service in services.iter().filter(|service| !self.is_used(service)) {
                let key = RecordKey::Service(service.clone()).to_string();
                let (Some(entry), Some(marker)) = (self.node().get(&key), marker(self.node(), service))
                else {
                    continue;
                };
                ops.push(Op::delete(key).expecting(Expect::Revision(entry.revision)));
                ops.push(marker);
                gone.push(service.clone());
            }
            Ok((ops, gone))
        };
        let gone = self.change(plan).await?.output;
        self.shared.declarations_removed.fetch_add(gone.len() as u64, Relaxed);
        if let Some(left_out) = REMOVED.next().filter(|_| !gone.is_empty()) {
            let (services, first) = (gone.len(), gone.first().map(ToString::to_string).unwrap_or_default());
            tracing::info!(
                services,
                first,
                left_out,
                "declared by a registration, without endpoints for minutes: removed"
            );
        }
        let mut declarations = self.declarations();
        gone.iter().for_each(|service| declarations.remove(service));
        Ok(())
    }
}

/// The write that turns a declaration by registration into an operator's; `None` if it already is an operator's.
pub fn adopt_declaration(node: &Node, service: &ServiceName) -> Option<Op> {
    marker(node, service)
}

/// The deletion of a declaration's marker, which is the newest entry of its history.
fn marker(node: &Node, service: &ServiceName) -> Option<Op> {
    let (_, entries) = node.read(&[Prefix::history(RecordKind::Service, service)]);
    let (key, entry) = entries.into_iter().next_back()?;
    declared_by(&key, &entry)?;
    Some(Op::delete(key).expecting(Expect::Revision(entry.revision)))
}

/// The service of a marker; `None` for other history entries.
fn declared_by(key: &str, entry: &Entry) -> Option<ServiceName> {
    if RecordKind::of(key) != Some(RecordKind::History) {
        return None;
    }
    let history = records::decode_history(&entry.value).ok()?;
    let ours = history.value.is_none() && history.replaced_by == DECLARED_BY;
    history.key.service().filter(|_| ours).cloned()
}

#[cfg(test)]
mod tests;
