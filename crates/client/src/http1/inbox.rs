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
/// Pieces of memory that a thread keeps. It rarely reads more bodies at once than it can send on.
const MOST_SPARE: usize = 16;

thread_local! {
    /// Memory for large reads, used last at the back. What one connection was read into is still in the processor's cache when
    /// the next one is read, and no connection that waits has any.
    static SPARE: RefCell<Vec<BytesMut>> = const { RefCell::new(Vec::new()) };
}

/// What came on a connection. Pieces are taken out of it without copying them; large ones lie in memory that the connections of
/// a thread share, one after the other.
#[derive(Debug, Default)]
pub struct Inbox {
    bytes: BytesMut,
    /// Whether the memory is to be shared with other connections.
    is_large: bool,
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

    fn make_room(&mut self, room: usize) {
        let needed = self.bytes.len() + room.max(LEAST_READ);
        let is_large = room > LEAST_READ && needed <= MOST_READ;
        if self.is_large == is_large && self.bytes.try_reclaim(room.max(LEAST_READ)) {
            return;
        }
        let mut fresh = if is_large { spare() } else { BytesMut::with_capacity(needed) };
        fresh.extend_from_slice(&self.bytes);
        self.give_back();
        self.bytes = fresh;
        self.is_large = is_large;
    }

    /// Gives back what large reads took, since nothing comes for a while.
    pub fn rest(&mut self) {
        if !self.is_large || self.bytes.len() > FEW {
            return;
        }
        let mut few = BytesMut::new();
        if !self.bytes.is_empty() {
            few.reserve(LEAST_READ);
            few.extend_from_slice(&self.bytes);
        }
        self.give_back();
        self.bytes = few;
    }

    fn give_back(&mut self) {
        let bytes = mem::take(&mut self.bytes);
        if mem::take(&mut self.is_large) {
            SPARE.with_borrow_mut(|spare| {
                if spare.len() < MOST_SPARE {
                    spare.push(bytes);
                }
            });
        }
    }

    /// What came, for whoever reads on otherwise.
    pub fn into_bytes(self) -> BytesMut {
        self.bytes
    }
}

/// Memory that nothing lies in any more.
fn spare() -> BytesMut {
    SPARE.with_borrow_mut(|spare| {
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

impl From<BytesMut> for Inbox {
    fn from(bytes: BytesMut) -> Self {
        Self { bytes, is_large: false }
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
