//! Services declared by their first registration instead of by an operator.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
    sync::Arc,
};

use fairmesh_model::ServiceName;
use tokio::time::Instant;

/// Maximum number of services declared by registrations at any time. Operators must apply further services.
pub const MAX_AUTO_DECLARED: usize = 20_000;

/// Number of declarations checked per scan.
const SCAN_BATCH: usize = 2_000;
/// Prefix of author names without an identity.
const ANONYMOUS: &str = "anonymous";

/// The known services declared by registrations.
#[derive(Debug, Default)]
pub(crate) struct AutoDeclarations {
    known: BTreeMap<ServiceName, AutoDeclaration>,
    /// The number of declarations by each peer.
    by_peer: HashMap<Arc<str>, usize>,
    /// The service at which the last scan ended.
    scan_cursor: Option<ServiceName>,
}

#[derive(Debug, Default)]
struct AutoDeclaration {
    /// Time since which no record has depended on the service; `None` while it is in use.
    unused: Option<Instant>,
    /// The peer whose registration declared the service; `None` after a restart, and for peers without an identity.
    peer: Option<Arc<str>>,
}

/// Returns the peer in an author's name, without the program for which the peer registers. `None` for an author
/// without an identity: all such peers would count as one.
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

    pub(crate) fn remove(&mut self, service: &ServiceName) {
        let removed = self.known.remove(service);
        self.release(removed);
    }

    /// Records that other records depend on the declaration of `service`.
    pub(crate) fn note_used(&mut self, service: ServiceName) {
        self.known.entry(service).or_default().unused = None;
    }

    /// Returns when the service became unused. Call this only for a service on which no record depends.
    pub(crate) fn unused_since(&mut self, service: ServiceName, now: Instant) -> Instant {
        *self.known.entry(service).or_default().unused.get_or_insert(now)
    }

    /// Subtracts a removed declaration from the count of its peer.
    fn release(&mut self, removed: Option<AutoDeclaration>) {
        let Some(peer) = removed.and_then(|removed| removed.peer) else { return };
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }

    /// Whether `peer` may declare another service, besides `more` in the same batch. A peer may hold at most as many
    /// declarations as remain free, so that no peer takes all.
    pub(crate) fn admits(&self, peer: Option<&str>, more: usize) -> bool {
        let all = self.known.len() + more;
        let own = peer.map_or(0, |peer| self.by_peer.get(peer).copied().unwrap_or_default() + more);
        all < MAX_AUTO_DECLARED && own < MAX_AUTO_DECLARED - all
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the services to check in the next scan, round robin.
    pub(crate) fn next_batch(&mut self) -> Vec<ServiceName> {
        let after = self.scan_cursor.take().map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.known.range((after, Bound::Unbounded)).take(SCAN_BATCH);
        let next: Vec<_> = next.map(|(service, _)| service.clone()).collect();
        self.scan_cursor = next.last().filter(|_| next.len() == SCAN_BATCH).cloned();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_cannot_use_up_limit_of_automatic_declarations() {
        let mut declarations = AutoDeclarations::default();
        let name = |number: usize| format!("shop/s{number}").parse::<ServiceName>().unwrap();
        let greedy = peer_of("spiffe://prod/fairmesh/agent/a for local uid 7");
        let greedy = greedy.as_deref();
        assert_eq!(greedy, Some("spiffe://prod/fairmesh/agent/a"));
        let mut number = 0;
        while declarations.admits(greedy, 0) {
            declarations.add(name(number), greedy.map(Arc::from));
            number += 1;
        }
        assert_eq!(number, MAX_AUTO_DECLARED / 2);
        assert!(declarations.admits(Some("spiffe://prod/fairmesh/agent/b"), 0));
        assert_eq!(peer_of("anonymous"), None);
        assert!(declarations.admits(None, 0) && !declarations.admits(None, MAX_AUTO_DECLARED / 2));
        declarations.remove(&name(0));
        declarations.remove(&name(1));
        assert!(declarations.admits(greedy, 0));
    }
}
