//! Plaintext callers of a server with mutual TLS, while its policy is permissive.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{net::TcpStream, time::Instant};

/// Maximum number of remembered callers. Callers with open connections are kept first, then the most recent ones.
const MAX_CALLERS: usize = 64;
/// How long a caller is remembered after its last connection ended.
const RETENTION: Duration = Duration::from_secs(300);
/// The first byte of TLS: the content type of handshake records (RFC 8446, section 5.1). No HTTP/1.1 or HTTP/2
/// request begins with this byte.
const HANDSHAKE_RECORD: u8 = 22;

/// Plaintext callers of one server: whether the server accepts them, and which callers connected.
#[derive(Debug, Default)]
pub struct PlaintextCallers {
    are_permitted: AtomicBool,
    connections: AtomicU64,
    callers: Mutex<BTreeMap<IpAddr, PlaintextCaller>>,
}

/// A plaintext caller.
#[derive(Clone, Copy, Debug)]
pub struct PlaintextCaller {
    /// Number of connections since the caller was first remembered.
    pub connections: u64,
    /// Number of open connections.
    open: u64,
    /// Number that distinguishes this entry from an earlier, evicted entry for the same caller.
    number: u64,
    /// When the last connection began or ended.
    last: Instant,
}

/// An open plaintext connection.
pub(super) struct PlaintextConnection {
    callers: Arc<PlaintextCallers>,
    caller: IpAddr,
    number: u64,
}

impl Drop for PlaintextConnection {
    fn drop(&mut self) {
        self.callers.note_end((self.caller, self.number), Instant::now());
    }
}

impl PlaintextCaller {
    /// Time since the caller's last connection ended; zero while one is open.
    pub fn idle(&self, now: Instant) -> Duration {
        if self.open > 0 { Duration::ZERO } else { now.saturating_duration_since(self.last) }
    }
}

impl PlaintextCallers {
    /// Sets whether plaintext callers are accepted. Open connections stay open, but request
    /// authorization refuses their requests.
    pub fn permit(&self, are_permitted: bool) {
        self.are_permitted.store(are_permitted, Relaxed);
    }

    /// Whether plaintext callers are accepted.
    pub fn are_permitted(&self) -> bool {
        self.are_permitted.load(Relaxed)
    }

    /// Total number of connections accepted in plaintext.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// The callers that have an open connection, or had one in the last five minutes. At most 64: callers with open
    /// connections first, then the most recent ones.
    pub fn recent(&self, now: Instant) -> BTreeMap<IpAddr, PlaintextCaller> {
        let mut callers = self.lock();
        callers.retain(|_, caller| caller.idle(now) < RETENTION);
        callers.clone()
    }

    /// Records a plaintext connection as open until the returned value is dropped.
    pub(super) fn note(self: &Arc<Self>, stream: &TcpStream) -> io::Result<PlaintextConnection> {
        let caller = stream.peer_addr()?.ip().to_canonical();
        let number = self.note_address(caller, Instant::now());
        Ok(PlaintextConnection { callers: Arc::clone(self), caller, number })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, PlaintextCaller>> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_end(&self, (address, number): (IpAddr, u64), now: Instant) {
        let mut callers = self.lock();
        if let Some(caller) = callers.get_mut(&address).filter(|caller| caller.number == number) {
            *caller = PlaintextCaller { open: caller.open - 1, last: now, ..*caller };
        }
    }

    /// Records a connection of the caller at `address`. Returns the number of the caller's entry.
    fn note_address(&self, address: IpAddr, now: Instant) -> u64 {
        let number = self.connections.fetch_add(1, Relaxed);
        let mut callers = self.lock();
        if !callers.contains_key(&address) {
            tracing::info!(caller = %address, "a caller connected in plaintext, which the policy permits");
            if callers.len() >= MAX_CALLERS {
                let oldest = callers.iter().min_by_key(|(_, caller)| (caller.open > 0, caller.last));
                let oldest = oldest.map(|(address, _)| *address);
                oldest.map(|oldest| callers.remove(&oldest));
            }
        }
        let new = PlaintextCaller { connections: 0, open: 0, number, last: now };
        let caller = callers.entry(address).or_insert(new);
        *caller = PlaintextCaller {
            connections: caller.connections + 1,
            open: caller.open + 1,
            last: now,
            ..*caller
        };
        caller.number
    }
}

/// Whether a connection begins with TLS. Waits for its first byte.
pub(super) async fn begins_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(first[0] == HANDSHAKE_RECORD),
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, time::Duration};

    use super::*;

    #[test]
    fn only_most_recent_plaintext_callers_are_remembered() {
        let callers = PlaintextCallers::default();
        let (start, address) = (Instant::now(), |n: usize| IpAddr::V4(Ipv4Addr::from_bits(n as u32)));
        for n in 0..MAX_CALLERS + 5 {
            callers.note_address(address(n), start + Duration::from_secs(n as u64));
        }
        callers.note_address(address(7), start + Duration::from_secs(1000));
        let recent = callers.recent(start + Duration::from_secs(1000));
        assert_eq!((recent.len(), callers.connections()), (MAX_CALLERS, MAX_CALLERS as u64 + 6));
        assert!(!recent.contains_key(&address(4)) && recent.contains_key(&address(5)));
        assert_eq!(recent[&address(7)].connections, 2);
    }

    #[test]
    fn plaintext_caller_is_listed_until_after_its_last_connection() {
        let callers = PlaintextCallers::default();
        let (start, caller) = (Instant::now(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let [first, second] = [(); 2].map(|()| callers.note_address(caller, start));
        assert_eq!(first, second);
        let day = start + Duration::from_secs(86_400);
        callers.note_end((caller, first), start);
        assert_eq!(callers.recent(day)[&caller].idle(day), Duration::ZERO, "one is open");
        callers.note_end((caller, first), day);
        let idle = RETENTION - Duration::from_secs(1);
        assert_eq!(callers.recent(day + idle)[&caller].idle(day + idle), idle);
        assert!(callers.recent(day + RETENTION).is_empty());
    }

    #[test]
    fn connected_plaintext_caller_is_never_evicted_for_others() {
        let callers = PlaintextCallers::default();
        let (start, address) = (Instant::now(), |n: usize| IpAddr::V4(Ipv4Addr::from_bits(n as u32)));
        let connected = callers.note_address(address(0), start);
        let later = start + Duration::from_secs(1);
        for n in 1..=MAX_CALLERS {
            let ended = callers.note_address(address(n), later);
            callers.note_end((address(n), ended), later);
        }
        assert!(callers.recent(later).contains_key(&address(0)));
        // All entries have open connections. Caller 0 is evicted and returns as a new entry, so its earlier
        // connection no longer counts.
        for n in 1..=MAX_CALLERS {
            callers.note_address(address(n), later);
        }
        assert!(!callers.recent(later).contains_key(&address(0)));
        let again = callers.note_address(address(0), later);
        callers.note_end((address(0), connected), later);
        let day = later + Duration::from_secs(86_400);
        assert!(again != connected && callers.recent(day).contains_key(&address(0)));
    }
}
