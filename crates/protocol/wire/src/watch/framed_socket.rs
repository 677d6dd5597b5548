use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use fairmesh_listen::{Connection, MessageClaim};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::LENGTH_BYTES;

/// Number of bytes per read: more than an acknowledgement, and small enough for the stack.
const READ_BYTES: usize = 8 * 1024;

/// Length above which an incomplete frame claims memory from its connection, in bytes.
const MIN_CLAIMED: usize = 4 * 1024;

/// Maximum number of messages per vectored write.
const SLICES: usize = 64;

/// A connection that carries frames.
#[derive(Debug)]
pub(super) struct FramedSocket<S> {
    socket: S,
    /// Bytes of the incomplete frame. Unallocated while empty, because most watches are idle.
    read_buffer: BytesMut,
    write_queue: VecDeque<Bytes>,
    last_received: Instant,
    /// When the incomplete frame began to arrive.
    partial_since: Option<Instant>,
    /// Time since which the socket has accepted no bytes of the queue.
    blocked_since: Option<Instant>,
    /// Maximum length of a frame that the peer may send, in bytes.
    max_frame: usize,
    /// The listener's state for an accepted connection. Large frames claim memory from it.
    connection: Option<Arc<Connection>>,
    /// The memory claimed for a large incomplete frame.
    claim: Option<MessageClaim>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> FramedSocket<S> {
    pub(super) fn new(socket: S, max_frame: usize, connection: Option<Arc<Connection>>) -> Self {
        let (read_buffer, write_queue) = (BytesMut::new(), VecDeque::new());
        Self {
            socket,
            read_buffer,
            write_queue,
            last_received: Instant::now(),
            partial_since: None,
            blocked_since: None,
            max_frame,
            connection,
            claim: None,
        }
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    /// Time at which bytes were last received, including parts of a message.
    pub(super) fn last_received(&self) -> Instant {
        self.last_received
    }

    /// When the incomplete frame began to arrive, if there is one.
    pub(super) fn partial_since(&self) -> Option<Instant> {
        self.partial_since
    }

    /// Time since which the socket has accepted no bytes, if there are bytes to write.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.blocked_since
    }

    /// Queues bytes for sending.
    pub(super) fn queue(&mut self, bytes: Bytes) {
        self.write_queue.push_back(bytes);
    }

    /// Whether everything has been written.
    pub(super) fn is_empty(&self) -> bool {
        self.write_queue.is_empty()
    }

    /// Writes as much as possible; ready once everything is written.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.write_queue.is_empty() {
            let Poll::Ready(written) = self.poll_write_queue(cx) else {
                self.blocked_since.get_or_insert_with(Instant::now);
                return Poll::Pending;
            };
            self.blocked_since = None;
            let written = written?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Writes part of the queue, which must not be empty.
    fn poll_write_queue(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let socket = Pin::new(&mut self.socket);
        // The queue usually has one message, as for every watcher of a change. A plain write of it takes less CPU.
        if let ([only], []) = self.write_queue.as_slices() {
            return socket.poll_write(cx, only);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let queued =
            slices.iter_mut().zip(&self.write_queue).map(|(slice, bytes)| *slice = IoSlice::new(bytes));
        let queued = queued.count();
        socket.poll_write_vectored(cx, &slices[..queued])
    }

    /// Shuts down the sending direction.
    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    /// Removes written bytes from the queue.
    fn advance(&mut self, mut written: usize) {
        while let Some(first) = self.write_queue.front_mut() {
            let some = written.min(first.len());
            first.advance(some);
            written -= some;
            if !first.is_empty() {
                return;
            }
            self.write_queue.pop_front();
        }
    }

    /// The next frame without its length field; `None` at the end of the stream.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            if let Some(frame) = self.take()? {
                self.partial_since = (!self.read_buffer.is_empty()).then_some(self.last_received);
                return Poll::Ready(Ok(Some(frame)));
            }
            if self.claim.as_ref().is_some_and(|claim| claim.poll_revoked(cx)) {
                return Poll::Ready(Err(no_memory()));
            }
            let mut room = [const { std::mem::MaybeUninit::uninit() }; READ_BYTES];
            let mut room = ReadBuf::uninit(&mut room);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Ok(None));
            }
            self.last_received = Instant::now();
            self.partial_since.get_or_insert(self.last_received);
            self.read_buffer.extend_from_slice(room.filled());
        }
    }

    fn take(&mut self) -> io::Result<Option<Bytes>> {
        let Some(head) = self.read_buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > self.max_frame {
            return Err(io::Error::new(io::ErrorKind::InvalidData, oversized(*head, self.max_frame)));
        }
        if self.read_buffer.len() < LENGTH_BYTES + length {
            if length > MIN_CLAIMED
                && self.claim.is_none()
                && let Some(connection) = &self.connection
            {
                self.claim = Some(connection.claim_message(length).ok_or_else(no_memory)?);
            }
            self.read_buffer.reserve(LENGTH_BYTES + length - self.read_buffer.len());
            return Ok(None);
        }
        self.claim = None;
        self.read_buffer.advance(LENGTH_BYTES);
        let frame = self.read_buffer.split_to(length).freeze();
        if self.read_buffer.is_empty() {
            self.read_buffer = BytesMut::new();
        }
        Ok(Some(frame))
    }
}

/// Error text for a length above the limit. The cause is often a TLS record from a peer that uses TLS (RFC 8446,
/// 5.1).
fn oversized(head: [u8; LENGTH_BYTES], max_frame: usize) -> String {
    match head {
        [21, 3, _, _] => {
            "a TLS alert in place of a message: the peer speaks TLS, and refused this connection".to_owned()
        }
        [22, 3, _, _] => {
            "a TLS handshake in place of a message: the peer speaks TLS, and this side does not".to_owned()
        }
        _ => format!("a message of {} bytes, above the limit of {max_frame}", u32::from_be_bytes(head)),
    }
}

fn no_memory() -> io::Error {
    let why = "the memory for incomplete requests is used up; connect again later";
    io::Error::new(io::ErrorKind::OutOfMemory, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_record_is_named_in_error_of_oversized_message() {
        assert!(oversized(352_518_912_u32.to_be_bytes(), 9).starts_with("a TLS alert"));
        assert!(oversized([22, 3, 1, 0], 9).starts_with("a TLS handshake"));
        assert_eq!(oversized([255; 4], 9), "a message of 4294967295 bytes, above the limit of 9");
    }
}
