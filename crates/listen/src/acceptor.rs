use std::{
    collections::HashMap,
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
    Guarded, Limits, Memory,
    connection::{CloseReason, Connection},
    sweep::sweep,
};

/// How long to wait before accepting again when the system refuses, as it does when file descriptors run out, and how often to look
/// for a quiet connection where there is none.
const PAUSE: Duration = Duration::from_millis(100);

/// Numbers connections, of all acceptors: the memory that several of them share goes by it.
static IDS: AtomicU64 = AtomicU64::new(1);

/// Accepts the connections of listeners with one purpose, within its limits. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Acceptor {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) name: &'static str,
    limits: Limits,
    memory: Memory,
    crowded: usize,
    full: usize,
    table: Mutex<HashMap<u64, Arc<Connection>>>,
    freed: Notify,
    /// Seconds since the first connection, from 1.
    now: AtomicU32,
    is_swept: AtomicBool,
    pub(crate) counts: Counts,
}

/// What an acceptor counts.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) delayed: AtomicU64,
    pub(crate) closed: [AtomicU64; CloseReason::COUNT],
    pub(crate) late_bodies: AtomicU64,
    pub(crate) large_bodies: AtomicU64,
    pub(crate) refused_waits: AtomicU64,
}

impl Acceptor {
    /// An acceptor whose incomplete requests are bounded by `memory`; `name` labels its metrics.
    #[must_use]
    pub fn new(name: &'static str, limits: Limits, memory: Memory) -> Self {
        let (crowded, full) = limits.bounds();
        let shared = Shared {
            name,
            limits,
            memory,
            crowded,
            full,
            table: Mutex::default(),
            freed: Notify::new(),
            now: AtomicU32::new(1),
            is_swept: AtomicBool::new(false),
            counts: Counts::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The next connection that `poll_accept` brings, once there is a place for it. A refusal by the system is logged, and tried
    /// again after a pause. Must be called within a tokio runtime; safe to drop.
    pub async fn accept<S>(
        &self,
        mut poll_accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<S>>,
    ) -> Guarded<S> {
        let shared = &self.shared;
        if !shared.is_swept.swap(true, Relaxed) {
            tokio::spawn(sweep(Arc::downgrade(shared)));
        }
        self.place().await;
        loop {
            match poll_fn(&mut poll_accept).await {
                Ok(stream) => return Guarded::new(stream, shared.add()),
                Err(error) => {
                    shared.counts.delayed.fetch_add(1, Relaxed);
                    let closed = shared.displace(shared.open() / PART + 1);
                    tracing::warn!(
                        %error, listener = shared.name, closed,
                        "cannot accept a connection; raise the limit of open files"
                    );
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits until one more may be open.
    async fn place(&self) {
        let shared = &self.shared;
        let mut is_delayed = false;
        loop {
            // Before the count, so that a place that becomes free in between is noticed.
            let freed = shared.freed.notified();
            let open = shared.open();
            if open < shared.crowded {
                return;
            }
            let closed = shared.displace(shared.crowded / PART + 1);
            // What was closed goes as soon as its task runs, and counts until then.
            if open < shared.full || open < shared.full + closed.min(LEAVING) {
                return;
            }
            if !std::mem::replace(&mut is_delayed, true) {
                shared.counts.delayed.fetch_add(1, Relaxed);
            }
            let _ = timeout(PAUSE, freed).await;
        }
    }

    #[cfg(any(test, feature = "metrics"))]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// Which part of the connections is closed at once when places are short: each search looks at all.
const PART: usize = 64;
/// So many more may be open for a moment, while those that were closed for them have yet to go.
const LEAVING: usize = 16;

impl Shared {
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn full(&self) -> usize {
        self.full
    }

    pub(crate) fn open(&self) -> usize {
        self.table().len()
    }

    pub(crate) fn now(&self) -> u32 {
        self.now.load(Relaxed)
    }

    pub(crate) fn tick(&self) -> u32 {
        self.now.fetch_add(1, Relaxed) + 1
    }

    /// Those that are open.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.table().values().cloned().collect()
    }

    pub(crate) fn count_closed(&self, reason: CloseReason) {
        self.counts.closed[reason as usize - 1].fetch_add(1, Relaxed);
    }

    pub(crate) fn remove(&self, id: u64) {
        let removed = self.table().remove(&id);
        drop(removed);
        self.freed.notify_waiters();
    }

    fn add(self: &Arc<Self>) -> Arc<Connection> {
        let connection = Arc::new(Connection::new(IDS.fetch_add(1, Relaxed), Arc::clone(self)));
        self.counts.accepted.fetch_add(1, Relaxed);
        self.table().insert(connection.id(), Arc::clone(&connection));
        connection
    }

    /// Closes so many quiet connections, or as many as there are. Returns how many that were.
    fn displace(&self, some: usize) -> usize {
        let mut quiet: Vec<_> =
            self.table().values().filter_map(|one| Some((one.quiet()?, Arc::clone(one)))).collect();
        let some = some.min(quiet.len());
        if some < quiet.len() {
            quiet.select_nth_unstable_by_key(some, |(order, _)| *order);
        }
        for (_, connection) in &quiet[..some] {
            connection.close(CloseReason::Displaced);
        }
        some
    }

    fn table(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        // Nothing that runs under the lock panics.
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

    /// Both ends of a connection that an acceptor has accepted.
    async fn accepted(acceptor: &Acceptor) -> (Guarded<DuplexStream>, DuplexStream) {
        let (near, far) = duplex(64);
        let mut near = Some(near);
        (acceptor.accept(|_| Poll::Ready(near.take().ok_or(io::ErrorKind::Other.into()))).await, far)
    }

    fn pages(connections: usize) -> Acceptor {
        Acceptor::new("test", Limits::pages().with_connections(connections), Memory::default())
    }

    /// After how many seconds a connection is closed on which nothing more comes.
    async fn closed_after(stream: &mut Guarded<DuplexStream>) -> u64 {
        let began = Instant::now();
        let mut read = Vec::new();
        let error = stream.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn beginnings_that_do_not_come_close_the_connection() {
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
    async fn between_requests_a_connection_may_be_idle_for_longer_and_headers_take_no_longer() {
        let acceptor = pages(10);
        let (mut stream, mut far) = accepted(&acceptor).await;
        let connection = Arc::clone(stream.connection().unwrap());
        far.write_all(b"GET").await.unwrap();
        stream.read_exact(&mut [0; 3]).await.unwrap();
        let request = connection.begin_request();
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(!connection.is_closed(), "a request in flight takes as long as it takes");
        drop(request);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(!connection.is_closed(), "it is idle for a minute");
        far.write_all(b"GET").await.unwrap();
        let after = closed_after(&mut stream).await;
        assert!((10..=12).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_displaces_the_one_that_is_quiet_longest() {
        let acceptor = pages(2);
        let (served, _far) = accepted(&acceptor).await;
        drop(served.connection().unwrap().begin_request());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (mut silent, _far) = accepted(&acceptor).await;
        // Its own task would drop it as soon as it is closed.
        let (third, _far) = accepted(&acceptor).await;
        assert_eq!(closed_after(&mut silent).await, 0, "one without a request goes first");
        drop(silent);
        assert!(!served.connection().unwrap().is_closed());
        let busy = [served, third];
        let _in_flight = busy.each_ref().map(|stream| stream.connection().unwrap().begin_request());
        let waits = timeout(Duration::from_secs(60), accepted(&acceptor)).await;
        assert!(waits.is_err(), "there is no place, and none that is quiet");
        assert!(busy.iter().all(|stream| !stream.connection().unwrap().is_closed()));
        drop(busy);
        accepted(&acceptor).await;
    }
}
