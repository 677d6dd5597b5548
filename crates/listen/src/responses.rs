//! Responses that their peers have not taken yet, which wait in memory: of HTTP/2, whose flow control lets a peer take as little as it
//! wants of each stream.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout};

use crate::{CloseReason, Connection, acceptor::AcceptorState};

/// What one connection may leave unread, in bytes, before its further requests wait.
const OF_ONE: usize = 8 << 20;
/// The same while all connections of the process leave more than [`TOTAL`].
const LITTLE: usize = 256 * 1024;
/// What all connections of a process may leave before the one that leaves the most for [`OLD`] is closed.
const TOTAL: usize = 64 << 20;
/// What they may leave before the one that leaves the most is closed at once.
const MOST: usize = 2 * TOTAL;
/// For how many seconds a connection leaves something unread, at least, that is closed for others.
const OLD: u32 = 5;
/// What a stream costs besides the bytes of its response.
const STREAM: usize = 1024;
/// The most bytes that are handed to a connection at once: only between two pieces it shows that the peer takes something.
pub(crate) const PIECE: usize = 64 * 1024;
/// How often a request that waits looks for itself whether there is room.
const PERIOD: Duration = Duration::from_secs(1);

/// What one connection leaves unread. Times are those of its acceptor, in seconds.
#[derive(Debug, Default)]
pub(crate) struct UnreadResponses {
    bytes: AtomicUsize,
    /// Since when there is something.
    since: AtomicU32,
    /// When the peer last took something.
    taken: AtomicU32,
    room: Notify,
}

/// The memory of a response, until its bytes are dropped.
#[derive(Debug)]
struct Response {
    data: Bytes,
    connection: Arc<Connection>,
}

impl AsRef<[u8]> for Response {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        self.connection.remove_unread(self.data.len() + STREAM);
    }
}

impl UnreadResponses {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether nothing was taken for so long.
    pub(crate) fn is_stalled(&self, now: u32, limit: Duration) -> bool {
        let quiet = now.saturating_sub(self.taken.load(Relaxed));
        self.bytes() > 0 && u64::from(quiet) > limit.as_secs()
    }
}

impl Connection {
    /// Whether unread responses are bounded here.
    pub(crate) fn bounds_responses(&self) -> bool {
        self.shared().limits().stall.is_some()
    }

    /// The same bytes, counted as unread until the last part of them is dropped.
    pub(crate) fn count_unread(self: &Arc<Self>, data: Bytes) -> Bytes {
        let (unread, bytes) = (self.unread(), data.len() + STREAM);
        if unread.bytes.fetch_add(bytes, Relaxed) == 0 {
            unread.since.store(self.shared().now(), Relaxed);
            self.took();
        }
        let total = self.shared().memory().unread().fetch_add(bytes, Relaxed) + bytes;
        if total > MOST {
            self.shared().relieve(MOST, 0);
        }
        Bytes::from_owner(Response { data, connection: Arc::clone(self) })
    }

    /// The peer takes something.
    pub(crate) fn took(&self) {
        self.unread().taken.store(self.shared().now(), Relaxed);
    }

    fn remove_unread(&self, bytes: usize) {
        let before = self.unread().bytes.fetch_sub(bytes, Relaxed);
        self.shared().memory().unread().fetch_sub(bytes, Relaxed);
        self.took();
        let crosses = |limit: usize| before >= limit && before - bytes < limit;
        if crosses(OF_ONE) || crosses(LITTLE) {
            self.unread().room.notify_waiters();
        }
    }

    /// Whether it may have another response.
    pub(crate) fn has_room(&self) -> bool {
        let own = self.unread().bytes();
        own < LITTLE || own < OF_ONE && self.shared().memory().unread().load(Relaxed) < TOTAL
    }

    /// Waits until it may.
    pub(crate) async fn room(&self) {
        loop {
            // Before it is looked at, so that room that comes about in between is noticed.
            let noticed = self.unread().room.notified();
            if self.has_room() {
                return;
            }
            let _ = timeout(PERIOD, noticed).await;
        }
    }
}

impl AcceptorState {
    /// Closes connections that leave too much unread of all.
    pub(crate) fn relieve_old(&self) {
        self.relieve(TOTAL, OLD);
    }

    /// Closes those that leave the most unread, for so many seconds at least, until the others leave less than `limit`.
    fn relieve(&self, limit: usize, age: u32) {
        let mut total = self.memory().unread().load(Relaxed);
        if total <= limit {
            return;
        }
        let (now, mut holders) = (self.now(), Vec::new());
        for connection in self.connections() {
            let bytes = connection.unread().bytes();
            if connection.is_closed() {
                // It goes as soon as its task runs, and counts until then.
                total = total.saturating_sub(bytes);
            } else if bytes > 0 && now.saturating_sub(connection.unread().since.load(Relaxed)) >= age {
                holders.push((bytes, connection));
            }
        }
        holders.sort_unstable_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
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
    async fn requests_wait_for_responses_to_be_taken_and_a_connection_that_takes_none_is_closed() {
        let acceptor = calls();
        let (_stream, connection) = accepted(&acceptor).await;
        drop(connection.begin_request());
        let response = connection.count_unread(Bytes::from(vec![0; OF_ONE]));
        let waits = timeout(Duration::from_secs(20), connection.room()).await;
        assert!(waits.is_err() && !connection.is_closed());
        let rest = response.slice(1..);
        drop(response);
        assert!(!connection.has_room(), "some of it was not taken");
        connection.took();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!connection.is_closed(), "the peer is slow, and takes something");
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(connection.is_closed());
        drop(rest);
        assert!(connection.has_room());
        assert_eq!(connection.shared().memory().unread().load(Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_leave_the_most_unread_for_long_are_closed_for_others() {
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
        assert!(left <= MOST, "{left}");
    }
}
