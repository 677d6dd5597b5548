//! Connections that have sent no request yet. At the maximum of connections, they make room for new ones.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

/// Time that a client has for its first request, whoever needs room: pools of clients connect before they send.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Connections without a request, by the address of their client. Of the address with the most, the oldest makes room first: a
/// client that opens many loses to clients that open few.
#[derive(Debug, Default)]
pub(crate) struct SilentConnections(Mutex<BySource>);

#[derive(Debug, Default)]
struct BySource {
    next: u64,
    sources: HashMap<IpAddr, BTreeMap<u64, Silent>>,
}

#[derive(Debug)]
struct Silent {
    since: Instant,
    displaced: Arc<Notify>,
}

/// A connection among the silent ones, until this is dropped.
#[derive(Debug)]
pub(crate) struct SilentConnection {
    all: Arc<SilentConnections>,
    source: IpAddr,
    number: u64,
    displaced: Arc<Notify>,
}

impl SilentConnections {
    /// Adds a connection.
    pub(crate) fn add(self: &Arc<Self>, source: IpAddr, now: Instant) -> SilentConnection {
        let (source, displaced) = (source.to_canonical(), Arc::<Notify>::default());
        let mut all = self.lock();
        all.next += 1;
        let number = all.next;
        let silent = Silent { since: now, displaced: Arc::clone(&displaced) };
        all.sources.entry(source).or_default().insert(number, silent);
        drop(all);
        SilentConnection { all: Arc::clone(self), source, number, displaced }
    }

    /// Has one connection make room, if one has been silent for long enough.
    pub(crate) fn displace(&self, now: Instant) -> bool {
        let mut all = self.lock();
        let is_old = |silent: &BTreeMap<u64, Silent>| {
            silent.first_key_value().is_some_and(|(_, one)| now.duration_since(one.since) >= MIN_AGE)
        };
        let sources = all.sources.iter_mut().filter(|(_, silent)| is_old(silent));
        let Some((source, silent)) = sources.max_by_key(|(_, silent)| silent.len()) else { return false };
        let (source, oldest) = (*source, silent.pop_first());
        if silent.is_empty() {
            all.sources.remove(&source);
        }
        oldest.is_some_and(|(_, oldest)| {
            oldest.displaced.notify_one();
            true
        })
    }

    fn lock(&self) -> MutexGuard<'_, BySource> {
        // No code that holds the lock panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SilentConnection {
    /// Notified once the connection has to make room.
    pub(crate) fn displaced(&self) -> Arc<Notify> {
        Arc::clone(&self.displaced)
    }
}

impl Drop for SilentConnection {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let Some(silent) = all.sources.get_mut(&self.source) else { return };
        silent.remove(&self.number);
        if silent.is_empty() {
            all.sources.remove(&self.source);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_source_with_the_most_silent_connections_loses_its_oldest() {
        let (all, start) = (Arc::<SilentConnections>::default(), Instant::now());
        let [few, many] = [1, 2].map(|n| IpAddr::from(Ipv4Addr::from_bits(n)));
        let honest = all.add(few, start);
        let mut flood: Vec<_> = (0..3).map(|_| all.add(many, start)).collect();
        assert!(!all.displace(start), "each has time for its first request");
        let later = start + MIN_AGE;
        let is_displaced = |one: &SilentConnection| one.displaced().notified().now_or_never().is_some();
        assert!(all.displace(later));
        assert_eq!(flood.iter().map(is_displaced).collect::<Vec<_>>(), [true, false, false]);
        drop(flood.remove(1));
        assert!(!is_displaced(&honest));
        drop(flood);
        assert!(all.displace(later) && is_displaced(&honest), "the last one");
        assert!(!all.displace(later));
    }
}
