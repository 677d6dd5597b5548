//! Watches: connections that only carry messages of the RIB, framed as `rib.proto` says.
//!
//! A gRPC stream was rejected. With ten thousand watchers of one change, HTTP/2 with its windows, its tasks for each
//! connection and its copies of every message took two thirds of the processor time of a delivery; here a message for
//! many watchers is encoded once, and a delivery is little more than the system call.

mod client;
mod framed_socket;
mod server;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
pub use client::Watch;
use prost::Message;
pub use server::WatchServer;

use crate::v1::WatchResponse;

/// The first bytes of a watch; HTTP/2 begins with other bytes.
pub(crate) const PREAMBLE: [u8; 8] = *b"FMWATCH1";

/// Idle time after which the client probes the server, and the timeout of the response.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Idle time after which the server closes the watch: the client should have probed once and timed out.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for the rest of a request that has begun. It is only checked when the watch is idle, so that detection may
/// take up to [`PEER_TIMEOUT`] longer.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without any progress of a write after which the server closes the watch: its watcher does not read, and what it
/// was to be sent occupies memory.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest request, in bytes: prefixes, cursors and addresses are far shorter.
const MAX_REQUEST: usize = 64 * 1024;

/// Bytes of the length of a frame.
const LENGTH_BYTES: usize = 4;

/// An encoded frame, which can be [sent](WatchServer::send) to any number of watchers.
pub fn frame(message: &WatchResponse) -> Bytes {
    encode_frame(message)
}

fn encode_frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + length);
    // Writers bound messages far below this; a longer one would be rejected for its length.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Fails only if the buffer is full, and the buffer grows.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests;
