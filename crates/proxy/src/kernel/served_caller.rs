//! What the tasks of one caller share: that of its connection, and those of the pooled connections on which its responses arrive.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{
        Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
    task::{Context, Poll},
};

use fairmesh_kernel::{Link, Settled};
use futures_util::task::AtomicWaker;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, sync::mpsc, time::Instant};

use crate::kernel::attached::KernelRequest;

/// Bytes sent while some were sent that were not counted.
const UNKNOWN: u64 = u64::MAX;

/// A caller whose connection is served.
#[derive(Debug)]
pub(super) struct ServedCaller {
    pub(super) address: SocketAddr,
    pub(super) requests: mpsc::Sender<KernelRequest>,
    pub(super) link: Link,
    /// The caller's connection, for responses that are relayed.
    socket: Option<OwnedFd>,
    /// Bytes that the proxy has sent, with those that it is about to; or [`UNKNOWN`].
    sent: AtomicU64,
    /// Requests that the kernel sent and that the proxy has answered, or is about to.
    answered: AtomicU64,
    /// Whether a response is being relayed: the task of the connection may send nothing before.
    is_relaying: AtomicBool,
    /// Wakes the task of the connection when no request that the kernel sent is in flight any more.
    waker: AtomicWaker,
    /// When the last call ended whose response did not pass the task of the connection.
    last_completed: Mutex<Option<Instant>>,
}

impl ServedCaller {
    /// `is_observed` says that all of its calls are shown one by one, from the task of its connection.
    pub(super) fn new(
        link: Link,
        address: SocketAddr,
        socket: Option<OwnedFd>,
        requests: mpsc::Sender<KernelRequest>,
        is_observed: bool,
    ) -> Self {
        Self {
            address,
            requests,
            link,
            socket,
            // Unknown, no response takes another way.
            sent: AtomicU64::new(if is_observed { UNKNOWN } else { 0 }),
            answered: AtomicU64::new(0),
            is_relaying: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            last_completed: Mutex::new(None),
        }
    }

    /// Notes that a call ended whose response did not pass the task of the connection.
    pub(super) fn note_completed(&self) {
        *self.last_completed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.waker.wake();
    }

    pub(super) fn last_completed(&self) -> Option<Instant> {
        *self.last_completed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request that the task of the connection answers.
    pub(super) fn note_taken(&self) {
        self.answered.fetch_add(1, AcqRel);
    }

    /// Counts bytes that the task of the connection sends; `None` for a number that it does not know.
    pub(super) fn note_sent(&self, bytes: Option<usize>) {
        let add = |sent| match bytes {
            Some(bytes) if sent != UNKNOWN => Some(sent + bytes as u64),
            _ => Some(UNKNOWN),
        };
        // Never fails, since each value has a successor.
        let _ = self.sent.fetch_update(AcqRel, Acquire, add);
    }

    /// Tells the kernel what the caller will have received with a response of this length, if that is known.
    pub(super) fn settle(&self, length: Option<u64>) {
        let sent = self.sent.load(Acquire);
        let received = length.filter(|_| sent != UNKNOWN).map(|length| sent + length);
        let requests = self.answered.load(Acquire);
        self.link.settle(length.unwrap_or(0), received.map(|received| Settled { received, requests }));
    }

    /// Whether the kernel has sent a request whose response has neither been received here nor sent by the kernel.
    pub(super) fn is_in_flight(&self) -> bool {
        self.is_relaying() || self.link.sent() > self.answered.load(Acquire)
    }

    /// Ready once none is in flight.
    pub(super) fn poll_none_in_flight(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_not(Self::is_in_flight, context)
    }

    /// Ready once no response is being relayed.
    pub(super) fn poll_not_relaying(&self, context: &Context<'_>) -> Poll<()> {
        self.poll_not(Self::is_relaying, context)
    }

    fn poll_not(&self, holds: fn(&Self) -> bool, context: &Context<'_>) -> Poll<()> {
        if !holds(self) {
            return Poll::Ready(());
        }
        self.waker.register(context.waker());
        // The other order would miss an end in between.
        if holds(self) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn is_relaying(&self) -> bool {
        self.is_relaying.load(Acquire)
    }

    /// Whether responses may be relayed to it.
    pub(super) fn may_relay(&self) -> bool {
        self.socket.is_some() && self.sent.load(Acquire) != UNKNOWN
    }

    /// Begins to relay a response of this length, before the kernel may use its connection for another request.
    pub(super) fn begin_relay(&self, length: usize) {
        self.is_relaying.store(true, Release);
        self.note_taken();
        self.settle(Some(length as u64));
        self.note_sent(Some(length));
    }

    /// Sends the response; returns what the socket does not take at once.
    pub(super) fn relay<'a>(&self, response: &'a [u8]) -> &'a [u8] {
        let Some(socket) = &self.socket else { return response };
        let sent = send(socket, response, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0);
        &response[sent..]
    }

    /// Sends the rest, as fast as the caller reads.
    pub(super) async fn relay_rest(&self, rest: &[u8]) {
        if self.try_relay_rest(rest).await.is_err()
            && let Some(socket) = &self.socket
        {
            // It has a part of the response. Fails only if it is closed.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    async fn try_relay_rest(&self, rest: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        // A descriptor of its own: an event loop takes each one once.
        TcpStream::from_std(socket.try_clone()?.into())?.write_all(rest).await
    }

    /// The response has been sent.
    pub(super) fn end_relay(&self) {
        self.is_relaying.store(false, Release);
        self.note_completed();
    }
}
