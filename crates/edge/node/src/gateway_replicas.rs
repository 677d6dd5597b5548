//! The replicas of the gateway, and how a node chooses among them.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_wire::transport::{EndpointAddress, ExpectedPeer, Stream, Transport};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

/// Time limit for connecting to one replica, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which the next replica is tried in parallel with one that has not accepted yet (Connection Attempt
/// Delay, RFC 8305, section 5). Otherwise the node would wait for each replica of a disconnected zone in turn.
const ATTEMPT_DELAY: Duration = Duration::from_millis(500);
/// Time for which a replica that failed to accept a connection is tried only after all others.
const AVOID_FOR: Duration = Duration::from_secs(5);

/// The replicas of a gateway. Connections start at the replicas in turn; replicas that failed recently come
/// last.
#[derive(Debug)]
pub(crate) struct Gateways {
    configured: Vec<SocketAddr>,
    next: AtomicUsize,
    /// Replicas to avoid, and until when.
    avoided: Mutex<BTreeMap<SocketAddr, Instant>>,
}

impl Gateways {
    /// Creates the list. `first` should be random, so that nodes do not all start at the same replica.
    pub(crate) fn new(configured: Vec<SocketAddr>, first: usize) -> Self {
        Self { configured, next: AtomicUsize::new(first), avoided: Mutex::default() }
    }

    /// Takes the turn of the next connection.
    pub(crate) fn turn(&self) -> usize {
        self.next.fetch_add(1, Relaxed)
    }

    /// The configured replicas, starting with the one whose turn it is.
    pub(crate) fn configured(&self, turn: usize) -> Vec<SocketAddr> {
        let count = self.configured.len();
        (0..count).map(|step| self.configured[turn.wrapping_add(step) % count]).collect()
    }

    /// Connects to one of these replicas with the identity of a pod. The replica must prove that it is a
    /// gateway. The replicas are tried in order, each after the previous one has failed or is late.
    ///
    /// # Errors
    /// If no replica accepts, the error of the last replica that failed.
    pub(crate) async fn connect(
        &self,
        transport: &Transport,
        replicas: Vec<SocketAddr>,
    ) -> io::Result<(SocketAddr, Stream)> {
        let mut failed = io::Error::other("no replica of the gateway serves it");
        let mut rest = self.in_order(replicas, Instant::now()).into_iter();
        let mut attempts = JoinSet::new();
        loop {
            let started = rest.next();
            if let Some(replica) = started {
                attempts.spawn(dial(transport.clone(), replica));
            } else if attempts.is_empty() {
                return Err(failed);
            }
            tokio::select! {
                Some(ended) = attempts.join_next() => match ended.map_err(io::Error::other)? {
                    (replica, Ok(stream)) => return Ok((replica, stream)),
                    (replica, Err(error)) => {
                        tracing::debug!(%error, gateway = %replica, "a gateway did not accept a connection");
                        self.avoid(replica, Instant::now());
                        failed = error;
                    }
                },
                () = sleep(ATTEMPT_DELAY), if started.is_some() => {
                    started.into_iter().for_each(|replica| self.avoid(replica, Instant::now()));
                }
            }
        }
    }

    /// The replicas in the order in which they are tried: avoided replicas last.
    fn in_order(&self, mut replicas: Vec<SocketAddr>, now: Instant) -> Vec<SocketAddr> {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.retain(|_, until| *until > now);
        // The sort is stable, so the others keep their order.
        replicas.sort_by_key(|replica| avoided.contains_key(replica));
        replicas
    }

    /// Makes a replica come last for a while.
    pub(crate) fn avoid(&self, replica: SocketAddr, now: Instant) {
        self.avoided.lock().unwrap_or_else(PoisonError::into_inner).insert(replica, now + AVOID_FOR);
    }
}

async fn dial(transport: Transport, replica: SocketAddr) -> (SocketAddr, io::Result<Stream>) {
    let endpoint = EndpointAddress {
        address: replica,
        peer: Some(ExpectedPeer::Gateway),
        accepts_plaintext: false,
        from: None,
    };
    let late = || Err(io::Error::new(io::ErrorKind::TimedOut, "no connection within 2 s"));
    let connected = timeout(CONNECT_TIMEOUT, transport.connect_endpoint(endpoint)).await;
    (replica, connected.unwrap_or_else(|_| late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_gateway_replicas_are_tried_last_until_avoid_period_ends() {
        let gateways = Gateways::new((1..=3).map(|port| ([192, 0, 2, 1], port).into()).collect(), 0);
        let now = Instant::now();
        let order = |now| {
            let order = gateways.in_order(gateways.configured(gateways.turn()), now);
            order.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        assert_eq!(order(now), [1, 2, 3]);
        assert_eq!(order(now), [2, 3, 1]);
        gateways.avoid(([192, 0, 2, 1], 3).into(), now);
        assert_eq!(order(now), [1, 2, 3]);
        assert_eq!(order(now), [1, 2, 3], "its turn was that of the avoided one");
        assert_eq!(order(now + AVOID_FOR), [2, 3, 1]);
        (1..=3).for_each(|port| gateways.avoid(([192, 0, 2, 1], port).into(), now));
        assert_eq!(order(now).len(), 3, "where all failed, all are tried");
    }
}
