//! The replicas of the gateway, as a node chooses among them.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_wire::transport::{EndpointAddress, ExpectedPeer, Stream, Transport};
use tokio::time::{Instant, timeout};

/// Time limit of a connection to one replica, its handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a replica that did not accept a connection is tried after all others.
const AVOID_FOR: Duration = Duration::from_secs(5);

/// The replicas of a gateway. Every connection begins at the next replica; replicas that failed lately come last.
#[derive(Debug)]
pub(crate) struct Gateways {
    addresses: Vec<SocketAddr>,
    next: AtomicUsize,
    /// Until when each is avoided.
    avoided: Mutex<Vec<Option<Instant>>>,
}

impl Gateways {
    /// `first` is random, so that nodes do not begin at the same replica.
    pub(crate) fn new(addresses: Vec<SocketAddr>, first: usize) -> Self {
        let avoided = Mutex::new(vec![None; addresses.len()]);
        Self { addresses, next: AtomicUsize::new(first), avoided }
    }

    /// Connects to a replica, which has to prove that it is a gateway, with the identity of a pod.
    ///
    /// # Errors
    /// That of the last replica, if none accepts.
    pub(crate) async fn connect(&self, transport: &Transport) -> io::Result<Stream> {
        let mut failed = io::Error::other("no gateway is configured");
        for position in self.order(Instant::now()) {
            let address = self.addresses[position];
            let endpoint = EndpointAddress {
                address,
                peer: Some(ExpectedPeer::Gateway),
                accepts_plaintext: false,
                from: None,
            };
            let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within 2 s"));
            match timeout(CONNECT_TIMEOUT, transport.connect_endpoint(endpoint))
                .await
                .unwrap_or_else(|_| late())
            {
                Ok(stream) => return Ok(stream),
                Err(error) => {
                    tracing::debug!(%error, gateway = %address, "a gateway did not accept a connection");
                    self.avoid(position, Instant::now());
                    failed = error;
                }
            }
        }
        Err(failed)
    }

    /// The positions in the order in which they are tried.
    fn order(&self, now: Instant) -> Vec<usize> {
        let (count, first) = (self.addresses.len(), self.next.fetch_add(1, Relaxed));
        let avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        let mut order: Vec<usize> = (0..count).map(|step| first.wrapping_add(step) % count).collect();
        // Stable: the others keep their turn.
        order.sort_by_key(|position| avoided[*position].is_some_and(|until| until > now));
        order
    }

    fn avoid(&self, position: usize, now: Instant) {
        self.avoided.lock().unwrap_or_else(PoisonError::into_inner)[position] = Some(now + AVOID_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_replicas_are_tried_last_for_a_while() {
        let gateways = Gateways::new((1..=3).map(|port| ([192, 0, 2, 1], port).into()).collect(), 0);
        let now = Instant::now();
        assert_eq!(gateways.order(now), [0, 1, 2]);
        assert_eq!(gateways.order(now), [1, 2, 0]);
        gateways.avoid(2, now);
        assert_eq!(gateways.order(now), [0, 1, 2]);
        assert_eq!(gateways.order(now), [0, 1, 2], "its turn was that of the avoided one");
        assert_eq!(gateways.order(now + AVOID_FOR), [1, 2, 0]);
        (0..3).for_each(|position| gateways.avoid(position, now));
        assert_eq!(gateways.order(now).len(), 3, "where all failed, all are tried");
    }
}
