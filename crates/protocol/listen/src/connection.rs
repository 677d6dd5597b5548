mod refusals;
mod unbegun_streams;
mod waker_slot;

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::SeqCst},
};

pub(crate) use self::waker_slot::WakerSlot;
use self::{refusals::Refusals, unbegun_streams::UnbegunStreams};
use crate::{Memory, acceptor::AcceptorState, request_memory::Holder, unread_responses::UnreadResponses};

/// Reason why this side closed a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The preface or the headers of a request were not complete in time.
    Headers = 1,
    /// Idle for too long.
    Idle = 2,
    /// A write timed out, since the peer did not read.
    Stalled = 3,
    /// The connection was quiet when a new connection needed its slot.
    Displaced = 4,
    /// The peer left more responses unread than any other peer while the memory for responses was full.
    Unread = 5,
    /// Too many of the connection's requests were refused.
    Refused = 6,
    /// Its user has more connections than any other user.
    User = 7,
}

impl CloseReason {
    pub(crate) const COUNT: usize = 7;
    #[cfg(feature = "metrics")]
    pub(crate) const ALL: [Self; Self::COUNT] =
        [Self::Headers, Self::Idle, Self::Stalled, Self::Displaced, Self::Unread, Self::Refused, Self::User];

    /// Label of the reason in metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Headers => "headers_timeout",
            Self::Idle => "idle_timeout",
            Self::Stalled => "write_timeout",
            Self::Displaced => "displaced",
            Self::Unread => "memory",
            Self::Refused => "refusals",
            Self::User => "user_limit",
        }
    }
}

/// Seconds without a request after which a used connection counts as quiet. Earlier, its peer might be about to send
/// a request, which would be lost.
const QUIET_AFTER: u32 = 5;

/// The detected protocol of a connection.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Unknown,
    Http1,
    Http2,
    /// A stream with time limits of its own.
    Other,
}

/// State of an open connection. Times are in seconds on the acceptor's clock.
#[derive(Debug)]
pub struct Connection {
    id: u64,
    shared: Arc<AcceptorState>,
    protocol: AtomicU8,
    in_flight: AtomicU32,
    /// Number of requests that are queued for a shared resource.
    queued: AtomicU32,
    /// Whether a request was received.
    served: AtomicBool,
    /// Whether a preface or headers are incomplete.
    incomplete: AtomicBool,
    /// Time since which the preface or headers are incomplete, or the connection is idle.
    since: AtomicU32,
    /// Time since which writes are blocked; 0 if they are not blocked.
    write_blocked: AtomicU32,
    unread: UnreadResponses,
    unbegun: UnbegunStreams,
    refusals: Refusals,
    /// The user of this machine who opened the connection, once the kernel has reported it.
    user: OnceLock<u32>,
    /// Whether the peer has presented neither certificate nor token although one of them is required.
    unknown: AtomicBool,
    /// The reason why the connection must be closed; 0 if it stays open.
    closed: AtomicU8,
    waker: WakerSlot,
}

impl Connection {
    pub(crate) fn new(id: u64, shared: Arc<AcceptorState>) -> Self {
        let since = AtomicU32::new(shared.now());
        Self {
            id,
            shared,
            protocol: AtomicU8::new(Protocol::Unknown as u8),
            in_flight: AtomicU32::new(0),
            queued: AtomicU32::new(0),
            served: AtomicBool::new(false),
            incomplete: AtomicBool::new(true),
            since,
            write_blocked: AtomicU32::new(0),
            unread: UnreadResponses::default(),
            unbegun: UnbegunStreams::default(),
            refusals: Refusals::default(),
            user: OnceLock::new(),
            unknown: AtomicBool::new(false),
            closed: AtomicU8::new(0),
            waker: WakerSlot::default(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Sets the user of this machine who opened the connection over a Unix socket. The connection's memory counts
    /// against that user.
    pub fn set_user(&self, uid: u32) {
        // The kernel reports the same user each time.
        let _ = self.user.set(uid);
    }

    /// The connection and user against whom memory is counted.
    pub(crate) fn holder(&self) -> Holder {
        Holder { connection: self.id, user: self.user.get().copied() }
    }

    pub(crate) fn shared(&self) -> &Arc<AcceptorState> {
        &self.shared
    }

    /// Bytes of responses that the peer has not yet read.
    pub(crate) fn unread(&self) -> &UnreadResponses {
        &self.unread
    }

    /// Registers a request whose headers are complete.
    pub fn begin_request(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Relaxed);
        self.served.store(true, Relaxed);
        self.incomplete.store(false, Relaxed);
        if self.unbegun.begin() {
            self.waker.wake();
        }
        InFlight(Arc::clone(self))
    }

    /// Whether a request has ever begun.
    pub(crate) fn has_begun_request(&self) -> bool {
        self.served.load(Relaxed)
    }

    /// Number of the connection's requests in queues.
    pub(crate) fn queued(&self) -> &AtomicU32 {
        &self.queued
    }

    /// The memory for the connection's incomplete requests.
    pub(crate) fn memory(&self) -> &Memory {
        if self.is_unknown() { self.shared.unknown_memory() } else { self.shared.memory() }
    }

    /// Marks the peer as unknown, because it has presented neither certificate nor token. Until
    /// [`set_known`](Self::set_known), its requests share the memory of unknown peers. The connection is closed after
    /// a few refusals, or in favour of newer connections of unknown peers.
    pub fn set_unknown(&self) {
        self.unknown.store(true, Relaxed);
        self.shared.add_unknown(self.id);
    }

    /// Marks the peer as known: it has proved its identity.
    pub fn set_known(&self) {
        if self.unknown.swap(false, Relaxed) {
            self.shared.remove_unknown(self.id);
        }
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.unknown.load(Relaxed)
    }

    /// Counts a refused request that cost this process more than its peer. After too many, the connection is closed.
    pub(crate) fn count_refusal(&self) {
        if self.refusals.exceed(!self.is_unknown(), self.shared.now()) {
            self.close(CloseReason::Refused);
        }
    }

    /// Streams whose requests have not yet begun.
    pub(crate) fn unbegun(&self) -> &UnbegunStreams {
        &self.unbegun
    }

    /// Whether reading must pause until requests of open streams have begun. If so, the current task is woken once
    /// they have.
    pub(crate) fn poll_paused(&self, cx: &std::task::Context<'_>) -> bool {
        self.unbegun.are_many() && {
            self.waker.register(cx.waker());
            self.unbegun.are_many() && !self.is_closed()
        }
    }

    /// Ends a pause that was caused by streams the server itself refused.
    pub(crate) fn sweep_streams(&self) {
        if self.unbegun.sweep() {
            self.waker.wake();
        }
    }

    /// Removes the time limits, for a stream with limits of its own, such as a watch or a tunnel.
    pub fn exempt(&self) {
        self.protocol.store(Protocol::Other as u8, Relaxed);
        self.incomplete.store(false, Relaxed);
        self.in_flight.fetch_add(1, Relaxed);
    }

    /// Whether the protocol is known: the complete HTTP/2 preface, or the first bytes of another protocol, were
    /// received.
    pub fn has_begun(&self) -> bool {
        self.protocol.load(Relaxed) != Protocol::Unknown as u8
    }

    /// Records that the first bytes are not the HTTP/2 preface.
    pub(crate) fn set_http1(&self) {
        self.protocol.store(Protocol::Http1 as u8, Relaxed);
    }

    /// Records that the HTTP/2 preface is complete. From here on, HTTP/2 keep-alives apply.
    pub(crate) fn set_http2(&self) {
        self.protocol.store(Protocol::Http2 as u8, Relaxed);
        self.incomplete.store(false, Relaxed);
        self.since.store(self.shared.now(), Relaxed);
    }

    /// Records that bytes were read. Between HTTP/1.1 requests, they begin the headers of the next request.
    pub(crate) fn received(&self) {
        let between =
            self.protocol.load(Relaxed) == Protocol::Http1 as u8 && self.in_flight.load(Relaxed) == 0;
        if between && !self.incomplete.swap(true, Relaxed) {
            self.since.store(self.shared.now(), Relaxed);
        }
    }

    /// Records whether writes are blocked.
    pub(crate) fn set_write_blocked(&self, write_blocked: bool) {
        match (write_blocked, self.write_blocked.load(Relaxed)) {
            (true, 0) => self.write_blocked.store(self.shared.now(), Relaxed),
            (false, 1..) => self.write_blocked.store(0, Relaxed),
            _ => {}
        }
    }

    /// Returns the time limit that the connection exceeds at `now`, if any.
    pub(crate) fn exceeded_limit(&self, now: u32) -> Option<CloseReason> {
        let limits = self.shared.limits();
        let longer_than =
            |since: u32, limit: std::time::Duration| u64::from(now.saturating_sub(since)) > limit.as_secs();
        let (write_blocked, since) = (self.write_blocked.load(Relaxed), self.since.load(Relaxed));
        if self.protocol.load(Relaxed) == Protocol::Other as u8 {
            return None;
        }
        let is_stalled = |limit| {
            write_blocked > 0 && longer_than(write_blocked, limit) || self.unread.is_stalled(now, limit)
        };
        if limits.stall.is_some_and(is_stalled) {
            return Some(CloseReason::Stalled);
        }
        if self.incomplete.load(Relaxed) {
            return longer_than(since, limits.headers).then_some(CloseReason::Headers);
        }
        let idle = self.protocol.load(Relaxed) == Protocol::Http1 as u8 && self.in_flight.load(Relaxed) == 0;
        (idle && limits.idle.is_some_and(|limit| longer_than(since, limit))).then_some(CloseReason::Idle)
    }

    /// Sort key for closing quiet connections: connections without any request come first, then the longest idle.
    /// `None` if the connection is not quiet.
    pub(crate) fn quiet_order(&self) -> Option<(bool, u32, u64)> {
        let (served, since) = (self.served.load(Relaxed), self.since.load(Relaxed));
        let is_quiet = self.in_flight.load(Relaxed) == 0 && self.closed.load(Relaxed) == 0;
        let is_idle = !served || self.shared.now().saturating_sub(since) >= QUIET_AFTER;
        (is_quiet && is_idle).then_some((served, since, self.id))
    }

    /// Closes the connection at its next read or write.
    pub(crate) fn close(&self, reason: CloseReason) {
        if self.closed.compare_exchange(0, reason as u8, SeqCst, SeqCst).is_ok() {
            self.shared.record_close(self.id, reason);
            self.waker.wake();
        }
    }

    /// Closes the connection because its user has more connections than any other user.
    pub fn close_for_user(&self) {
        self.close(CloseReason::User);
    }

    /// Whether the connection must be closed. If not, the current task is woken once it must be.
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

/// A request in flight. Its connection is not quiet until this value is dropped.
#[derive(Debug)]
pub struct InFlight(Arc<Connection>);

impl InFlight {
    /// The connection that carries the request.
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
