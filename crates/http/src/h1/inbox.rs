//! What came and belongs to nothing yet.

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

/// The least memory that is taken for reading at once: several small messages fit.
pub const LEAST_READ: usize = 8 * 1024;
/// The most, 64 KiB and a head: what is larger comes in pieces of this size.
pub const MOST_READ: usize = 72 * 1024;
/// Bytes up to which it is cheaper to move what came than to keep that much memory waiting for the rest.
const FEW: usize = 4 * 1024;
/// Pieces of memory for large reads that a thread keeps. It rarely reads more bodies at once than it can send on.
const MOST_LARGE: usize = 16;
/// Pieces of memory for small reads that a thread keeps: half a megabyte.
const MOST_SMALL: usize = 64;

thread_local! {
    /// Memory for large reads, used last at the back. What one connection was read into is still in the processor's cache when
    /// the next one is read, and no connection that waits has any.
    static LARGE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
    /// The same of [`LEAST_READ`] bytes for small reads. Nothing that was taken out of these is still in use.
    static SMALL: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// What came on a connection. Pieces are taken out of it without copying them. They lie in memory that the connections of a
/// thread share, one after the other: where nothing comes and nothing is unread, a connection has none.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: BytesMut,
    memory: Memory,
}

/// Whose memory it is that a connection reads into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Memory {
    /// Its own.
    #[default]
    Own,
    /// One of the thread's pieces for small reads.
    Small,
    /// One of the thread's pieces for large reads.
    Large,
}

impl Inbox {
    /// Reads what comes, which may be more than is due; 0 where the other side ended the connection.
    pub fn poll_read<R>(
        &mut self,
        io: &mut R,
        due: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>>
    where
        R: AsyncRead + Unpin,
    {
        // One byte more than is due: a read that does not fill its buffer shows that there is no more.
        let room = due.saturating_add(1).min(MOST_READ);
        if self.bytes.capacity() - self.bytes.len() < room {
            self.make_room(room);
        }
        let read = poll_read_buf(Pin::new(io), context, &mut self.bytes);
        if read.is_pending() {
            self.rest();
        }
        read
    }

    /// Adds what was read elsewhere.
    pub fn add(&mut self, came: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < came.len() {
            self.make_room(came.len());
        }
        self.bytes.extend_from_slice(came);
    }

    fn make_room(&mut self, room: usize) {
        let needed = self.bytes.len() + room.max(LEAST_READ);
        let memory = match needed {
            // Nothing is unread: a small one would have too little room beside it.
            ..=LEAST_READ => Memory::Small,
            ..=MOST_READ if room > LEAST_READ => Memory::Large,
            _ => Memory::Own,
        };
        if self.memory == memory && self.bytes.try_reclaim(room.max(LEAST_READ)) {
            return;
        }
        let fresh = match memory {
            Memory::Small => small(),
            Memory::Large => large(),
            Memory::Own => BytesMut::with_capacity(needed),
        };
        self.move_to(fresh, memory);
    }

    /// Gives back memory, since nothing comes for a while: all of it where nothing is unread, or else what a large read took beyond
    /// that. A small one stays as long as something that was taken out of it is in use, which keeps that memory in any case: it
    /// may be free by the time that something comes.
    pub fn rest(&mut self) {
        if self.bytes.is_empty() {
            if self.memory != Memory::Small || self.bytes.try_reclaim(LEAST_READ) {
                self.give_back();
            }
        } else if self.memory == Memory::Large && self.bytes.len() <= FEW {
            self.move_to(small(), Memory::Small);
        }
    }

    fn move_to(&mut self, mut fresh: BytesMut, memory: Memory) {
        fresh.extend_from_slice(&self.bytes);
        self.give_back();
        (self.bytes, self.memory) = (fresh, memory);
    }

    fn give_back(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        match mem::take(&mut self.memory) {
            Memory::Own => {}
            Memory::Small => {
                bytes.clear();
                let is_free = bytes.try_reclaim(LEAST_READ);
                SMALL.with_borrow_mut(|spare| {
                    if is_free && spare.len() < MOST_SMALL {
                        spare.push(bytes);
                    }
                });
            }
            Memory::Large => LARGE.with_borrow_mut(|spare| {
                if spare.len() < MOST_LARGE {
                    spare.push(bytes);
                }
            }),
        }
    }

    /// What came, for whoever reads on otherwise.
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

/// Memory for a large read.
fn large() -> BytesMut {
    LARGE.with_borrow_mut(|spare| {
        // Where a piece that was taken out of one is still on its way, it waits for its turn.
        for at in (0..spare.len()).rev() {
            let large = &mut spare[at];
            large.clear();
            if large.try_reclaim(MOST_READ) {
                return spare.remove(at);
            }
        }
        BytesMut::with_capacity(MOST_READ)
    })
}

/// Memory for a small read.
fn small() -> BytesMut {
    SMALL.with_borrow_mut(Vec::pop).unwrap_or_else(|| BytesMut::with_capacity(LEAST_READ))
}

impl From<BytesMut> for Inbox {
    fn from(bytes: BytesMut) -> Self {
        Self { bytes, memory: Memory::Own }
    }
}

impl Deref for Inbox {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Inbox {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}
