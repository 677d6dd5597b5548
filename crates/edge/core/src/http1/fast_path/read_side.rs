//! The first request in the read buffer, for the fast path.

use std::{mem, ops::Range};

use bytes::Buf as _;
use fairmesh_http::h1::{Decoder, MIN_READ, ReceivedRequest, nearly_complete_request};
use tokio::io::AsyncRead;

use crate::http1::read_side::ReadSide;

impl<R: AsyncRead + Unpin> ReadSide<R> {
    /// Whether most of a large request that qualifies for the fast path is buffered. Its client is about to send the
    /// rest, which would otherwise be forwarded in a separate write.
    pub(crate) fn is_nearly_complete(&mut self) -> bool {
        if self.request_len.is_none() {
            self.request_len = nearly_complete_request(&self.input, fairmesh_headers::is_mesh_header);
        }
        self.request_len.is_some_and(|request_len| self.input.len() < request_len)
    }

    /// Discards the body of the first request, which is at the end of the request.
    pub(crate) fn discard_body(&mut self, body: Range<usize>) {
        self.discarded = body.len();
        self.input.copy_within(body.end.., body.start);
        let left = self.input.len() - body.len();
        self.input.truncate(left);
        self.input.release();
    }

    /// Buffered bytes of the first request, whose length on the wire is `length`.
    pub(crate) fn buffered_len(&self, length: usize) -> usize {
        length - self.discarded
    }

    /// Returns the parsed request, without its body if the body was discarded.
    pub(crate) fn without_discarded(&mut self, received: ReceivedRequest) -> ReceivedRequest {
        match mem::take(&mut self.discarded) {
            0 => received,
            _ => ReceivedRequest { body: Decoder::absent(), ..received },
        }
    }

    /// Removes the first request, whose length on the wire is `length`, from the buffer.
    pub(crate) fn consume(&mut self, length: usize) {
        let buffered = self.buffered_len(length);
        self.discarded = 0;
        // An empty buffer is reused from its beginning.
        if buffered == self.input.len() {
            self.input.clear()
        } else {
            self.input.advance(buffered)
        }
        self.expected_len = if length > MIN_READ { length } else { 0 };
    }
}
