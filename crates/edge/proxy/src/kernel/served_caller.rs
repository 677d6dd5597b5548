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

use crate::kernel::{attached_maps::KernelRequest, caller::add_sent};

/// How long a caller may pause while it reads the rest of a response.
const REST_TIMEOUT: Duration = Duration::from_secs(60);

/// A caller whose connection is served.
#[derive(Debug)]
pub(super) struct ServedCaller {
    pub(super) address: SocketAddr,
    pub(super) requests: mpsc::Sender<KernelRequest>,
    pub(super) link: Link,
    /// Descriptor of the caller's connection, for relayed responses.
    socket: Option<OwnedFd>,
    counts: Mutex<Counts>,
    /// Waker of the connection's task, woken when no kernel request is in flight.
    waker: AtomicWaker,
    /// Time at which the last call ended whose response bypassed the connection's task.
    last_completed: Mutex<Option<Instant>>,
}

/// Totals of bytes and responses that the proxy has sent to a caller. One lock protects both numbers: the kernel must
/// never see a request as answered before its bytes are counted.
#[derive(Debug)]
struct Counts {
    /// Bytes sent or about to be sent; `None` if the number is unknown.
    sent: Option<u64>,
    /// Kernel requests that the proxy has answered or is about to answer.
    answered: u64,
    /// Number of responses being relayed. Meanwhile the connection's task must not send. Briefly two, if the caller
    /// has read the first response before its end was recorded.
    relaying: u32,
}

impl ServedCaller {
    /// Creates the state of a caller to whom `sent` bytes were already sent. If the number is unknown, no response
    /// bypasses the task.
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

    /// Adds bytes that the connection's task sends; `None` means an unknown number.
    pub(super) fn note_sent(&self, bytes: Option<usize>) {
        add_sent(&mut self.counts().sent, bytes);
    }

    /// Reports the caller's totals to the kernel, after a response of this length if known.
    pub(super) fn settle(&self, length: Option<u64>) {
        self.settle_counted(&self.counts(), length);
    }

    fn settle_counted(&self, counts: &Counts, length: Option<u64>) {
        let received = counts.sent.zip(length).map(|(sent, length)| sent + length);
        let settled = received.map(|received| Settled { received, requests: counts.answered });
        self.link.settle(length.unwrap_or(0), settled);
    }

    /// Whether a kernel request is unanswered: the proxy has not received its response, and the kernel has
    /// not sent it.
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
        // Checked after registering the waker: in the reverse order, an end in between would be missed.
        if holds(self) { Poll::Pending } else { Poll::Ready(()) }
    }

    fn is_relaying(&self) -> bool {
        self.counts().relaying > 0
    }

    /// Whether responses may be relayed to the caller.
    pub(super) fn may_relay(&self) -> bool {
        self.socket.is_some() && self.counts().sent.is_some()
    }

    /// Starts to relay a response of this length. Must be called before the kernel may use its connection for
    /// another request.
    pub(super) fn begin_relay(&self, length: usize) {
        let mut counts = self.counts();
        counts.relaying += 1;
        counts.answered += 1;
        self.settle_counted(&counts, Some(length as u64));
        counts.sent = counts.sent.map(|sent| sent + length as u64);
    }

    /// Sends the response. Returns the part that the socket did not accept at once.
    pub(super) fn relay<'a>(&self, response: &'a [u8]) -> &'a [u8] {
        let Some(socket) = &self.socket else { return response };
        let sent = send(socket, response, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0);
        &response[sent..]
    }

    /// Sends the rest of a response, as fast as the caller reads.
    pub(super) async fn relay_rest(&self, rest: &[u8]) {
        if self.try_relay_rest(rest).await.is_err()
            && let Some(socket) = &self.socket
        {
            // The caller has part of the response, so the connection must be closed. Fails only if it is
            // closed already.
            let _ = shutdown(socket, Shutdown::Both);
        }
    }

    async fn try_relay_rest(&self, mut rest: &[u8]) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Err(io::ErrorKind::NotConnected.into()) };
        // A separate descriptor, because an event loop can register each one only once.
        let mut stream = TcpStream::from_std(socket.try_clone()?.into())?;
        while !rest.is_empty() {
            let sent = timeout(REST_TIMEOUT, stream.write(rest)).await??;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Notes that the response has been sent completely.
    pub(super) fn end_relay(&self) {
        self.counts().relaying -= 1;
        self.note_completed();
    }
}
