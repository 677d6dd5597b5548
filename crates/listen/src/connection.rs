use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::SeqCst},
};

use futures_util::task::AtomicWaker;

use crate::{acceptor::Shared, responses::Untaken};

/// Why a connection was closed before its peer ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Its preface or the headers of a request did not come in time.
    Headers = 1,
    /// It was idle for long.
    Idle = 2,
    /// Its peer took nothing of what it was sent.
    Stalled = 3,
    /// It was quiet when a new one needed its place.
    Displaced = 4,
    /// It left more untaken than others, of responses that filled their memory.
    Untaken = 5,
}

impl CloseReason {
    pub(crate) const COUNT: usize = 5;
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::Headers, Self::Idle, Self::Stalled, Self::Displaced, Self::Untaken];

    /// As metrics label it.
    #[cfg(feature = "metrics")]
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Headers => "headers_timeout",
            Self::Idle => "idle_timeout",
            Self::Stalled => "write_timeout",
            Self::Displaced => "displaced",
            Self::Untaken => "memory",
        }
    }
}

/// After how many seconds without a request a connection that has carried some counts as quiet. Its peer may be about to use it: that
/// request would be lost.
const IDLE: u32 = 5;

/// What a connection speaks, as far as that is known.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Unknown,
    Http1,
    Http2,
    /// Something that has its own time limits.
    Other,
}

/// What is known of one connection while it is open. Times are those of the acceptor, in seconds.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    shared: Arc<Shared>,
    protocol: AtomicU8,
    in_flight: AtomicU32,
    /// Whether a request came.
    served: AtomicBool,
    /// Whether a preface or headers are not complete.
    partial: AtomicBool,
    /// Since when they are not, or since when it is idle.
    since: AtomicU32,
    /// Since when the peer takes nothing; 0 where it does.
    stalled: AtomicU32,
    untaken: Untaken,
    /// The reason for which it is to be closed; 0 where there is none.
    closed: AtomicU8,
    waker: AtomicWaker,
}

impl Connection {
    pub(crate) fn new(id: u64, shared: Arc<Shared>) -> Self {
        let since = AtomicU32::new(shared.now());
        Self {
            id,
            shared,
            protocol: AtomicU8::new(Protocol::Unknown as u8),
            in_flight: AtomicU32::new(0),
            served: AtomicBool::new(false),
            partial: AtomicBool::new(true),
            since,
            stalled: AtomicU32::new(0),
            untaken: Untaken::default(),
            closed: AtomicU8::new(0),
            waker: AtomicWaker::new(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What its peer has not taken of responses.
    pub(crate) fn untaken(&self) -> &Untaken {
        &self.untaken
    }

    /// A request begins, of which all headers are here.
    pub fn begin_request(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Relaxed);
        self.served.store(true, Relaxed);
        self.partial.store(false, Relaxed);
        InFlight(Arc::clone(self))
    }

    /// From now on it carries something with time limits of its own: a watch, a tunnel.
    pub fn exempt(&self) {
        self.protocol.store(Protocol::Other as u8, Relaxed);
        self.partial.store(false, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Whether it is known what it speaks: all of the preface of HTTP/2 is here, or the beginning of something else.
    pub fn has_begun(&self) -> bool {
        self.protocol.load(Relaxed) != Protocol::Unknown as u8
    }

    /// It begins as HTTP/1.1 does.
    pub(crate) fn set_http1(&self) {
        self.protocol.store(Protocol::Http1 as u8, Relaxed);
    }

    /// All of the preface of HTTP/2 is here; keep-alives watch over the rest.
    pub(crate) fn set_http2(&self) {
        self.protocol.store(Protocol::Http2 as u8, Relaxed);
        self.partial.store(false, Relaxed);
        self.since.store(self.shared.now(), Relaxed);
    }

    /// Something was read. Outside of a request of HTTP/1.1 it begins the headers of the next one.
    pub(crate) fn received(&self) {
        let between =
            self.protocol.load(Relaxed) == Protocol::Http1 as u8 && self.in_flight.load(Relaxed) == 0;
        if between && !self.partial.swap(true, Relaxed) {
            self.since.store(self.shared.now(), Relaxed);
        }
    }

    /// Whether the peer takes what it is sent.
    pub(crate) fn set_stalled(&self, stalled: bool) {
        match (stalled, self.stalled.load(Relaxed)) {
            (true, 0) => self.stalled.store(self.shared.now(), Relaxed),
            (false, 1..) => self.stalled.store(0, Relaxed),
            _ => {}
        }
    }

    /// Why it is late now, if it is.
    pub(crate) fn overdue(&self, now: u32) -> Option<CloseReason> {
        let limits = self.shared.limits();
        let longer_than =
            |since: u32, limit: std::time::Duration| u64::from(now.saturating_sub(since)) > limit.as_secs();
        let (stalled, since) = (self.stalled.load(Relaxed), self.since.load(Relaxed));
        if self.protocol.load(Relaxed) == Protocol::Other as u8 {
            return None;
        }
        let is_stalled =
            |limit| stalled > 0 && longer_than(stalled, limit) || self.untaken.is_stalled(now, limit);
        if limits.stall.is_some_and(is_stalled) {
            return Some(CloseReason::Stalled);
        }
        if self.partial.load(Relaxed) {
            return longer_than(since, limits.headers).then_some(CloseReason::Headers);
        }
        let idle = self.protocol.load(Relaxed) == Protocol::Http1 as u8 && self.in_flight.load(Relaxed) == 0;
        (idle && limits.idle.is_some_and(|limit| longer_than(since, limit))).then_some(CloseReason::Idle)
    }

    /// In which order quiet connections are closed for new ones, the first first: those without a request yet, then those that are
    /// idle longest. `None` where it is not quiet.
    pub(crate) fn quiet(&self) -> Option<(bool, u32, u64)> {
        let (served, since) = (self.served.load(Relaxed), self.since.load(Relaxed));
        let is_quiet = self.in_flight.load(Relaxed) == 0 && self.closed.load(Relaxed) == 0;
        let is_idle = !served || self.shared.now().saturating_sub(since) >= IDLE;
        (is_quiet && is_idle).then_some((served, since, self.id))
    }

    /// Closes it with its next read or write.
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.compare_exchange(0, reason as u8, SeqCst, SeqCst).is_ok() {
            self.shared.count_closed(reason);
            self.waker.wake();
        }
    }

    /// Whether it is to be closed; if not, the task that asks is woken once it is.
    pub(crate) fn poll_closed(&self, cx: &std::task::Context<'_>) -> bool {
        self.is_closed() || {
            self.waker.register(cx.waker());
            self.is_closed()
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst) != 0
    }
}

/// A request in flight: its connection is not quiet until this is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Connection>);

impl InFlight {
    /// The connection that it came over.
    pub fn connection(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Self(connection) = self;
        if connection.in_flight.fetch_sub(1, Relaxed) == 1 {
            connection.since.store(connection.shared.now(), Relaxed);
        }
    }
}
