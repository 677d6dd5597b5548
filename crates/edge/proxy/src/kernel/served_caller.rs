//! What the tasks of one caller share: that of its connection, and those of the pooled connections on which its responses arrive.

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

/// How long a caller may read nothing of the rest of a response.
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
    /// Wakes the task of the connection when no request that the kernel sent is in flight any more.
    waker: AtomicWaker,
    /// When the last call ended whose response did not pass the task of the connection.
    last_completed: Mutex<Option<Instant>>,
}

/// What the proxy has sent to a caller. Under one lock: the kernel must never be told of an answered request without its bytes.
#[derive(Debug)]
struct Counts {
    /// Bytes, with those that are about to be sent; `None` while some were not counted.
    sent: Option<u64>,
    /// Requests that the kernel sent and that the proxy has answered, or is about to.
    answered: u64,
    /// Responses that are being relayed: the task of the connection may send nothing before. Two, for a moment, if the caller has read the
    /// first before its end was noted.
    relaying: u32,
}

impl ServedCaller {
    /// `sent` are the bytes that were sent to it before; unknown, no response takes another way.
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

    /// Notes that a call ended whose response did not pass the task of the connection.
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

    /// Counts a request that the task of the connection answers.
    pub(super) fn note_taken(&self) {
        self.counts().answered += 1;
    }

    /// Counts bytes that the task of the connection sends; `None` for a number that it does not know.
    pub(super) fn note_sent(&self, bytes: Option<usize>) {
        add_sent(&mut self.counts().sent, bytes);
    }

    /// Tells the kernel what the caller will have received with a response of this length, if that is known.
    pub(super) fn settle(&self, length: Option<u64>) {
        self.settle_counted(&self.counts(), length);
    }

    fn settle_counted(&self, counts: &Counts, length: Option<u64>) {
        let received = counts.sent.zip(length).map(|(sent, length)| sent + length);
        let settled = received.map(|received| Settled { received, requests: counts.answered });
        self.link.settle(length.unwrap_or(0), settled);
    }

    /// Whether the kernel has sent a request whose response has neither been received here nor sent by the kernel.
    pub(super) fn is_in_flight(&self) -> bool {
        let counts = self.counts();
        counts.relaying > 0 || self.link.sent() > counts.answered
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
        self.counts().relaying > 0
    }

    /// Whether responses may be relayed to it.
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

    async fn try_relay_rest(&self, mut rest: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        // A descriptor of its own: an event loop takes each one once.
        let mut stream = TcpStream::from_std(socket.try_clone()?.into())?;
        while !rest.is_empty() {
            let sent = timeout(REST_TIMEOUT, stream.write(rest)).await??;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// The response has been sent.
    pub(super) fn end_relay(&self) {
        self.counts().relaying -= 1;
        self.note_completed();
    }
}
