//! Bytes read and not yet parsed.

#[cfg(test)]
mod tests;

use std::{
    cell::RefCell,
    io, mem,
    ops::{Deref, DerefMut},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::BytesMut;
use tokio::io::AsyncRead;
use tokio_util::io::poll_read_buf;

/// Least memory for one read: several small messages fit.
pub const MIN_READ: usize = 8 * 1024;
/// Most memory for one read, 64 KiB and headers: larger bodies are read in pieces of this size.
pub const MAX_READ: usize = 72 * 1024;
/// Up to so many unread bytes are moved to a small buffer, rather than keep a large one while waiting for the rest.
const MAX_MOVED: usize = 4 * 1024;
/// Large buffers that a thread keeps. It rarely reads more bodies at once than it can forward.
const MAX_LARGE_BUFFERS: usize = 16;
/// Small buffers that a thread keeps: half a megabyte.
const MAX_SMALL_BUFFERS: usize = 64;

thread_local! {
    /// Buffers for large reads, the last used at the back. What one connection was read into is still in the
    /// processor's cache for the next one, and a connection that waits holds none.
    static LARGE_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    /// The same of [`MIN_READ`] bytes for small reads. No piece taken out of these is still in use.
    static SMALL_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Bytes read from a connection. Pieces are taken out without copying. They lie in buffers that the connections of a
/// thread share in turn: an idle connection without unread bytes holds none.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: BytesMut,
    kind: BufferKind,
}

/// Where the buffer of a connection comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BufferKind {
    /// Allocated for this connection.
    #[default]
    Owned,
    /// One of the thread's small buffers.
    Small,
    /// One of the thread's large buffers.
    Large,
}

impl ReadBuffer {
    /// Reads what is available, which may be more than `due` bytes; 0 at the end of the stream.
    pub fn poll_read<R>(
        &mut self,
        io: &mut R,
        due: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + Unpin,
    {
        // One byte more than is due: a read that does not fill its buffer shows that the socket is empty.
        let space = due.saturating_add(1).min(MAX_READ);
        if self.bytes.capacity() - self.bytes.len() < space {
            self.reserve(space);
        }
        let read = poll_read_buf(Pin::new(io), context, &mut self.bytes);
        if read.is_pending() {
            self.release();
        }
        read
    }

    /// Appends bytes that were read into another buffer.
    pub fn append(&mut self, received: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < received.len() {
            self.reserve(received.len());
        }
        self.bytes.extend_from_slice(received);
    }

    fn reserve(&mut self, space: usize) {
        let needed = self.bytes.len() + space.max(MIN_READ);
        let kind = match needed {
            // Nothing is unread: otherwise a small buffer would not have enough space after it.
            ..=MIN_READ => BufferKind::Small,
            ..=MAX_READ if space > MIN_READ => BufferKind::Large,
            _ => BufferKind::Owned,
        };
        if self.kind == kind && self.bytes.try_reclaim(space.max(MIN_READ)) {
            return;
        }
        let fresh = match kind {
            BufferKind::Small => small_buffer(),
            BufferKind::Large => large_buffer(),
            BufferKind::Owned => BytesMut::with_capacity(needed),
        };
        self.move_to(fresh, kind);
    }

    /// Returns buffers to the thread, since nothing arrives for a while: all of them where nothing is unread,
    /// otherwise a large one. A small one stays as long as a piece taken out of it is in use, which keeps its memory
    /// in any case: it may be free by the time of the next read.
    pub fn release(&mut self) {
        if self.bytes.is_empty() {
            if self.kind != BufferKind::Small || self.bytes.try_reclaim(MIN_READ) {
                self.return_buffer();
            }
        } else if self.kind == BufferKind::Large && self.bytes.len() <= MAX_MOVED {
            self.move_to(small_buffer(), BufferKind::Small);
        }
    }

    fn move_to(&mut self, mut fresh: BytesMut, kind: BufferKind) {
        fresh.extend_from_slice(&self.bytes);
        self.return_buffer();
        (self.bytes, self.kind) = (fresh, kind);
    }

    fn return_buffer(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        match mem::take(&mut self.kind) {
            BufferKind::Owned => {}
            BufferKind::Small => {
                bytes.clear();
                let is_free = bytes.try_reclaim(MIN_READ);
                SMALL_BUFFERS.with_borrow_mut(|spare| {
                    if is_free && spare.len() < MAX_SMALL_BUFFERS {
                        spare.push(bytes);
                    }
                });
            }
            BufferKind::Large => LARGE_BUFFERS.with_borrow_mut(|spare| {
                if spare.len() < MAX_LARGE_BUFFERS {
                    spare.push(bytes);
                }
            }),
        }
    }

    /// The unread bytes, for another reader of the connection.
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

/// A buffer for a large read.
fn large_buffer() -> BytesMut {
    LARGE_BUFFERS.with_borrow_mut(|spare| {
        // A buffer with a piece still in use is skipped until that is dropped.
        for at in (0..spare.len()).rev() {
            let large = &mut spare[at];
            large.clear();
            if large.try_reclaim(MAX_READ) {
                return spare.remove(at);
            }
        }
        BytesMut::with_capacity(MAX_READ)
    })
}

/// A buffer for a small read.
fn small_buffer() -> BytesMut {
    SMALL_BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| BytesMut::with_capacity(MIN_READ))
}

impl From<BytesMut> for ReadBuffer {
    fn from(bytes: BytesMut) -> Self {
        Self { bytes, kind: BufferKind::Owned }
    }
}

impl Deref for ReadBuffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for ReadBuffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}
