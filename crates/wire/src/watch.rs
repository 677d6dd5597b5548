//! Watches: connections that carry messages of the RIB and nothing else, laid out as `rib.proto` says.
//!
//! A stream of gRPC was rejected. With ten thousand watchers of one change, HTTP/2 with its windows, its tasks for each
//! connection and its copies of every message cost two thirds of the processor time of a delivery; here a message that many are
//! sent is encoded once, and what is left of a delivery is little more than the call that gives it to the system.

mod pipe;
mod reader;
mod server;

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
pub use reader::Watch;
pub use server::Watched;

use crate::v1::WatchResponse;

/// What a watch begins with; HTTP/2 begins with other bytes.
pub(crate) const PREAMBLE: [u8; 8] = *b"FMWATCH1";

/// After how long without a word the reader asks whether the other side is there, and how long the answer may take.
const PROBE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// After how long without a word the server takes the reader for gone: it should have asked once and been late.
const SILENCE: Duration = Duration::from_secs(20);

/// How long the server waits for the rest of a request that has begun. It is looked at when the watch has been silent, too, so
/// that it may take up to [`SILENCE`] more to be noticed.
const FRAME: Duration = Duration::from_secs(10);

/// The longest request, in bytes: prefixes, cursors and addresses are far below.
const MAX_REQUEST: usize = 64 * 1024;

/// The bytes of a frame's length.
const HEAD: usize = 4;

/// A message as it goes over the connection, to be [sent](Watched::send) to any number of watchers.
pub fn frame(message: &WatchResponse) -> Bytes {
    framed(message)
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEAD + length);
    // Messages are bounded far below by those who make them; a longer one would be refused by its length.
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Fails for want of room only, and the buffer grows.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

#[cfg(test)]
mod tests;
