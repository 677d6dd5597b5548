//! Limits responses that wait in memory because peers have not read them: HTTP/2 flow control lets a peer read as
//! little of each stream as it wants.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout};

use crate::{CloseReason, Connection, acceptor::AcceptorState};

/// Number of bytes that one connection may leave unread before its further requests wait.
const MAX_UNREAD_PER_CONNECTION: usize = 8 << 20;
/// Number of bytes that one connection may leave unread while all connections of the process exceed [`MAX_UNREAD`].
const MIN_UNREAD_PER_CONNECTION: usize = 256 * 1024;
/// Number of unread bytes in a process above which the connection with the most is closed, if its bytes have been
/// unread for [`CLOSABLE_AGE`].
const MAX_UNREAD: usize = 64 << 20;
/// Number of unread bytes in a process above which the connection with the most is closed at once.
const MAX_UNREAD_HARD: usize = 2 * MAX_UNREAD;
/// Minimum time in seconds that bytes must be unread before their connection is closed in favour of others.
const CLOSABLE_AGE: u32 = 5;
/// Memory of a stream in bytes, in addition to its response.
const STREAM_OVERHEAD: usize = 1024;
/// Maximum number of bytes passed to a connection at once. Reads by the peer are noticed only between two pieces.
pub(crate) const MAX_PIECE: usize = 64 * 1024;
/// Interval at which a waiting request checks for room without being woken.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Unread responses of one connection. Times are in seconds on its acceptor's clock.
#[derive(Debug, Default)]
pub(crate) struct UnreadResponses {
    bytes: AtomicUsize,
    /// Time since which there are unread bytes.
    since: AtomicU32,
    /// Time of the peer's last read.
    last_read: AtomicU32,
    room: Notify,
}

/// Bytes of a response, counted as unread until they are dropped.
#[derive(Debug)]
struct CountedResponse {
    data: Bytes,
    connection: Arc<Connection>,
}

impl AsRef<[u8]> for CountedResponse {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for CountedResponse {
    fn drop(&mut self) {
        self.connection.remove_unread(self.data.len() + STREAM_OVERHEAD);
    }
}

impl UnreadResponses {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether the peer has read nothing for longer than `limit`.
    pub(crate) fn is_stalled(&self, now: u32, limit: Duration) -> bool {
        let quiet = now.saturating_sub(self.last_read.load(Relaxed));
        self.bytes() > 0 && u64::from(quiet) > limit.as_secs()
    }
}

impl Connection {
    /// Whether unread responses are bounded on this listener.
    pub(crate) fn bounds_responses(&self) -> bool {
        self.shared().limits().stall.is_some()
    }

    /// Returns `data`, counted as unread until its last part is dropped.
    pub(crate) fn count_unread(self: &Arc<Self>, data: Bytes) -> Bytes {
        let (unread, bytes) = (self.unread(), data.len() + STREAM_OVERHEAD);
        if unread.bytes.fetch_add(bytes, Relaxed) == 0 {
            unread.since.store(self.shared().now(), Relaxed);
            self.record_read();
        }
        let total = self.shared().memory().unread().fetch_add(bytes, Relaxed) + bytes;
        if total > MAX_UNREAD_HARD {
            self.shared().close_largest(MAX_UNREAD_HARD, 0);
        }
        Bytes::from_owner(CountedResponse { data, connection: Arc::clone(self) })
    }

    /// Records that the peer has read something.
    pub(crate) fn record_read(&self) {
        self.unread().last_read.store(self.shared().now(), Relaxed);
    }

    fn remove_unread(&self, bytes: usize) {
        let before = self.unread().bytes.fetch_sub(bytes, Relaxed);
        self.shared().memory().unread().fetch_sub(bytes, Relaxed);
        self.record_read();
        let crosses = |limit: usize| before >= limit && before - bytes < limit;
        if crosses(MAX_UNREAD_PER_CONNECTION) || crosses(MIN_UNREAD_PER_CONNECTION) {
            self.unread().room.notify_waiters();
        }
    }

    /// Whether the limits admit another response.
    pub(crate) fn has_room(&self) -> bool {
        let own = self.unread().bytes();
        own < MIN_UNREAD_PER_CONNECTION
            || own < MAX_UNREAD_PER_CONNECTION && self.shared().memory().unread().load(Relaxed) < MAX_UNREAD
    }

    /// Waits until the limits admit another response.
    pub(crate) async fn room(&self) {
        loop {
            // Registered before the check, so that a change in between is noticed.
            let noticed = self.unread().room.notified();
            if self.has_room() {
                return;
            }
            let _ = timeout(ROOM_CHECK_INTERVAL, noticed).await;
        }
    }
}

impl AcceptorState {
    /// Closes connections with old unread responses while the process is above its limit.
    pub(crate) fn close_old_unread(&self) {
        self.close_largest(MAX_UNREAD, CLOSABLE_AGE);
    }

    /// Closes the connections with the most unread bytes that are at least `age` seconds old, until less than `limit`
    /// is left. Begins with the connections of the local user who leaves the most unread.
    fn close_largest(&self, limit: usize, age: u32) {
        let mut total = self.memory().unread().load(Relaxed);
        if total <= limit {
            return;
        }
        let (now, mut holders) = (self.now(), Vec::new());
        for connection in self.connections() {
            let bytes = connection.unread().bytes();
            if connection.is_closed() {
                // The connection is dropped, and its bytes stop counting, only when its task runs.
                total = total.saturating_sub(bytes);
            } else if bytes > 0 && now.saturating_sub(connection.unread().since.load(Relaxed)) >= age {
                holders.push((bytes, connection));
            }
        }
        let mut users = HashMap::<u32, usize>::new();
        for (bytes, connection) in &holders {
            if let Some(user) = connection.holder().user {
                *users.entry(user).or_default() += bytes;
            }
        }
        holders.sort_by_cached_key(|(bytes, connection)| {
            let of_user = connection.holder().user.and_then(|user| users.get(&user).copied());
            std::cmp::Reverse((of_user.unwrap_or(*bytes), *bytes))
        });
        for (bytes, connection) in holders {
            if total <= limit {
                return;
            }
            connection.close(CloseReason::Unread);
            total = total.saturating_sub(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use tokio::io::duplex;

    use super::*;
    use crate::{Acceptor, GuardedStream, Limits, Memory};

    type Stream = GuardedStream<tokio::io::DuplexStream>;

    async fn accepted(acceptor: &Acceptor) -> (Stream, Arc<Connection>) {
        let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
        let connection = Arc::clone(stream.connection().unwrap());
        (stream, connection)
    }

    fn calls() -> Acceptor {
        Acceptor::new("test", Limits::calls(), Memory::default())
    }

    #[tokio::test(start_paused = true)]
    async fn unread_responses_block_requests_and_stalled_peer_is_closed() {
        let acceptor = calls();
        let (_stream, connection) = accepted(&acceptor).await;
        drop(connection.begin_request());
        let response = connection.count_unread(Bytes::from(vec![0; MAX_UNREAD_PER_CONNECTION]));
        let waits = timeout(Duration::from_secs(20), connection.room()).await;
        assert!(waits.is_err() && !connection.is_closed());
        let rest = response.slice(1..);
        drop(response);
        assert!(!connection.has_room(), "some of it is unread");
        connection.record_read();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!connection.is_closed(), "the peer is slow, but reads");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(connection.is_closed());
        drop(rest);
        assert!(connection.has_room());
        assert_eq!(connection.shared().memory().unread().load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_most_unread_bytes_is_closed_first() {
        let acceptor = calls();
        let (mut held, mut streams) = (Vec::new(), Vec::new());
        let sizes = [7 << 20; 10].into_iter().chain([1000]);
        for bytes in sizes {
            let (stream, connection) = accepted(&acceptor).await;
            drop(connection.begin_request());
            held.push((connection.count_unread(Bytes::from(vec![0; bytes])), Arc::clone(&connection)));
            streams.push(stream);
        }
        assert!(held.iter().all(|(_, connection)| !connection.is_closed()), "they may be slow");
        let (_, little) = &held[10];
        assert!(little.has_room() && !held[0].1.has_room());
        tokio::time::sleep(Duration::from_secs(7)).await;
        let closed = held.iter().filter(|(_, connection)| connection.is_closed()).count();
        assert_eq!((closed, little.is_closed()), (1, false), "63 MB are left");
        for _ in 0..10 {
            let (stream, connection) = accepted(&acceptor).await;
            held.push((connection.count_unread(Bytes::from(vec![0; 7 << 20])), connection));
            streams.push(stream);
        }
        let left: usize = held.iter().filter(|(_, one)| !one.is_closed()).map(|(data, _)| data.len()).sum();
        assert!(left <= MAX_UNREAD_HARD, "{left}");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_user_with_most_unread_bytes_are_closed_first() {
        let acceptor = calls();
        let (mut held, mut streams) = (Vec::new(), Vec::new());
        let flood = (0..300).map(|_| (7, MIN_UNREAD_PER_CONNECTION));
        for (user, bytes) in [(8, MAX_UNREAD_PER_CONNECTION)].into_iter().chain(flood) {
            let (stream, connection) = accepted(&acceptor).await;
            drop(connection.begin_request());
            connection.set_user(user);
            held.push((connection.count_unread(Bytes::from(vec![0; bytes])), Arc::clone(&connection)));
            streams.push(stream);
        }
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!held[0].1.is_closed(), "its user leaves less unread, though the connection more");
        let left: usize = held.iter().filter(|(_, one)| !one.is_closed()).map(|(data, _)| data.len()).sum();
        assert!(left <= MAX_UNREAD, "{left}");
    }
}
