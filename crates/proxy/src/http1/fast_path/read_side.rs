//! Requests in the read buffer.

use std::{mem, ops::Range};

use bytes::Buf as _;
use fairmesh_http::h1::{Decoder, LEAST_READ, Received, plain_request_lacks};
use tokio::io::AsyncRead;

use crate::http1::read_side::ReadSide;

impl<R: AsyncRead + Unpin> ReadSide<R> {
    /// Whether what came is most of a request that is large and need not be taken apart: its sender is about to send the rest,
    /// which were otherwise sent on by itself.
    pub(crate) fn is_nearly_complete(&mut self) -> bool {
        if self.request_len.is_none() {
            self.request_len = plain_request_lacks(&self.input);
        }
        self.request_len.is_some_and(|request_len| self.input.len() < request_len)
    }

    /// Forgets the body of the first request, which lies there and ends it.
    pub(crate) fn discard_body(&mut self, body: Range<usize>) {
        self.discarded = body.len();
        self.input.copy_within(body.end.., body.start);
        let left = self.input.len() - body.len();
        self.input.truncate(left);
        self.input.rest();
    }

    /// How much lies here of the first request, which has this length.
    pub(crate) fn buffered_len(&self, length: usize) -> usize {
        length - self.discarded
    }

    /// The first request as it was read, with no body where that was forgotten.
    pub(crate) fn without_discarded(&mut self, received: Received) -> Received {
        match mem::take(&mut self.discarded) {
            0 => received,
            _ => Received { body: Decoder::absent(), ..received },
        }
    }

    /// Takes the first request out of what came, which has this length.
    pub(crate) fn consume(&mut self, length: usize) {
        let buffered = self.buffered_len(length);
        self.discarded = 0;
        // Emptied, memory can be read into from its beginning.
        if buffered == self.input.len() {
            self.input.clear()
        } else {
            self.input.advance(buffered)
        }
        self.expected_len = if length > LEAST_READ { length } else { 0 };
    }
}
