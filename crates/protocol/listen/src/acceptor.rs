use std::{
    collections::{BTreeMap, HashMap, HashSet},
    future::poll_fn,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::Notify, time::timeout};

use crate::{
    GuardedStream, Limits, Memory,
    connection::{CloseReason, Connection},
    reaper::reap,
};

/// Pause after a failed accept, for example without free file descriptors. If no quiet connection was found to close,
/// also the interval of further searches.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Source of connection ids. They are unique across all acceptors, because acceptors share [`Memory`], which accounts
/// per connection.
static CONNECTION_IDS: AtomicU64 = AtomicU64::new(1);

/// Accepts the connections of all listeners that serve one purpose, within their limits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Acceptor {
    shared: Arc<AcceptorState>,
}

#[derive(Debug)]
pub(crate) struct AcceptorState {
    pub(crate) name: &'static str,
    limits: Limits,
    memory: Memory,
    unknown_memory: Memory,
    displace_above: usize,
    max_open: usize,
    table: Mutex<ConnectionTable>,
    slot_freed: Notify,
    /// Seconds since the first connection, beginning at 1.
    now: AtomicU32,
    is_swept: AtomicBool,
    pub(crate) counts: Counts,
}

/// The open connections of an acceptor.
#[derive(Debug, Default)]
struct ConnectionTable {
    open: HashMap<u64, Arc<Connection>>,
    /// Ids of connections that were closed and are dropped when their tasks next run.
    closing: HashSet<u64>,
    /// Connections of unknown peers, the oldest first.
    unknown: BTreeMap<u64, Arc<Connection>>,
}

/// Counters of an acceptor.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) closed: [AtomicU64; CloseReason::COUNT],
    pub(crate) body_timeouts: AtomicU64,
    pub(crate) memory_refusals: AtomicU64,
    pub(crate) wait_refusals: AtomicU64,
}

impl Acceptor {
    /// Creates an acceptor. `memory` limits its incomplete requests, and `name` labels its metrics.
    #[must_use]
    pub fn new(name: &'static str, limits: Limits, memory: Memory) -> Self {
        let (displace_above, max_open) = limits.bounds();
        let shared = AcceptorState {
            name,
            limits,
            memory,
            unknown_memory: Memory::of_unknown_peers(),
            displace_above,
            max_open,
            table: Mutex::default(),
            slot_freed: Notify::new(),
            now: AtomicU32::new(1),
            is_swept: AtomicBool::new(false),
            counts: Counts::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Returns the next connection from `poll_accept`, once the limits admit one. Errors are logged, and the accept is
    /// retried after a pause. Must be called within a tokio runtime; cancel-safe.
    pub async fn accept<S>(
        &self,
        mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<S>>,
    ) -> GuardedStream<S> {
        let shared = &self.shared;
        if !shared.is_swept.swap(true, Relaxed) {
            tokio::spawn(reap(Arc::downgrade(shared)));
        }
        self.wait_capacity().await;
        loop {
            match poll_fn(&mut poll_accept).await {
                Ok(stream) => return GuardedStream::new(stream, shared.add()),
                Err(error) if is_connection_error(&error) => {
                    tracing::debug!(%error, listener = shared.name, "a connection ended before it was accepted");
                }
                Err(error) => {
                    shared.counts.delayed.fetch_add(1, Relaxed);
                    let closed = match is_exhaustion(&error) {
                        true => shared.displace(shared.remaining() / DISPLACED_DIVISOR + 1),
                        false => 0,
                    };
                    tracing::warn!(
                        %error, listener = shared.name, closed,
                        "cannot accept a connection; if the process has too many open files, raise their limit"
                    );
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
            }
        }
    }

    /// Waits until the limits admit another connection.
    async fn wait_capacity(&self) {
        let shared = &self.shared;
        let mut is_delayed = false;
        loop {
            // Registered before the count is read, so that a connection closed in between is noticed.
            let slot_freed = shared.slot_freed.notified();
            if shared.remaining() >= shared.displace_above {
                shared.displace(shared.displace_above / DISPLACED_DIVISOR + 1);
            }
            // A closed connection keeps its descriptor until its task runs and drops it.
            let (open, closing) = shared.open_and_closing();
            if open < shared.max_open + closing.min(MAX_CLOSING) {
                return;
            }
            if !std::mem::replace(&mut is_delayed, true) {
                shared.counts.delayed.fetch_add(1, Relaxed);
            }
            let _ = timeout(ACCEPT_RETRY, slot_freed).await;
        }
    }

    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn shared(&self) -> &Arc<AcceptorState> {
        &self.shared
    }
}

/// Linux error codes for exhausted descriptors or socket memory: ENFILE, EMFILE, ENOMEM and ENOBUFS.
const EXHAUSTION_ERRORS: [i32; 4] = [23, 24, 12, 105];

/// Whether closing other connections helps against an accept error.
fn is_exhaustion(error: &io::Error) -> bool {
    error.raw_os_error().is_some_and(|code| EXHAUSTION_ERRORS.contains(&code))
}

/// Whether an accept error concerns only the connection that was to be accepted, so that the next accept may follow at
/// once (accept(2)).
fn is_connection_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// Divisor of the number of connections: each search closes up to this part of them, and at least one, since it scans
/// the whole table.
const DISPLACED_DIVISOR: usize = 64;
/// Maximum number of connections of unknown peers.
const MAX_UNKNOWN: usize = 512;
/// Maximum number of connections above the limit while closed connections are being dropped.
const MAX_CLOSING: usize = 16;

impl AcceptorState {
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The memory for incomplete requests of unknown peers.
    pub(crate) fn unknown_memory(&self) -> &Memory {
        &self.unknown_memory
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn max_open(&self) -> usize {
        self.max_open
    }

    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn open(&self) -> usize {
        self.table().open.len()
    }

    fn open_and_closing(&self) -> (usize, usize) {
        let table = self.table();
        (table.open.len(), table.closing.len())
    }

    /// Number of open connections that were not yet closed.
    fn remaining(&self) -> usize {
        let (open, closing) = self.open_and_closing();
        open - closing
    }

    pub(crate) fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    pub(crate) fn tick(&self) -> u32 {
        self.now.fetch_add(1, Relaxed) + 1
    }

    /// The open connections.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.table().open.values().cloned().collect()
    }

    /// Records that a connection was closed.
    pub(crate) fn record_close(&self, id: u64, reason: CloseReason) {
        let mut table = self.table();
        if table.open.contains_key(&id) {
            table.closing.insert(id);
        }
        drop(table);
        self.counts.closed[reason as usize - 1].fetch_add(1, Relaxed);
    }

    pub(crate) fn remove(&self, id: u64) {
        let mut table = self.table();
        table.closing.remove(&id);
        let removed = (table.open.remove(&id), table.unknown.remove(&id));
        drop(table);
        drop(removed);
        self.slot_freed.notify_waiters();
    }

    fn add(self: &Arc<Self>) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(CONNECTION_IDS.fetch_add(1, Relaxed), Arc::clone(self)));
        self.counts.accepted.fetch_add(1, Relaxed);
        self.table().open.insert(connection.id(), Arc::clone(&connection));
        connection
    }

    /// Closes up to `some` quiet connections that were not yet closed. Returns how many it closed.
    fn displace(&self, some: usize) -> usize {
        let mut quiet: Vec<_> = self
            .table()
            .open
            .values()
            .filter_map(|one| Some((one.quiet_order()?, Arc::clone(one))))
            .collect();
        let some = some.min(quiet.len());
        if some < quiet.len() {
            quiet.select_nth_unstable_by_key(some, |(order, _)| *order);
        }
        for (_, connection) in &quiet[..some] {
            connection.close(CloseReason::Displaced);
        }
        some
    }

    /// Marks a connection's peer as unknown. If there are too many such connections, closes the oldest: an honest peer
    /// needs its connection for only a call or two.
    pub(crate) fn add_unknown(&self, id: u64) {
        let mut table = self.table();
        if let Some(connection) = table.open.get(&id).cloned() {
            table.unknown.insert(id, connection);
        }
        let oldest = (table.unknown.len() > MAX_UNKNOWN).then(|| table.unknown.pop_first()).flatten();
        drop(table);
        if let Some((_, connection)) = oldest {
            connection.close(CloseReason::Displaced);
        }
    }

    /// Marks a connection's peer as known.
    pub(crate) fn remove_unknown(&self, id: u64) {
        let removed = self.table().unknown.remove(&id);
        drop(removed);
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        // No code that holds the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex},
        time::Instant,
    };

    use super::*;

    /// Both ends of an accepted connection.
    async fn accepted(acceptor: &Acceptor) -> (GuardedStream<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(64);
        let mut near = Some(near);
        (acceptor.accept(|_| Poll::Ready(near.take().ok_or(io::ErrorKind::Other.into()))).await, far)
    }

    fn pages(connections: usize) -> Acceptor {
        Acceptor::new("test", Limits::pages().with_connections(connections), Memory::default())
    }

    /// Returns the number of seconds until a silent connection is closed.
    async fn closed_after(stream: &mut GuardedStream<DuplexStream>) -> u64 {
        let began = Instant::now();
        let mut read = Vec::new();
        let error = stream.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_preface_or_header_times_out_and_closes_connection() {
        let acceptor = pages(10);
        for beginning in ["", "GET / HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            let (mut stream, mut far) = accepted(&acceptor).await;
            far.write_all(beginning.as_bytes()).await.unwrap();
            let after = closed_after(&mut stream).await;
            assert!((10..=12).contains(&after), "{beginning:?} after {after} s");
        }
        assert_eq!(acceptor.shared.counts.closed[CloseReason::Headers as usize - 1].load(Relaxed), 3);
        assert_eq!(acceptor.shared.open(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_idle_and_header_timeouts_apply_between_requests() {
        let acceptor = pages(10);
        let (mut stream, mut far) = accepted(&acceptor).await;
        let connection = Arc::clone(stream.connection().unwrap());
        far.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        let request = connection.begin_request();
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(!connection.is_closed(), "a request in flight has no idle timeout");
        drop(request);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!connection.is_closed(), "idle below the timeout");
        far.write_all(b"GET").await.unwrap();
        let after = closed_after(&mut stream).await;
        assert!((10..=12).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_displaces_longest_quiet_one_at_limit() {
        let acceptor = pages(2);
        let (served, _far) = accepted(&acceptor).await;
        drop(served.connection().unwrap().begin_request());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (mut silent, _far) = accepted(&acceptor).await;
        // In production, the connection's task would drop it after it is closed.
        let (third, _far) = accepted(&acceptor).await;
        assert_eq!(closed_after(&mut silent).await, 0, "one without a request goes first");
        drop(silent);
        assert!(!served.connection().unwrap().is_closed());
        let busy = [served, third];
        let _in_flight = busy.each_ref().map(|stream| stream.connection().unwrap().begin_request());
        let waits = timeout(Duration::from_secs(60), accepted(&acceptor)).await;
        assert!(waits.is_err(), "at the limit without a quiet connection");
        assert!(busy.iter().all(|stream| !stream.connection().unwrap().is_closed()));
        drop(busy);
        accepted(&acceptor).await;
    }

    fn displaced(acceptor: &Acceptor) -> u64 {
        acceptor.shared.counts.closed[CloseReason::Displaced as usize - 1].load(Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn new_connection_waits_until_displaced_connections_are_dropped() {
        let acceptor = pages(128);
        let max_open = acceptor.shared.max_open;
        let part = (acceptor.shared.displace_above / DISPLACED_DIVISOR + 1) as u64;
        let mut open = Vec::new();
        for _ in 0..max_open {
            open.push(accepted(&acceptor).await);
        }
        for _ in 0..part {
            open.push(accepted(&acceptor).await);
            assert_eq!(displaced(&acceptor), part, "enough for as many new connections");
        }
        open.push(accepted(&acceptor).await);
        assert_eq!(displaced(&acceptor), 2 * part);
        open.retain(|(stream, _)| !stream.connection().unwrap().is_closed());
        open.push(accepted(&acceptor).await);
        assert_eq!(displaced(&acceptor), 2 * part, "below the maximum");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_unidentified_peers_displace_only_each_other() {
        let acceptor = Acceptor::new("test", Limits::calls(), Memory::default());
        let (known, _far) = accepted(&acceptor).await;
        let mut unknown = Vec::new();
        for _ in 0..=MAX_UNKNOWN {
            let (stream, far) = accepted(&acceptor).await;
            stream.connection().unwrap().set_unknown();
            unknown.push((stream, far));
        }
        let is_closed = |stream: &GuardedStream<DuplexStream>| stream.connection().unwrap().is_closed();
        let closed: Vec<_> = unknown.iter().map(|(stream, _)| is_closed(stream)).collect();
        assert!(closed[0] && !closed[1..].contains(&true) && !is_closed(&known));
        unknown[1].0.connection().unwrap().set_known();
        let (stream, _far) = accepted(&acceptor).await;
        stream.connection().unwrap().set_unknown();
        assert!(!is_closed(&unknown[1].0) && !is_closed(&unknown[2].0), "a known one makes room");
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_connections_are_closed_early_only_if_descriptors_run_out() {
        let acceptor = pages(1000);
        let (_quiet, _far) = accepted(&acceptor).await;
        for (error, expected) in [
            (io::ErrorKind::ConnectionAborted.into(), 0),
            (io::Error::from_raw_os_error(1), 0),
            (io::Error::from_raw_os_error(24), 1),
        ] {
            let mut results = vec![Ok(duplex(1).0), Err(error)];
            let _stream = acceptor.accept(|_| Poll::Ready(results.pop().unwrap())).await;
            assert_eq!(displaced(&acceptor), expected);
        }
    }
}
