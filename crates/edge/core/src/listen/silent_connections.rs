//! Connections that have sent no request yet. When the maximum of connections is reached, silent connections
//! are closed to make room for new ones.
//!
//! The oldest connection of the address with the most silent connections is closed first: a client that opens
//! many loses to clients that open few. Closing the oldest of all was rejected: a flood would displace the
//! clients that were there before it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    task::Context,
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use crate::listen::unidentified_peers::site_of;

/// Minimum age at which a silent connection may be closed. Client pools open connections before they send
/// requests.
pub(crate) const MIN_AGE: Duration = Duration::from_secs(1);
/// Number of addresses that are searched for a connection that is old enough. The addresses with the most connections
/// are searched.
const SEARCHED: usize = 16;

/// Connections without a request, grouped by client address.
#[derive(Debug, Default)]
pub struct SilentConnections(Mutex<BySite>);

#[derive(Debug, Default)]
struct BySite {
    last: u64,
    /// Keyed by serial number, so that the oldest connection is the first.
    sites: HashMap<IpAddr, BTreeMap<u64, Entry>>,
    by_count: BTreeSet<(usize, IpAddr)>,
}

#[derive(Debug)]
struct Entry {
    since: Instant,
    state: Arc<SilentState>,
}

#[derive(Debug)]
struct SilentState {
    is_silent: AtomicBool,
    has_to_leave: AtomicBool,
    waker: AtomicWaker,
}

/// Registration of a connection as silent, until its first request or until dropped.
#[derive(Debug)]
pub(crate) struct SilentConnection {
    of: Arc<SilentConnections>,
    site: IpAddr,
    number: u64,
    state: Arc<SilentState>,
}

impl SilentConnections {
    /// Adds a connection.
    pub(crate) fn enter(self: &Arc<Self>, client: IpAddr, now: Instant) -> SilentConnection {
        let site = site_of(client);
        let state = Arc::new(SilentState {
            is_silent: AtomicBool::new(true),
            has_to_leave: AtomicBool::new(false),
            waker: AtomicWaker::new(),
        });
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        let entry = Entry { since: now, state: Arc::clone(&state) };
        all.change(site, |connections| drop(connections.insert(number, entry)));
        drop(all);
        SilentConnection { of: Arc::clone(self), site, number, state }
    }

    /// Closes one connection to make room. Returns `false` if no connection has been silent for [`MIN_AGE`].
    pub(crate) fn displace(&self, now: Instant) -> bool {
        let mut all = self.lock();
        let is_old = |site: &IpAddr| {
            let oldest = all.sites.get(site).and_then(BTreeMap::first_key_value);
            oldest.is_some_and(|(_, entry)| now.duration_since(entry.since) >= MIN_AGE)
        };
        let found = all.by_count.iter().rev().take(SEARCHED).map(|(_, site)| *site).find(is_old);
        let Some(site) = found else { return false };
        let mut oldest = None;
        all.change(site, |connections| oldest = connections.pop_first());
        drop(all);
        if let Some((_, Entry { state, .. })) = oldest {
            state.has_to_leave.store(true, Release);
            state.waker.wake();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, BySite> {
        // No code that holds the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BySite {
    /// Changes the connections of an address, and updates its rank.
    fn change(&mut self, site: IpAddr, change: impl FnOnce(&mut BTreeMap<u64, Entry>)) {
        let connections = self.sites.entry(site).or_default();
        self.by_count.remove(&(connections.len(), site));
        change(connections);
        match connections.len() {
            0 => drop(self.sites.remove(&site)),
            count => drop(self.by_count.insert((count, site))),
        }
    }
}

impl SilentConnection {
    /// Notes that the connection has sent a request. It is not closed to make room from now on.
    #[inline]
    pub(crate) fn note_request(&self) {
        if self.state.is_silent.load(Relaxed) && self.state.is_silent.swap(false, Relaxed) {
            self.leave();
        }
    }

    /// Whether the connection must close to make room. Otherwise registers the task to be woken when it must.
    pub(crate) fn poll_displaced(&self, context: &Context<'_>) -> bool {
        if !self.state.is_silent.load(Relaxed) {
            return false;
        }
        self.state.waker.register(context.waker());
        self.state.has_to_leave.load(Acquire)
    }

    fn leave(&self) {
        self.of.lock().change(self.site, |connections| drop(connections.remove(&self.number)));
    }
}

impl Drop for SilentConnection {
    fn drop(&mut self) {
        self.note_request();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn is_displaced(one: &SilentConnection) -> bool {
        one.poll_displaced(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn client_address_with_most_silent_connections_loses_its_oldest() {
        let (all, start) = (Arc::<SilentConnections>::default(), Instant::now());
        let [few, many]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let honest = all.enter(few, start);
        let mut flood: Vec<_> = (0..3).map(|_| all.enter(many, start)).collect();
        assert!(!all.displace(start), "each has time for its first request");
        let later = start + MIN_AGE;
        assert!(all.displace(later));
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [true, false, false]);
        drop(flood.remove(1));
        assert!(!is_displaced(&honest));
        drop(flood);
        assert!(all.displace(later) && is_displaced(&honest), "the last one");
        assert!(!all.displace(later));
        drop(honest);
        assert!(all.lock().sites.is_empty() && all.lock().by_count.is_empty());
    }

    #[test]
    fn connection_that_sent_request_is_not_closed_for_new_ones() {
        let (all, start) = (Arc::<SilentConnections>::default(), Instant::now());
        let client = [192, 0, 2, 1].into();
        let [served, raced] = [(); 2].map(|()| all.enter(client, start));
        served.note_request();
        assert!(all.displace(start + MIN_AGE) && is_displaced(&raced) && !is_displaced(&served));
        // The first request arrived before the connection's task noticed that it should close.
        raced.note_request();
        assert!(!is_displaced(&raced) && !all.displace(start + MIN_AGE));
    }

    #[test]
    fn flood_of_new_connections_does_not_protect_old_silent_ones() {
        let (all, start) = (Arc::<SilentConnections>::default(), Instant::now());
        let old = all.enter([192, 0, 2, 1].into(), start);
        let later = start + MIN_AGE;
        let _young: Vec<_> = (0..2).map(|_| all.enter([192, 0, 2, 2].into(), later)).collect();
        assert!(all.displace(later) && is_displaced(&old));
    }
}
