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

/// Minimum free space for one read, in bytes: several small messages fit.
pub const MIN_READ: usize = 8 * 1024;
/// Maximum size of one read, in bytes: 64 KiB and headers. Larger bodies are read in pieces of this size.
pub const MAX_READ: usize = 72 * 1024;
/// Maximum number of unread bytes that are moved to a small buffer. A larger rest stays in its large buffer while the
/// connection waits for more.
const MAX_MOVED: usize = 4 * 1024;
/// Maximum number of large buffers kept per thread. A thread rarely reads more bodies at once than it can forward.
const MAX_LARGE_BUFFERS: usize = 16;
/// Maximum number of small buffers kept per thread: 512 KiB.
const MAX_SMALL_BUFFERS: usize = 64;

thread_local! {
    /// Buffers for large reads, the most recently used at the back. The memory that one connection just used is still
    /// in the processor's cache for the next one, and an idle connection holds no buffer.
    static LARGE_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    /// Buffers of [`MIN_READ`] bytes for small reads. No piece split off them is still in use.
    static SMALL_BUFFERS: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// Bytes read from a connection; pieces are split off without copying. The memory comes from buffers that the
/// connections of a thread share in turn: an idle connection without unread bytes holds none.
#[derive(Debug, Default)]
pub struct ReadBuffer {
    bytes: BytesMut,
    kind: BufferKind,
}

/// Origin of a connection's buffer.
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
    /// Reads the available bytes, which may be more than `due`. Returns 0 at the end of the stream.
    pub fn poll_read<R>(
        &mut self,
        io: &mut R,
        due: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + Unpin,
    {
        // One byte more than `due`: a read that does not fill its buffer shows that the socket is empty.
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
            // Only if nothing is unread: otherwise a small buffer would not have enough space after the unread bytes.
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

    /// Returns buffers to the thread because no data is expected for a while: every buffer if nothing is unread,
    /// otherwise only a large one. A small buffer stays while a piece split off it is in use, since that piece keeps
    /// its memory allocated anyway, and the piece may be gone by the next read.
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

    /// Returns the unread bytes, for another reader of the connection.
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

/// Returns a buffer for a large read.
fn large_buffer() -> BytesMut {
    LARGE_BUFFERS.with_borrow_mut(|spare| {
        // Buffers with a piece still in use are skipped.
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

/// Returns a buffer for a small read.
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
