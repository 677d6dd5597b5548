//! Watches: connections that carry only messages of the RIB, framed as described in `rib.proto`.
//!
//! A gRPC stream was rejected. With ten thousand watchers of a change, two thirds of the CPU of a delivery went into
//! HTTP/2: its windows, the tasks of each connection and the copies of every message. Here a message for many
//! watchers is encoded once, and a delivery costs little more than the system call.

mod client;
mod framed_socket;
mod server;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
pub use client::Watch;
use prost::Message;
pub use server::WatchServer;

use crate::v1::WatchResponse;

/// The first bytes of a watch. HTTP/2 begins with other bytes.
pub(crate) const PREAMBLE: [u8; 8] = *b"FMWATCH1";

/// Idle time after which the client probes the server, and timeout of the response.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Idle time after which the server closes the watch. By then the client should have probed and timed out.
const PEER_TIMEOUT: Duration = Duration::from_secs(20);

/// Timeout for the rest of a request that has begun. Checked only when the watch is idle, so detection may take up to
/// [`PEER_TIMEOUT`] longer.
const FRAME_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without write progress after which the server closes the watch: the watcher does not read, and unsent
/// messages occupy memory.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a request, in bytes. Prefixes, cursors and addresses are far shorter.
const MAX_REQUEST: usize = 64 * 1024;

/// Length of the length field of a frame, in bytes.
const LENGTH_BYTES: usize = 4;

/// Encodes a frame, which can be [sent](WatchServer::send) to any number of watchers.
pub fn frame(message: &WatchResponse) -> Bytes {
    encode_frame(message)
}

fn encode_frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + length);
    // Writers keep messages far below this limit. A longer message would be rejected because of its length.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Fails only if the buffer is full, but the buffer grows.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests;
