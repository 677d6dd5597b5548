//! Receive windows: how much a peer may send before it is read.
//!
//! The window of the connection is returned as soon as DATA arrives, so that no stream waits for another one. Unread
//! bytes count against the window of their stream alone, as in nginx. Streams begin with a small window. While a
//! stream's reader is faster than its peer, the window grows out of a budget of the connection; a reader that falls
//! behind returns the growth while the budget is short. All connections of a process share a budget of unread bytes
//! (`unread_bytes.rs`).
//!
//! Rejected: returning the connection's window only when bytes are read. That bounds memory as well, but lets one slow
//! reader stall every other stream.

use super::{
    super::frame::{WINDOW_UPDATE, push},
    Session, Stream,
};

/// Receive window of the connection, in bytes: larger than the bandwidth-delay product of any path.
pub(super) const CONNECTION_WINDOW: u32 = 1 << 30;
/// Initial receive window of a stream, in bytes: as large as the read buffer of an HTTP/1.1 connection.
pub(super) const INITIAL_WINDOW: u32 = 64 * 1024;
/// Maximum receive window of a stream, in bytes. With a round-trip time of 100 ms, a body gets 10 MB/s.
pub(super) const MAX_WINDOW: u32 = 1 << 20;
/// Total number of bytes by which all stream windows of a connection may exceed their initial size.
pub(super) const GROWTH_BUDGET: u32 = 4 << 20;

impl Session {
    /// Takes `size` bytes of DATA from the connection's window. Returns used bytes to the peer once they make up half
    /// of the window.
    pub(super) fn charge_connection(&mut self, size: u32) {
        // On a closed connection, the window is not returned.
        self.receive_window = self.receive_window.saturating_sub(size);
        if self.receive_window < CONNECTION_WINDOW / 2 && !self.is_closed {
            let more = CONNECTION_WINDOW - self.receive_window;
            self.receive_window = CONNECTION_WINDOW;
            push(self.out.buffer(), WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
            self.wake_driver();
        }
    }

    /// Records that `size` bytes of a stream were read, and returns them to its window, which may grow or shrink.
    pub(super) fn release_stream_window(&mut self, id: u32, size: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let read = size.min(stream.unread);
        stream.unread -= read;
        self.unread.remove(read);
        self.return_stream_window(id, size);
    }

    /// Returns `size` bytes of a stream to its window.
    pub(super) fn return_stream_window(&mut self, id: u32, size: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.unreleased += size;
        if stream.remote_closed || stream.is_closed {
            self.growth_left += stream.take_growth();
        } else if stream.unreleased >= stream.window / 2 {
            self.update_stream_window(id);
        }
    }

    fn update_stream_window(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let needs_more = stream.content_left.is_none_or(|left| left > u64::from(stream.receive_window));
        // If nothing is unread, the reader is waiting for the peer.
        if stream.unread == 0 && needs_more && !self.unread.is_budget_exhausted() {
            let growth = (MAX_WINDOW - stream.window).min(self.growth_left);
            stream.window += growth;
            stream.unreleased += growth;
            self.growth_left -= growth;
        } else if stream.unread > 0 && self.growth_left < GROWTH_BUDGET / 4 {
            let excess = (stream.window - INITIAL_WINDOW).min(stream.unreleased);
            stream.window -= excess;
            stream.unreleased -= excess;
            self.growth_left += excess;
        }
        let more = std::mem::take(&mut stream.unreleased);
        if more > 0 {
            stream.receive_window += more;
            push(self.out.buffer(), WINDOW_UPDATE, 0, id, &more.to_be_bytes());
            self.wake_driver();
        }
    }

    /// Discards the unread bytes of a stream.
    pub(super) fn discard_unread(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.received.clear();
        self.unread.remove(std::mem::take(&mut stream.unread));
        if stream.remote_closed || stream.is_closed {
            self.growth_left += stream.take_growth();
        }
    }
}

impl Stream {
    /// Takes back the growth of a window that accepts no more bytes, except the part in use by unread bytes.
    pub(super) fn take_growth(&mut self) -> u32 {
        let excess = self.window.saturating_sub(self.unread.max(INITIAL_WINDOW));
        self.window -= excess;
        excess
    }
}
