use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::HEAD;

/// How much is read at once, in bytes: more than an acknowledgement, and little enough to stand on the stack.
const READ: usize = 8 * 1024;

/// How many messages are given to the system in one call.
const SLICES: usize = 64;

/// A connection that carries frames.
#[derive(Debug)]
pub(super) struct Pipe<S> {
    socket: S,
    /// What came of frames that are not complete. It holds no memory while nothing did: most watches are quiet.
    inbox: BytesMut,
    outbox: VecDeque<Bytes>,
    heard: Instant,
    /// Since when a frame is not complete.
    partial: Option<Instant>,
    /// The longest frame that the other side may send, in bytes.
    longest: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pipe<S> {
    pub(super) fn new(socket: S, longest: usize) -> Self {
        let (inbox, outbox) = (BytesMut::new(), VecDeque::new());
        Self { socket, inbox, outbox, heard: Instant::now(), partial: None, longest }
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    /// When something came last, be it a part of a message that takes long.
    pub(super) fn heard(&self) -> Instant {
        self.heard
    }

    /// Since when a part of a frame is here whose rest is not.
    pub(super) fn partial(&self) -> Option<Instant> {
        self.partial
    }

    /// To be sent after what is there already.
    pub(super) fn queue(&mut self, bytes: Bytes) {
        self.outbox.push_back(bytes);
    }

    /// Whether the system took everything.
    pub(super) fn is_empty(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Sends as much as the system takes; ready once that is everything.
    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbox.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let queued =
                slices.iter_mut().zip(&self.outbox).map(|(slice, bytes)| *slice = IoSlice::new(bytes));
            let queued = queued.count();
            let socket = Pin::new(&mut self.socket);
            let written = ready!(socket.poll_write_vectored(cx, &slices[..queued]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written(written);
        }
        Poll::Ready(Ok(()))
    }

    /// The system took so many bytes.
    fn written(&mut self, mut written: usize) {
        while let Some(first) = self.outbox.front_mut() {
            let some = written.min(first.len());
            first.advance(some);
            written -= some;
            if !first.is_empty() {
                return;
            }
            self.outbox.pop_front();
        }
    }

    /// The next frame without its length; `None` at the end.
    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        loop {
            if let Some(frame) = self.take()? {
                self.partial = (!self.inbox.is_empty()).then_some(self.heard);
                return Poll::Ready(Ok(Some(frame)));
            }
            let mut room = [const { std::mem::MaybeUninit::uninit() }; READ];
            let mut room = ReadBuf::uninit(&mut room);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Ok(None));
            }
            self.heard = Instant::now();
            self.partial.get_or_insert(self.heard);
            self.inbox.extend_from_slice(room.filled());
        }
    }

    fn take(&mut self) -> io::Result<Option<Bytes>> {
        let Some(head) = self.inbox.first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head) as usize;
        if length > self.longest {
            let why = format!("a message of {length} bytes, where {} are the most", self.longest);
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if self.inbox.len() < HEAD + length {
            self.inbox.reserve(HEAD + length - self.inbox.len());
            return Ok(None);
        }
        self.inbox.advance(HEAD);
        let frame = self.inbox.split_to(length).freeze();
        if self.inbox.is_empty() {
            self.inbox = BytesMut::new();
        }
        Ok(Some(frame))
    }
}
