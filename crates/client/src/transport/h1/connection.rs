mod plain;

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use http::{Response, StatusCode};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf},
    net::TcpStream,
    time::Instant,
};
use tokio_util::task::AbortOnDropHandle;

pub(crate) use self::plain::{Got, Plain};
use super::{
    Alarm, Incoming, Movement, Request, SendError, Sending, Slot, Times, Wait,
    upload::{Upload, UploadError},
};
use crate::{BoxError, stats::OpenConnection};
use fairmesh_headers::{DEADLINE, GRPC_TIMEOUT, encode_grpc_timeout};
use fairmesh_http::{
    h1::{
        self, Decoder, Encoder, Framing, MAX_READ, MIN_READ, ReadBuffer, ReceivedResponse, ResponseReader,
        WriteBuffer,
    },
    informational,
};

/// What the head of an answer may well need, besides its body.
const HEAD: usize = 1024;
/// How far a request has come of which nothing was sent.
const UNBEGUN: Sending = Sending { pieces: 0, unsent: usize::MAX };

/// A connection to a server, by one call at a time. Dropping it closes it.
pub(super) struct Connection<I = TcpStream> {
    io: Io<I>,
    /// What came and belongs to nothing yet.
    input: ReadBuffer,
    output: WriteBuffer,
    /// The size of the last answer: the next one may be alike.
    expected: usize,
    persistent: bool,
    alarm: Alarm,
    open: Option<OpenConnection>,
}

enum Io<I> {
    Whole(I),
    /// The answer began before the request was sent; what is left of that is sent by a task.
    Reading(ReadHalf<I>, AbortOnDropHandle<()>, Arc<Movement>),
}

impl<I> Connection<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Of a fresh stream, which counts as open as long as this is.
    pub(super) fn new(io: I, open: Option<OpenConnection>) -> Self {
        let (input, output, alarm) = (ReadBuffer::default(), WriteBuffer::default(), Alarm::default());
        Self { io: Io::Whole(io), input, output, expected: 0, persistent: true, alarm, open }
    }

    /// Sends the request in the slot and waits for the head of the answer, as long as `times` allow; it may come before all of the
    /// request is sent. While the request stays in the slot, nothing of it was sent.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        slot: &mut Slot,
        times: Option<Times>,
    ) -> Result<Response<Incoming<I>>, SendError> {
        let mut wait = times.map(Wait::new);
        let (mut reader, upload) = self.begin(slot, wait.as_mut()).await?;
        let mut upload = Some(upload);
        let answer = poll_fn(|context| {
            let polled = self.poll_exchange(&mut upload, &mut reader, context);
            let Some(wait) = &mut wait else { return polled };
            let sending = upload.as_ref().map(|upload| upload.sending(&self.output));
            wait.bound(polled, sending, &mut self.alarm, context)
        });
        let answer = answer.await?;
        let ReceivedResponse { head, body, persistent } = answer;
        let switched = head.status() == StatusCode::SWITCHING_PROTOCOLS;
        if switched && upload.is_some() {
            return Err(broken(early_switch()));
        }
        self.persistent &= persistent;
        self.expect(&body);
        let connection = match upload {
            Some(upload) => Box::new(self.finish_later(upload)),
            None => self,
        };
        Ok(head.map(|()| Incoming::new(connection, body, switched)))
    }

    /// Sends the beginning of a request: its head and what is at hand of its body, as far as one write goes.
    async fn begin(
        &mut self,
        slot: &mut Slot,
        mut wait: Option<&mut Wait>,
    ) -> Result<(ResponseReader, Upload), SendError> {
        let Io::Whole(io) = &mut self.io else {
            return Err(SendError::Invalid("the connection is in use".into()));
        };
        let Some(request) = slot.as_mut() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let framing =
            write_head(request, self.output.clear()).map_err(|error| SendError::Invalid(error.into()))?;
        let mut encoder = Encoder::new(framing);
        let chunk = request.body.whole.first().map_or(&[][..], |chunk| chunk);
        let tail = match chunk.len() {
            0 => &[],
            size => encoder
                .data(size, false, self.output.text())
                .map_err(|error| SendError::Body(error.into()))?,
        };
        let copied = self.output.copy_if_short(chunk, tail);
        let (chunk, tail) = if copied { Default::default() } else { (chunk, tail) };
        let (output, alarm) = (&self.output, &mut self.alarm);
        let begun = poll_fn(|context| {
            let begun = output.poll_write_with(io, chunk, tail, context);
            let begun = begun.map_err(|error| SendError::Stale(error.into()));
            match &mut wait {
                Some(wait) => wait.bound(begun, Some(UNBEGUN), alarm, context),
                None => begun,
            }
        });
        let written = begun.await?;
        // Something was sent: from here on it belongs to this connection.
        let Some(Request { head, mut body, .. }) = slot.take() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let chunk = body.whole.pop().filter(|_| !copied);
        self.output.keep_unsent(chunk, tail, written);
        self.persistent = !h1::has_connection_close(&head.headers);
        let reader = ResponseReader::new(&head.method).switching(h1::requests_upgrade(&head.headers));
        Ok((reader.informing(informational::deliver), Upload::new(body, encoder)))
    }

    /// Sends and reads, until the head of the answer is there. `upload` is left where something is still to be sent.
    fn poll_exchange(
        &mut self,
        upload: &mut Option<Upload>,
        reader: &mut ResponseReader,
        context: &mut Context<'_>,
    ) -> Poll<Result<ReceivedResponse, SendError>> {
        if let (Some(sending), Io::Whole(io)) = (&mut *upload, &mut self.io) {
            match sending.poll(&mut self.output, io, context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => *upload = None,
                Poll::Ready(Err(UploadError::Body(error))) => {
                    return Poll::Ready(Err(SendError::Body(error)));
                }
                Poll::Ready(Err(UploadError::Refused)) => {
                    // The server may have answered before it closed, and the answer says why; else reading fails as well.
                    self.persistent = false;
                    *upload = None;
                }
            }
        }
        loop {
            if let Some(answer) = reader.read(&mut self.input).map_err(broken)? {
                return Poll::Ready(Ok(answer));
            }
            if ready!(self.poll_read(self.expected, context)).map_err(broken)? == 0 {
                return Poll::Ready(Err(broken(cut("before it answered"))));
            }
        }
    }

    /// Makes room for the next answer as for this one, which has such a body.
    fn expect(&mut self, body: &Decoder) {
        self.expected = usize::try_from(body.due()).unwrap_or(MAX_READ).saturating_add(HEAD);
    }

    /// Lets a task send what is left of the request, since the caller may not read the answer before it has been sent.
    fn finish_later(self, upload: Upload) -> Self {
        let Self { io, input, output, expected, alarm, open, .. } = self;
        let io = match io {
            Io::Whole(io) => {
                let (reading, writing) = tokio::io::split(io);
                let movement = Arc::new(Movement::new());
                let sending = tokio::spawn(upload.finish(output, writing, Arc::clone(&movement)));
                Io::Reading(reading, AbortOnDropHandle::new(sending), movement)
            }
            reading => reading,
        };
        Self { io, input, output: WriteBuffer::default(), expected, persistent: false, alarm, open }
    }

    /// Reads what comes, which may be more than is due; 0 where the server ended the connection.
    pub(super) fn poll_read(&mut self, due: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Whole(io) => self.input.poll_read(io, due, context),
            Io::Reading(io, ..) => self.input.poll_read(io, due, context),
        }
    }
}

impl<I> Connection<I> {
    /// What came and was not used.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Whether it may carry another call once the answer has ended.
    pub(super) fn is_reusable(&self) -> bool {
        self.persistent && self.input.is_empty() && self.output.is_empty()
    }

    /// Whether a task still sends the request.
    pub(super) fn is_sending(&self) -> bool {
        matches!(&self.io, Io::Reading(_, sending, _) if !sending.is_finished())
    }

    /// When the request last moved, where a task sends the rest of it.
    pub(super) fn last_moved(&self) -> Option<Instant> {
        match &self.io {
            Io::Whole(_) => None,
            Io::Reading(_, _, movement) => Some(movement.last()),
        }
    }

    /// The stream itself, what came on it and belongs to no message, and its count: it carries no messages any more.
    pub(super) fn into_raw(self) -> Option<(I, BytesMut, Option<OpenConnection>)> {
        match self.io {
            Io::Whole(io) => Some((io, self.input.into_bytes(), self.open)),
            Io::Reading(..) => None,
        }
    }

    /// Gives back the memory that nothing lies in.
    pub(super) fn rest(&mut self) {
        self.input.release();
    }

    /// Gives back the memory that a large request took, and that of an answer which was still in use before.
    pub(super) fn shrink(&mut self) {
        self.rest();
        self.output.shrink(MIN_READ);
    }
}

impl Connection {
    /// Whether nothing has come since the last answer, neither bytes nor the end. Asks the system only where the runtime
    /// has heard of something.
    pub(super) fn is_quiet(&self) -> bool {
        match &self.io {
            Io::Whole(io) => {
                matches!(io.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
            Io::Reading(..) => false,
        }
    }
}

/// Writes the head of a request, and says how its body is framed.
fn write_head(request: &Request, out: &mut Vec<u8>) -> Result<Framing, h1::UnsupportedTransferCoding> {
    let Request { head, body, left } = request;
    let framing = Framing::of(&head.method, &head.headers, http_body::Body::size_hint(body).exact())?;
    h1::begin_request(out, &head.method, head.path.as_str(), head.authority.as_str().as_bytes());
    if let Some(left) = *left {
        h1::write_number(out, &DEADLINE, u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if head.grpc {
            h1::write_field(out, &GRPC_TIMEOUT, encode_grpc_timeout(left).as_bytes());
        }
    }
    let own = [DEADLINE, GRPC_TIMEOUT];
    h1::write_fields(out, &head.headers, if head.grpc { &own } else { &own[..1] });
    h1::end_headers(out, framing);
    Ok(framing)
}

/// The server ended the connection too early.
pub(super) fn cut(when: &str) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("the server closed the connection {when}"))
}

/// The server speaks another protocol, and the request is not sent: which of the two its rest would be, nobody can say.
fn early_switch() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server switched protocols before the request was sent")
}

fn broken(error: impl Into<BoxError>) -> SendError {
    SendError::Broken(error.into())
}
