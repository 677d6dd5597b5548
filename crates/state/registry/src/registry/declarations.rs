//! Services that were declared by their first registration, and the removal of such declarations.
//!
//! A newcomer needs no file: registering an endpoint declares its service if no operator did. Such a declaration is
//! removed some minutes after the last endpoint, so that declarations that no operator wrote do not pile up. An entry
//! in the service's history records that a registration declared it. Applying any declaration makes it an operator's,
//! which stays. A field of the record was rejected: every reader of services would have to know it.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use fairmesh_model::{Prefix, RecordKey, RecordKind, ServiceName};
use fairmesh_rib::{Entry, Expect, Node, Op};
use fairmesh_wire::{
    LogLimiter,
    record_encoding::{self, History},
};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::Registry;
use fairmesh_rib::wall_clock::now_ms;

use crate::RegistryError;

/// How long a declaration outlives the last endpoint: longer than a restart of a program.
pub const DECLARATION_GRACE: Duration = Duration::from_secs(5 * 60);

/// Interval between scans of declarations.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of declarations removed in one batch.
const REMOVE_BATCH: usize = 100;
/// Author in the history entry of a declaration by registration.
const DECLARED_BY: &str = "its first registration";

static REMOVED: LogLimiter = LogLimiter::new();

impl Registry {
    /// Returns the history entry that marks a declaration by registration.
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
        Op::put(key.to_string(), record_encoding::encode_history(&history))
    }

    /// Returns the number of services declared by registrations, and the number of refused and of removed
    /// declarations.
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

    /// Returns the declarations without endpoints for longer than the grace period.
    fn expired(&self, now: Instant) -> Vec<ServiceName> {
        let batch = self.declarations().next_batch();
        let mut due = Vec::new();
        for service in batch {
            let stays = marker(self.node(), &service).map(|_| self.is_used(&service));
            let mut declarations = self.declarations();
            match stays {
                None => declarations.remove(&service),
                Some(true) => declarations.note_used(service),
                Some(false) => {
                    let since = declarations.unused_since(service.clone(), now);
                    if now.saturating_duration_since(since) >= DECLARATION_GRACE {
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

/// Returns the write that turns a declaration by registration into an operator's; `None` if it already is an
/// operator's.
pub fn adopt_declaration(node: &Node, service: &ServiceName) -> Option<Op> {
    marker(node, service)
}

/// Returns the deletion of the marker, which is the newest entry in the service's history.
fn marker(node: &Node, service: &ServiceName) -> Option<Op> {
    let (_, entries) = node.read(&[Prefix::history(RecordKind::Service, service)]);
    let (key, entry) = entries.into_iter().next_back()?;
    declared_by(&key, &entry)?;
    Some(Op::delete(key).expecting(Expect::Revision(entry.revision)))
}

/// Returns the service that a marker names; `None` for other entries.
fn declared_by(key: &str, entry: &Entry) -> Option<ServiceName> {
    if RecordKind::of(key) != Some(RecordKind::History) {
        return None;
    }
    let history = record_encoding::decode_history(&entry.value).ok()?;
    let ours = history.value.is_none() && history.replaced_by == DECLARED_BY;
    history.key.service().filter(|_| ours).cloned()
}

#[cfg(test)]
mod tests;
