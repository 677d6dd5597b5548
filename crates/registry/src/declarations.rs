//! Services that their first registration declared, and how they go again.
//!
//! A newcomer needs no file: registering declares a service that is not declared. Such a declaration stands for its endpoints, and goes
//! some minutes after the last of them, so that names which no operator wrote down do not pile up. The history of the service
//! says that a registration declared it; applying the declaration, or any other, makes it an operator's, which stays.
//! Telling the two apart by a field of the record was rejected: every reader of services would have to know it.

use std::{collections::BTreeMap, ops::Bound, sync::atomic::Ordering::Relaxed, time::Duration};

use fairmesh_model::{HistoryKind, Prefix, RecordKey, ServiceName};
use fairmesh_rib::{Entry, Expect, Node, Op};
use fairmesh_wire::{
    LogLimiter,
    records::{self, History},
};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{Registry, RegistryError, clock::now_ms};

/// How long a declaration outlives the last endpoint: longer than a program takes to start again.
pub const GRACE: Duration = Duration::from_secs(5 * 60);
/// Services that registrations may have declared at a time; further ones have to be applied.
pub const MAX_DECLARED: usize = 20_000;

/// How often some of them are looked at, and how many.
const LOOK: Duration = Duration::from_secs(10);
const AT_ONCE: usize = 2_000;
/// How many go in one batch.
const REMOVED_AT_ONCE: usize = 100;
/// What the history of such a service says of who ended the time without it.
const BY: &str = "its first registration";

static REMOVED: LogLimiter = LogLimiter::new();

/// Those that are known, with since when they have no endpoints.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    known: BTreeMap<ServiceName, Option<Instant>>,
    /// Where the last look ended.
    looked: Option<ServiceName>,
}

impl Declarations {
    pub(crate) fn add(&mut self, service: ServiceName) {
        self.known.insert(service, None);
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// The next ones to look at, all in turn.
    fn turn(&mut self) -> Vec<ServiceName> {
        let after = self.looked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.known.range((after, Bound::Unbounded)).take(AT_ONCE);
        let next: Vec<_> = next.map(|(service, _)| service.clone()).collect();
        self.looked = next.last().filter(|_| next.len() == AT_ONCE).cloned();
        next
    }
}

impl Registry {
    /// What keeps in mind that a registration declares a service: an entry of its history.
    pub(crate) fn declared_here(&self, service: &ServiceName) -> Op {
        let at = self.node().revision().number;
        let history = History {
            key: RecordKey::Service(service.clone()),
            value: None,
            replaced_at_ms: now_ms(),
            replaced_by: BY.to_owned(),
            revision: 0,
        };
        let key = RecordKey::History(HistoryKind::Services, service.clone(), at);
        Op::put(key.to_string(), records::encode_history(&history))
    }

    /// Services that registrations have declared, and how many were refused or have gone.
    pub fn self_declared(&self) -> (usize, u64, u64) {
        let (refused, removed) = (&self.shared.declarations_refused, &self.shared.declarations_removed);
        (self.declarations().len(), refused.load(Relaxed), removed.load(Relaxed))
    }

    /// Takes declarations away whose endpoints have gone, for ever.
    pub(crate) async fn watch_declarations(&self) {
        let (_, entries) = self.node().read(&[Prefix::everything()]);
        let services = entries.iter().filter_map(|(key, entry)| declared_by(key, entry));
        let services: Vec<_> = services.filter(|service| marker(self.node(), service).is_some()).collect();
        drop(entries);
        services.into_iter().for_each(|service| self.declarations().add(service));
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let due = self.abandoned(Instant::now());
            for services in due.chunks(REMOVED_AT_ONCE) {
                if let Err(error) = self.remove_declarations(services).await {
                    tracing::warn!(%error, "declarations without endpoints cannot be taken away; trying again");
                    break;
                }
            }
        }
    }

    /// Those without endpoints for long enough.
    fn abandoned(&self, now: Instant) -> Vec<ServiceName> {
        let turn = self.declarations().turn();
        let mut due = Vec::new();
        for service in turn {
            let stays = marker(self.node(), &service).map(|_| self.is_used(&service));
            let mut declarations = self.declarations();
            match stays {
                None => {
                    declarations.known.remove(&service);
                }
                Some(true) => declarations.add(service),
                Some(false) => {
                    let since = declarations.known.entry(service.clone()).or_default().get_or_insert(now);
                    if now.saturating_duration_since(*since) >= GRACE {
                        due.push(service);
                    }
                }
            }
        }
        due
    }

    /// Whether anything rests on the declaration: endpoints, a policy or a shard map.
    fn is_used(&self, service: &ServiceName) -> bool {
        let policy = RecordKey::Policy(service.clone()).to_string();
        let below = [Prefix::endpoints(service, None), Prefix::shards(service, None)];
        self.node().get(&policy).is_some() || !self.node().read(&below).1.is_empty()
    }

    /// Takes them away unless they are used again. Nothing registers meanwhile: it would find its service declared.
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
        let gone = self.change(plan).await?.told;
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
        declarations.known.retain(|service, _| !gone.contains(service));
        Ok(())
    }
}

/// Ends that the declaration is a registration's, where it is: the operator who says the same again means it to stay.
pub fn adopt_declaration(node: &Node, service: &ServiceName) -> Option<Op> {
    marker(node, service)
}

/// The end of the entry that says that a registration declared what stands there now: the newest of its history.
fn marker(node: &Node, service: &ServiceName) -> Option<Op> {
    let (_, entries) = node.read(&[Prefix::history(HistoryKind::Services, service)]);
    let (key, entry) = entries.into_iter().next_back()?;
    declared_by(&key, &entry)?;
    Some(Op::delete(key).expecting(Expect::Revision(entry.revision)))
}

/// The service that a registration declared, where an entry says so.
fn declared_by(key: &str, entry: &Entry) -> Option<ServiceName> {
    if !key.contains("/history/services/") {
        return None;
    }
    let history = records::decode_history(&entry.value).ok()?;
    let ours = history.value.is_none() && history.replaced_by == BY;
    history.key.service().filter(|_| ours).cloned()
}

#[cfg(test)]
mod tests;
