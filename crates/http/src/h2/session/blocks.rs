//! Heads and trailers as they come.

use http::{StatusCode, header};

#[cfg(test)]
use super::Planted;
use super::{
    super::{
        Reason, Violation,
        frame::{
            CONTINUATION, END_HEADERS, END_STREAM, HEADERS, Head, PRIORITIZED, RST_STREAM, USUAL, number,
            push, unpadded,
        },
        message::{Asked, Fields, Made},
    },
    Ended, Goodbye, HEAD, Lost, MOST_KNOWN, MOST_STREAMS, Piece, STREAM_WINDOW, Session, Side, Wrong,
};
use crate::hpack::Block;

/// A head of which more is to come.
#[derive(Debug)]
pub(super) struct Beginning {
    stream: u32,
    ends: bool,
    /// It asks for what cannot be, in an order of streams that nobody follows.
    is_after_itself: bool,
    block: Vec<u8>,
}

/// Whether a stream is to come after itself, and what comes after that (RFC 9113 5.3).
fn without_priority(head: Head, block: &[u8]) -> Result<(bool, &[u8]), Violation> {
    if !head.has(PRIORITIZED) {
        return Ok((false, block));
    }
    let too_short = Violation::size("HEADERS is too short for the priority that it says it has");
    let (after, rest) = block.split_first_chunk::<4>().ok_or(too_short)?;
    let (_weight, rest) = rest.split_first().ok_or(too_short)?;
    Ok((number(*after) == head.stream, rest))
}

impl Session {
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        if head.stream.is_multiple_of(2) {
            return Err(Violation::protocol("streams have odd numbers").into());
        }
        let block = unpadded(&head, payload).ok_or(Violation::protocol("there is more padding than head"))?;
        let (is_after_itself, block) = without_priority(head, block)?;
        let begun =
            Beginning { stream: head.stream, ends: head.has(END_STREAM), is_after_itself, block: Vec::new() };
        if !head.has(END_HEADERS) {
            self.beginning = Some(Beginning { block: block.to_vec(), ..begun });
            return Ok(());
        }
        self.block(&begun, block)
    }

    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), Wrong> {
        let Some(mut beginning) = self.beginning.take().filter(|begun| begun.stream == head.stream) else {
            return Err(Violation::protocol("CONTINUATION of no head").into());
        };
        if beginning.block.len() + payload.len() > self.side.longest_head() {
            return Err(Violation::new(Reason::ENHANCE_YOUR_CALM, "a head has no end").into());
        }
        beginning.block.extend_from_slice(payload);
        if !head.has(END_HEADERS) {
            self.beginning = Some(beginning);
            return Ok(());
        }
        let block = std::mem::take(&mut beginning.block);
        self.block(&beginning, &block)
    }

    fn decode(&mut self, block: &[u8]) -> Result<Fields, Violation> {
        let mut fields = Fields::default();
        #[cfg(test)]
        let mut left = if self.planted == Some(Planted::OneFieldLess) { 9 } else { usize::MAX };
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
        decoded.map_err(|_| {
            Violation::new(Reason::COMPRESSION_ERROR, "the fields of a head cannot be decoded")
        })?;
        Ok(fields)
    }

    /// A whole block of fields.
    fn block(&mut self, begun: &Beginning, block: &[u8]) -> Result<(), Wrong> {
        let fields = self.decode(block)?;
        let Beginning { stream, ends, is_after_itself, .. } = *begun;
        match self.side {
            Side::Asked if stream > self.last => return self.request(stream, ends, fields, is_after_itself),
            Side::Asked => {}
            Side::Asking => self.has_begun(stream)?,
        }
        match self.streams.get(&stream) {
            Some(open) if !open.is_over && is_after_itself => {
                Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR))
            }
            Some(open) if !open.is_over && !open.has_head => self.answer(stream, ends, fields),
            Some(open) if !open.is_over => self.trailers(stream, ends, fields),
            _ => self.late_block(stream),
        }
    }

    /// Fields on a stream that has ended, or was passed over.
    fn late_block(&self, stream: u32) -> Result<(), Wrong> {
        match self.how_ended(stream) {
            Some(Ended::Here) => Ok(()),
            // Its call is lost already, and others are not to be.
            Some(Ended::There) if self.side == Side::Asking => Ok(()),
            Some(Ended::Whole | Ended::There) => {
                Err(Violation::new(Reason::STREAM_CLOSED, "a head came on a stream that has ended").into())
            }
            // Calls may be given up faster than a server hears of it.
            None if self.side == Side::Asking => Ok(()),
            None if matches!(self.goodbye, Goodbye::Said(last) if stream > last) => Ok(()),
            None => Err(Violation::protocol("streams begin in the order of their numbers").into()),
        }
    }

    fn trailers(&mut self, stream: u32, ends: bool, fields: Fields) -> Result<(), Wrong> {
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        if open.has_ended {
            return Err(Wrong::Stream(stream, Reason::STREAM_CLOSED));
        }
        let is_short = open.left.is_some_and(|left| left > 0);
        let trailers = match fields.trailers() {
            Made::Whole(trailers) => trailers,
            Made::Malformed(why) => {
                tracing::debug!(why, "trailers were refused");
                return Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR));
            }
            Made::TooLarge => {
                open.lost = Some(Lost::TooLarge);
                return Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR));
            }
        };
        if !ends || is_short {
            return Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR));
        }
        #[cfg(test)]
        let trailers = match self.planted {
            Some(Planted::NoTrailers) => http::HeaderMap::new(),
            _ => trailers,
        };
        if open.is_read || open.handles == 0 {
            open.came.push_back(Piece::Trailers(Box::new(trailers)));
        }
        self.heard_out(stream);
        Ok(())
    }

    fn request(
        &mut self,
        stream: u32,
        ends: bool,
        fields: Fields,
        is_after_itself: bool,
    ) -> Result<(), Wrong> {
        if matches!(self.goodbye, Goodbye::Said(last) if stream > last) {
            // Whoever sent it knows by now that nobody looks at it.
            return Ok(());
        }
        self.last = stream;
        if is_after_itself {
            return Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR));
        }
        if self.open >= MOST_STREAMS || self.streams.len() >= MOST_KNOWN {
            return Err(Wrong::Stream(stream, Reason::REFUSED_STREAM));
        }
        match fields.request(ends) {
            Made::Malformed(why) => {
                tracing::debug!(why, "a request was refused");
                Err(Wrong::Stream(stream, Reason::PROTOCOL_ERROR))
            }
            Made::TooLarge => {
                self.too_large(stream, ends);
                Ok(())
            }
            Made::Whole(Asked { request, length }) => {
                let expects = !ends
                    && request
                        .headers()
                        .get(header::EXPECT)
                        .is_some_and(|what| what.as_bytes().eq_ignore_ascii_case(b"100-continue"));
                let mut begun = self.spare.pop().unwrap_or_default();
                begun.begin(STREAM_WINDOW, self.first_room, length, ends);
                begun.expects = expects;
                begun.has_head = true;
                begun.has_body = !ends;
                self.streams.insert(stream, begun);
                self.open += 1;
                self.fresh.push_back((stream, request));
                Ok(())
            }
        }
    }

    /// Tells a program that the head of its request is too large (RFC 6585 5).
    fn too_large(&mut self, stream: u32, ends: bool) {
        self.say_block(stream, END_STREAM, |block| block.status(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        if !ends {
            push(self.out.text(), RST_STREAM, 0, stream, &Reason::NO_ERROR.0.to_be_bytes());
        }
        self.remember(stream, Ended::Here);
        self.wake_driver();
    }

    /// Writes a block of fields, in as many frames as it takes.
    pub(super) fn say_block(&mut self, stream: u32, flags: u8, write: impl FnOnce(&mut Block<'_>)) {
        let out = self.out.text();
        let begins = out.len();
        // How long it gets is known when it is there.
        let fields = begins + HEAD;
        out.resize(fields, 0);
        write(&mut self.encoder.block(out));
        let length = out.len() - fields;
        if length <= USUAL {
            let head = Head { length, kind: HEADERS, flags: flags | END_HEADERS, stream };
            out[begins..fields].copy_from_slice(&head.bytes());
            return;
        }
        let block = out.split_off(fields);
        out.truncate(begins);
        let last = block.len().div_ceil(USUAL) - 1;
        for (n, piece) in block.chunks(USUAL).enumerate() {
            let (kind, flags) = if n == 0 { (HEADERS, flags) } else { (CONTINUATION, 0) };
            push(out, kind, if n == last { flags | END_HEADERS } else { flags }, stream, piece);
        }
    }
}
