//! Callers in plaintext of a server that speaks mutual TLS, while its policy is permissive.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use tokio::{net::TcpStream, time::Instant};

/// The callers that are remembered: those that connected last.
const MAX_CALLERS: usize = 64;
/// The first byte of TLS: the type of a record with a handshake (RFC 8446, section 5.1). No request of HTTP/1.1 or HTTP/2
/// begins with it.
const HANDSHAKE_RECORD: u8 = 22;

/// Callers in plaintext of one server: whether they are accepted, and which there were.
#[derive(Debug, Default)]
pub struct PlaintextCallers {
    are_permitted: AtomicBool,
    connections: AtomicU64,
    callers: Mutex<BTreeMap<IpAddr, PlaintextCaller>>,
}

/// A caller in plaintext.
#[derive(Clone, Copy, Debug)]
pub struct PlaintextCaller {
    /// Connections that it opened.
    pub connections: u64,
    /// When it opened the last one.
    pub last: Instant,
}

impl PlaintextCallers {
    /// Accepts them from now on, or no longer. Open connections stay open: who decides on requests refuses them.
    pub fn permit(&self, are_permitted: bool) {
        self.are_permitted.store(are_permitted, Relaxed);
    }

    /// Whether they are accepted.
    pub fn are_permitted(&self) -> bool {
        self.are_permitted.load(Relaxed)
    }

    /// Connections that were accepted in plaintext; total.
    pub fn connections(&self) -> u64 {
        self.connections.load(Relaxed)
    }

    /// The callers that connected last, at most 64.
    pub fn recent(&self) -> BTreeMap<IpAddr, PlaintextCaller> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, stream: &TcpStream) -> io::Result<()> {
        self.note_address(stream.peer_addr()?.ip().to_canonical(), Instant::now());
        Ok(())
    }

    fn note_address(&self, address: IpAddr, now: Instant) {
        self.connections.fetch_add(1, Relaxed);
        let mut callers = self.callers.lock().unwrap_or_else(PoisonError::into_inner);
        if !callers.contains_key(&address) {
            tracing::info!(caller = %address, "a caller connected in plaintext, which the policy permits");
            if callers.len() >= MAX_CALLERS {
                let oldest =
                    callers.iter().min_by_key(|(_, caller)| caller.last).map(|(address, _)| *address);
                oldest.map(|oldest| callers.remove(&oldest));
            }
        }
        let caller = callers.entry(address).or_insert(PlaintextCaller { connections: 0, last: now });
        *caller = PlaintextCaller { connections: caller.connections + 1, last: now };
    }
}

/// Whether a connection begins with TLS, once its first byte has arrived.
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
    fn the_callers_that_connected_last_are_remembered() {
        let callers = PlaintextCallers::default();
        let (start, address) = (Instant::now(), |n: usize| IpAddr::V4(Ipv4Addr::from_bits(n as u32)));
        for n in 0..MAX_CALLERS + 5 {
            callers.note_address(address(n), start + Duration::from_secs(n as u64));
        }
        callers.note_address(address(7), start + Duration::from_secs(1000));
        let recent = callers.recent();
        assert_eq!((recent.len(), callers.connections()), (MAX_CALLERS, MAX_CALLERS as u64 + 6));
        assert!(!recent.contains_key(&address(4)) && recent.contains_key(&address(5)));
        assert_eq!(recent[&address(7)].connections, 2);
    }
}
