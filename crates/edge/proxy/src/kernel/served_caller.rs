//! State shared by the tasks of one caller: the task of its connection, and the tasks of pooled connections that carry its responses.

use std::{
    io,
    net::SocketAddr,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use fairmesh_kernel::{Link, Settled};
use futures_util::task::AtomicWaker;
use rustix::net::{SendFlags, Shutdown, send, shutdown};
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::kernel::{attached::KernelRequest, caller::add_sent};

/// How long a caller may stop reading the rest of a response.
const REST_TIMEOUT: Duration = Duration::from_secs(60);

/// A caller whose connection is served.
#[derive(Debug)]
pub(super) struct ServedCaller {
    pub(super) address: SocketAddr,
    pub(super) requests: mpsc::Sender<KernelRequest>,
    pub(super) link: Link,
    /// The caller's connection, for responses that are relayed.
    socket: Option<OwnedFd>,
    counts: Mutex<Counts>,
    /// Wakes the connection's task when no kernel request is in flight any more.
    waker: AtomicWaker,
    /// When the last call ended whose response bypassed the connection's task.
    last_completed: Mutex<Option<Instant>>,
}

/// What the proxy has sent to a caller. One lock protects both numbers: the kernel must never see an answered request
/// without its bytes.
#[derive(Debug)]
struct Counts {
    /// Bytes, including those about to be sent; `None` if some were not counted.
    sent: Option<u64>,
    /// Kernel requests that the proxy has answered or is about to answer.
    answered: u64,
    /// Responses being relayed; the connection's task may send nothing meanwhile. Briefly two, if the caller has read the first
    /// before its end was noted.
    relaying: u32,
}

impl ServedCaller {
    /// `sent` are the bytes sent to the caller before. If unknown, no response bypasses the task.
    pub(super) fn new(
        link: Link,
        address: SocketAddr,
        socket: Option<OwnedFd>,
        requests: mpsc::Sender<KernelRequest>,
        sent: Option<u64>,
    ) -> Self {
        Self {
            address,
            requests,
            link,
            socket,
            counts: Mutex::new(Counts { sent, answered: 0, relaying: 0 }),
            waker: AtomicWaker::new(),
            last_completed: Mutex::new(None),
        }
    }

    /// Notes that a call ended whose response bypassed the connection's task.
    pub(super) fn note_completed(&self) {
        *self.last_completed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.waker.wake();
    }

    pub(super) fn last_completed(&self) -> Option<Instant> {
        *self.last_completed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request answered by the connection's task.
    pub(super) fn note_taken(&self) {
        self.counts().answered += 1;
    }

    /// Counts bytes sent by the connection's task; `None` is an unknown number.
    pub(super) fn note_sent(&self, bytes: Option<usize>) {
        add_sent(&mut self.counts().sent, bytes);
    }

    /// Reports to the kernel the caller's totals after a response of this length, if known.
    pub(super) fn settle(&self, length: Option<u64>) {
        self.settle_counted(&self.counts(), length);
    }

    fn settle_counted(&self, counts: &Counts, length: Option<u64>) {
        let received = counts.sent.zip(length).map(|(sent, length)| sent + length);
        let settled = received.map(|received| Settled { received, requests: counts.answered });
        self.link.settle(length.unwrap_or(0), settled);
    }

    /// Whether a kernel request is unanswered: its response was neither received here nor sent by the kernel.
    pub(super) fn is_in_flight(&self) -> bool {
        let counts = self.counts();
        counts.relaying > 0 || self.link.sent() > counts.answered
    }

    /// Ready once no kernel request is in flight.
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
        // The opposite order would miss an end in between.
        if holds(self) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn is_relaying(&self) -> bool {
        self.counts().relaying > 0
    }

    /// Whether responses may be relayed to the caller.
    pub(super) fn may_relay(&self) -> bool {
        self.socket.is_some() && self.counts().sent.is_some()
    }

    /// Begins to relay a response of this length, before the kernel may use its connection for another request.
    pub(super) fn begin_relay(&self, length: usize) {
        let mut counts = self.counts();
        counts.relaying += 1;
        counts.answered += 1;
        self.settle_counted(&counts, Some(length as u64));
        counts.sent = counts.sent.map(|sent| sent + length as u64);
    }

    /// Sends the response, and returns the part that the socket does not take at once.
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
            // The caller has a part of the response. This fails only if the socket is closed.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    async fn try_relay_rest(&self, mut rest: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        // Uses a separate descriptor, because an event loop registers each only once.
        let mut stream = TcpStream::from_std(socket.try_clone()?.into())?;
        while !rest.is_empty() {
            let sent = timeout(REST_TIMEOUT, stream.write(rest)).await??;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Notes that the response has been sent.
    pub(super) fn end_relay(&self) {
        self.counts().relaying -= 1;
        self.note_completed();
    }
}
