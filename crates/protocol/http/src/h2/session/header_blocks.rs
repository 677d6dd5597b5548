//! Handles header blocks: requests, responses and trailers.

use http::{StatusCode, header};

#[cfg(test)]
use super::Mutant;
use super::{
    super::{
        Reason, Violation,
        frame::{
            CONTINUATION, DEFAULT_FRAME_SIZE, END_HEADERS, END_STREAM, FrameHeader, HEADERS, PRIORITY_FLAG,
            RST_STREAM, push, u31, unpadded,
        },
        message::{Checked, DecodedRequest, Fields},
    },
    FrameError, GoAwayState, HEADER_LEN, INITIAL_WINDOW, MAX_STREAMS, MAX_TRACKED_STREAMS, Piece, Role,
    Session, StreamEnd, StreamError,
};
use crate::hpack::Block;

/// A header block whose CONTINUATION frames are still to come.
#[derive(Debug)]
pub(super) struct PartialHeaders {
    stream: u32,
    ends: bool,
    /// Whether the deprecated priority fields make the stream depend on itself, which is an error.
    depends_on_itself: bool,
    block: Vec<u8>,
}

/// Returns whether the stream depends on itself, and the block without the priority fields (RFC 9113 5.3).
fn without_priority(head: FrameHeader, block: &[u8]) -> Result<(bool, &[u8]), Violation> {
    if !head.has(PRIORITY_FLAG) {
        return Ok((false, block));
    }
    let too_short = Violation::size("HEADERS is too short for its priority fields");
    let (after, rest) = block.split_first_chunk::<4>().ok_or(too_short)?;
    let (_weight, rest) = rest.split_first().ok_or(too_short)?;
    Ok((u31(*after) == head.stream, rest))
}

impl Session {
    pub(super) fn headers(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        if head.stream.is_multiple_of(2) {
            return Err(Violation::protocol("a stream identifier of a client is even").into());
        }
        self.header_blocks += 1;
        let block =
            unpadded(&head, payload).ok_or(Violation::protocol("the padding exceeds the HEADERS frame"))?;
        let (depends_on_itself, block) = without_priority(head, block)?;
        let begun = PartialHeaders {
            stream: head.stream,
            ends: head.has(END_STREAM),
            depends_on_itself,
            block: Vec::new(),
        };
        if !head.has(END_HEADERS) {
            self.partial_headers = Some(PartialHeaders { block: block.to_vec(), ..begun });
            return Ok(());
        }
        self.on_header_block(&begun, block)
    }

    pub(super) fn continuation(&mut self, head: FrameHeader, payload: &[u8]) -> Result<(), FrameError> {
        let Some(mut partial_headers) =
            self.partial_headers.take().filter(|begun| begun.stream == head.stream)
        else {
            return Err(Violation::protocol("CONTINUATION without HEADERS").into());
        };
        if partial_headers.block.len() + payload.len() > self.role.max_header_block() {
            return Err(Violation::new(Reason::ENHANCE_YOUR_CALM, "a header block is too large").into());
        }
        partial_headers.block.extend_from_slice(payload);
        if !head.has(END_HEADERS) {
            self.partial_headers = Some(partial_headers);
            return Ok(());
        }
        let block = std::mem::take(&mut partial_headers.block);
        self.on_header_block(&partial_headers, &block)
    }

    fn decode(&mut self, block: &[u8]) -> Result<Fields, Violation> {
        let mut fields = Fields::default();
        #[cfg(test)]
        let mut left = if self.mutant == Some(Mutant::DropsField) { 9 } else { usize::MAX };
        let decoded = self.decoder.decode(block, |field| {
            #[cfg(test)]
            {
                left -= 1;
                if left == 0 {
                    return;
                }
            }
            fields.add(field);
        });
        decoded.map_err(|_| Violation::new(Reason::COMPRESSION_ERROR, "a header block cannot be decoded"))?;
        Ok(fields)
    }

    /// Handles a complete header block.
    fn on_header_block(&mut self, begun: &PartialHeaders, block: &[u8]) -> Result<(), FrameError> {
        let fields = self.decode(block)?;
        let PartialHeaders { stream, ends, depends_on_itself, .. } = *begun;
        match self.role {
            Role::Server if stream > self.last_stream => {
                return self.on_request(stream, ends, fields, depends_on_itself);
            }
            Role::Server => {}
            Role::Client => self.check_opened(stream)?,
        }
        match self.streams.get(&stream) {
            Some(open) if !open.is_closed && depends_on_itself => {
                Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR))
            }
            Some(open) if !open.is_closed && !open.has_head => self.on_response(stream, ends, fields),
            Some(open) if !open.is_closed => self.on_trailers(stream, ends, fields),
            _ => self.late_block(stream),
        }
    }

    /// Handles a header block on a closed or skipped stream.
    fn late_block(&self, stream: u32) -> Result<(), FrameError> {
        match self.how_ended(stream) {
            Some(StreamEnd::ResetLocally) => Ok(()),
            // The call of this stream has failed already; other calls on the connection must not fail.
            Some(StreamEnd::ResetRemotely) if self.role == Role::Client => Ok(()),
            Some(StreamEnd::Complete | StreamEnd::ResetRemotely) => {
                Err(Violation::new(Reason::STREAM_CLOSED, "HEADERS on a closed stream").into())
            }
            // Calls may be cancelled faster than the server notices.
            None if self.role == Role::Client => Ok(()),
            None if matches!(self.goaway, GoAwayState::Sent(last) if stream > last) => Ok(()),
            None => Err(Violation::protocol("stream identifiers must increase").into()),
        }
    }

    fn on_trailers(&mut self, stream: u32, ends: bool, fields: Fields) -> Result<(), FrameError> {
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        if open.remote_closed {
            return Err(FrameError::Stream(stream, Reason::STREAM_CLOSED));
        }
        let is_short = open.content_left.is_some_and(|left| left > 0);
        let trailers = match fields.trailers() {
            Checked::Valid(trailers) => trailers,
            Checked::Malformed(why) => {
                tracing::debug!(why, "rejected trailers");
                return Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR));
            }
            Checked::TooLarge => {
                open.error = Some(StreamError::TooLarge);
                return Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR));
            }
        };
        if !ends || is_short {
            return Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR));
        }
        #[cfg(test)]
        let trailers = match self.mutant {
            Some(Mutant::DropsTrailers) => http::HeaderMap::new(),
            _ => trailers,
        };
        if open.has_reader || open.handles == 0 {
            open.received.push_back(Piece::Trailers(Box::new(trailers)));
        }
        self.on_remote_closed(stream);
        Ok(())
    }

    fn on_request(
        &mut self,
        stream: u32,
        ends: bool,
        fields: Fields,
        depends_on_itself: bool,
    ) -> Result<(), FrameError> {
        if matches!(self.goaway, GoAwayState::Sent(last) if stream > last) {
            // GOAWAY has told the client that this stream is not processed.
            return Ok(());
        }
        self.last_stream = stream;
        if depends_on_itself {
            return Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR));
        }
        let is_out_of_memory = !ends && self.unread.exceeds_its_part();
        if self.open >= MAX_STREAMS || self.streams.len() >= MAX_TRACKED_STREAMS || is_out_of_memory {
            return Err(FrameError::Stream(stream, Reason::REFUSED_STREAM));
        }
        match fields.request(ends) {
            Checked::Malformed(why) => {
                tracing::debug!(why, "rejected a request");
                Err(FrameError::Stream(stream, Reason::PROTOCOL_ERROR))
            }
            Checked::TooLarge => {
                self.too_large(stream, ends);
                Ok(())
            }
            Checked::Valid(DecodedRequest { request, length }) => {
                let expects_continue = !ends
                    && request
                        .headers()
                        .get(header::EXPECT)
                        .is_some_and(|what| what.as_bytes().eq_ignore_ascii_case(b"100-continue"));
                let mut begun = self.spare.pop().unwrap_or_default();
                begun.begin(INITIAL_WINDOW, self.initial_send_window, length, ends);
                begun.expects_continue = expects_continue;
                begun.has_head = true;
                begun.has_body = !ends;
                self.streams.insert(stream, begun);
                self.open += 1;
                self.pending_requests.push_back((stream, request));
                Ok(())
            }
        }
    }

    /// Responds with 431: the headers of the request are too large (RFC 6585 5).
    fn too_large(&mut self, stream: u32, ends: bool) {
        self.send_header_block(stream, END_STREAM, |block| {
            block.status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        });
        if !ends {
            push(self.out.buffer(), RST_STREAM, 0, stream, &Reason::NO_ERROR.0.to_be_bytes());
        }
        self.record_end(stream, StreamEnd::ResetLocally);
        self.wake_driver();
    }

    /// Writes a header block in as many frames as needed.
    pub(super) fn send_header_block(&mut self, stream: u32, flags: u8, write: impl FnOnce(&mut Block<'_>)) {
        let out = self.out.buffer();
        let begins = out.len();
        // The length of the frame is filled in afterwards.
        let fields = begins + HEADER_LEN;
        out.resize(fields, 0);
        write(&mut self.encoder.block(out));
        let length = out.len() - fields;
        if length <= DEFAULT_FRAME_SIZE {
            let head = FrameHeader { length, kind: HEADERS, flags: flags | END_HEADERS, stream };
            out[begins..fields].copy_from_slice(&head.bytes());
            return;
        }
        let block = out.split_off(fields);
        out.truncate(begins);
        let last = block.len().div_ceil(DEFAULT_FRAME_SIZE) - 1;
        for (n, piece) in block.chunks(DEFAULT_FRAME_SIZE).enumerate() {
            let (kind, flags) = if n == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
            push(out, kind, if n == last { flags | END_HEADERS } else { flags }, stream, piece);
        }
    }
}
