use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use fairmesh_wire::transport::Stream;
use http::{Method, Response, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf},
    time::Instant,
};

use super::{
    response_body::ResponseBody,
    upload::{Upload, UploadError},
};
use crate::{
    abort_on_drop::AbortOnDrop,
    attempt_waits::{AttemptTimeouts, ResponseWait, SendProgress, UploadActivity},
    counters::OpenConnection,
    error::{SendError, Unanswered},
    lent_connection::{ConnectionOwner, EndpointConnection, OwnedConnection},
    raw_connection::RawConnection,
    request::{PendingRequest, Request},
    timer::DeadlineTimer,
};
use fairmesh_headers::{DEADLINE, GRPC_TIMEOUT, encode_grpc_timeout};
use fairmesh_http::{
    BoxError,
    h1::{
        self, Decoder, Encoder, Framing, MAX_READ, MIN_READ, ReadBuffer, ReceivedResponse, ResponseReader,
        WriteBuffer,
    },
    informational,
};

/// Size of a typical response head, in bytes.
const HEAD: usize = 1024;
/// Progress of a request of which nothing was sent.
const UNBEGUN: SendProgress = SendProgress { pieces: 0, unsent: usize::MAX };

/// A connection to a server, used by one call at a time. Dropping it closes the connection.
pub(crate) struct Connection<I = Stream> {
    pub(super) io: Io<I>,
    /// Bytes read and not yet parsed.
    pub(super) input: ReadBuffer,
    pub(super) output: WriteBuffer,
    /// Size of the last response, an estimate for the next one.
    pub(super) expected: usize,
    pub(super) persistent: bool,
    pub(super) timer: DeadlineTimer,
    open: Option<OpenConnection>,
    /// Owner that takes the connection back after the response; `None` for connections of the pool.
    owner: Option<Box<dyn ConnectionOwner>>,
}

pub(super) enum Io<I> {
    Whole(I),
    /// The response began before the request was fully sent; a task sends the rest of the request.
    Reading(ReadHalf<I>, AbortOnDrop, Arc<UploadActivity>),
}

impl<I> Connection<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Wraps a new stream; `open` counts the connection as open while it lives.
    pub(super) fn new(io: I, open: Option<OpenConnection>) -> Self {
        let (input, output, timer) =
            (ReadBuffer::default(), WriteBuffer::default(), DeadlineTimer::default());
        Self { io: Io::Whole(io), input, output, expected: 0, persistent: true, timer, open, owner: None }
    }

    /// Sends the pending request and waits for the head of the response, within `timeouts`. The head may arrive
    /// before the whole request is sent. While `pending` holds the request, nothing of it was sent.
    pub(super) async fn exchange(
        mut self: Box<Self>,
        pending: &mut PendingRequest,
        timeouts: Option<AttemptTimeouts>,
    ) -> Result<Response<ResponseBody<I>>, SendError> {
        let mut wait = timeouts.map(ResponseWait::new);
        let (reader, upload) = self.begin(pending, wait.as_mut()).await?;
        self.receive(reader, Some(upload), wait).await
    }

    /// Waits for the head of the response while sending the rest of the request.
    pub(super) async fn receive(
        mut self: Box<Self>,
        mut reader: ResponseReader,
        mut upload: Option<Upload>,
        mut wait: Option<ResponseWait>,
    ) -> Result<Response<ResponseBody<I>>, SendError> {
        let response = poll_fn(|context| {
            let polled = self.poll_exchange(&mut upload, &mut reader, context);
            let Some(wait) = &mut wait else { return polled };
            let progress = upload.as_ref().map(|upload| upload.progress(&self.output));
            wait.bound(polled, progress, &mut self.timer, context)
        });
        let ReceivedResponse { head, body, persistent } = response.await?;
        if let Some(owner) = &self.owner {
            owner.note_status(head.status());
        }
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
        Ok(head.map(|()| ResponseBody::new(connection, body, switched)))
    }

    /// Sends the beginning of a request: its head and the buffered part of its body, as far as one write goes.
    async fn begin(
        &mut self,
        pending: &mut PendingRequest,
        mut wait: Option<&mut ResponseWait>,
    ) -> Result<(ResponseReader, Upload), SendError> {
        let Io::Whole(io) = &mut self.io else {
            return Err(SendError::Invalid("the connection is in use".into()));
        };
        let Some(request) = pending.as_mut() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        h1::join_cookies(&mut request.head.headers);
        let framing =
            write_head(request, self.output.clear()).map_err(|error| SendError::Invalid(error.into()))?;
        let mut encoder = Encoder::new(framing);
        let chunk = request.body.buffered.first().map_or(&[][..], |chunk| chunk);
        let tail = match chunk.len() {
            0 => &[],
            size => encoder
                .data(size, false, self.output.text())
                .map_err(|error| SendError::Body(error.into()))?,
        };
        let copied = self.output.copy_if_short(chunk, tail);
        let (chunk, tail) = if copied { Default::default() } else { (chunk, tail) };
        let (output, timer) = (&self.output, &mut self.timer);
        let begun = poll_fn(|context| {
            let begun = output.poll_write_with(io, chunk, tail, context);
            let begun = begun.map_err(|error| SendError::Stale(error.into()));
            match &mut wait {
                Some(wait) => wait.bound(begun, Some(UNBEGUN), timer, context),
                None => begun,
            }
        });
        let written = begun.await?;
        // A part of the request was sent, so from here on the request is bound to this connection.
        let Some(Request { head, mut body, .. }) = pending.take() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let chunk = body.buffered.pop().filter(|_| !copied);
        self.output.keep_unsent(chunk, tail, written);
        self.persistent = !h1::has_connection_close(&head.headers);
        let reader = response_reader(&head.method).switching(h1::requests_upgrade(&head.headers));
        Ok((reader, Upload::new(body, encoder)))
    }

    /// Sends and reads until the head of the response has arrived. `upload` stays `Some` if a part of the request is
    /// still unsent.
    fn poll_exchange(
        &mut self,
        upload: &mut Option<Upload>,
        reader: &mut ResponseReader,
        context: &mut Context<'_>,
    ) -> Poll<Result<ReceivedResponse, SendError>> {
        if let (Some(uploading), Io::Whole(io)) = (&mut *upload, &mut self.io) {
            match uploading.poll(&mut self.output, io, context) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => *upload = None,
                Poll::Ready(Err(UploadError::Body(error))) => {
                    return Poll::Ready(Err(SendError::Body(error)));
                }
                Poll::Ready(Err(UploadError::Refused)) => {
                    // The server may have responded before it closed the connection, and the response explains why; if
                    // not, reading fails as well.
                    self.persistent = false;
                    *upload = None;
                }
            }
        }
        loop {
            if let Some(response) = reader.read(&mut self.input).map_err(broken)? {
                return Poll::Ready(Ok(response));
            }
            let is_unanswered = reader.has_read_nothing() && self.input.is_empty();
            let ended = match ready!(self.poll_read(self.expected, context)) {
                Ok(1..) => continue,
                Ok(0) => closed("before it responded"),
                Err(error) => error,
            };
            return Poll::Ready(Err(match is_unanswered {
                true if ended.kind() != ErrorKind::ConnectionRefused => broken(Unanswered(ended)),
                _ => unread(ended),
            }));
        }
    }

    /// Reserves read space for the next response, which is assumed to be as long as this one.
    pub(super) fn expect(&mut self, body: &Decoder) {
        self.expected = usize::try_from(body.due()).unwrap_or(MAX_READ).saturating_add(HEAD);
    }

    /// Spawns a task that sends the rest of the request, since the caller may not read the response before the request
    /// is sent.
    pub(super) fn finish_later(self, upload: Upload) -> Self {
        let Self { io, input, output, expected, timer, open, owner, .. } = self;
        let io = match io {
            Io::Whole(io) => {
                let (reading, writing) = tokio::io::split(io);
                let activity = Arc::new(UploadActivity::new());
                let sending = tokio::spawn(upload.finish(output, writing, Arc::clone(&activity)));
                Io::Reading(reading, AbortOnDrop(sending), activity)
            }
            reading => reading,
        };
        let output = WriteBuffer::default();
        Self { io, input, output, expected, persistent: false, timer, open, owner }
    }

    /// Reads available bytes, which may be more than `due`. Returns 0 if the server closed the connection.
    pub(super) fn poll_read(&mut self, due: usize, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Io::Whole(io) => self.input.poll_read(io, due, context),
            Io::Reading(io, ..) => self.input.poll_read(io, due, context),
        }
    }
}

impl<I> Connection<I> {
    /// Bytes read and not yet parsed.
    pub(super) fn input(&mut self) -> &mut BytesMut {
        &mut self.input
    }

    /// Whether the connection may carry another call once the response has ended.
    pub(super) fn is_reusable(&self) -> bool {
        self.persistent && self.input.is_empty() && self.output.is_empty()
    }

    /// Whether a task is still sending the request.
    pub(super) fn is_sending(&self) -> bool {
        matches!(&self.io, Io::Reading(_, sending, _) if !sending.0.is_finished())
    }

    /// Time at which the request last progressed, if a task is sending the rest of it.
    pub(super) fn last_moved(&self) -> Option<Instant> {
        match &self.io {
            Io::Whole(_) => None,
            Io::Reading(_, _, activity) => Some(activity.last()),
        }
    }

    /// Returns the bare stream, which no longer carries HTTP messages.
    pub(super) fn into_raw(self) -> Option<RawConnection<I>> {
        match self.io {
            Io::Whole(io) => Some(RawConnection { io, input: self.input.into_bytes(), _open: self.open }),
            Io::Reading(..) => None,
        }
    }

    /// Releases empty buffers.
    pub(super) fn release_empty(&mut self) {
        self.input.release();
    }

    /// Releases the memory of a large request, and of a response that was still in use before.
    pub(super) fn shrink(&mut self) {
        self.release_empty();
        self.output.shrink(MIN_READ);
    }
}

impl Connection {
    /// Wraps a connection on which its owner has sent a request.
    pub(super) fn owned(OwnedConnection { connection, owner }: OwnedConnection) -> Self {
        let mut owned = Self::new(Stream::Tcp(connection.stream), connection.open);
        owned.input.append(&connection.read);
        owned.owner = Some(owner);
        owned
    }

    /// Returns the connection to its owner. Returns `Some` if it has no owner.
    pub(super) fn into_unowned(mut self: Box<Self>) -> Option<Box<Self>> {
        let Some(owner) = self.owner.take() else { return Some(self) };
        // An owned connection was plain TCP when its owner lent it.
        if let Io::Whole(Stream::Tcp(stream)) = self.io {
            owner.take_back(EndpointConnection { stream, read: BytesMut::new(), open: self.open });
        }
        None
    }

    /// Whether nothing has arrived since the last response: neither bytes nor the end of the connection.
    pub(super) fn is_quiet(&mut self) -> bool {
        match &mut self.io {
            Io::Whole(io) => io.is_quiet(),
            Io::Reading(..) => false,
        }
    }
}

/// Returns a reader for the response to a request with this method that may not switch protocols.
pub(super) fn response_reader(method: &Method) -> ResponseReader {
    ResponseReader::new(method).informing(informational::deliver)
}

/// Writes the head of a request. Returns the framing of its body.
fn write_head(request: &Request, out: &mut Vec<u8>) -> Result<Framing, h1::UnsupportedTransferCoding> {
    let Request { head, body, left } = request;
    let length = http_body::Body::size_hint(body).exact();
    // Only a chunked body can have trailers (RFC 9112 7.1.2).
    let has_trailers = body.buffered.trailers().is_some() || head.headers.contains_key(header::TRAILER);
    let framing = match Framing::of(&head.method, &head.headers, length)? {
        Framing::Length(1..) if has_trailers => Framing::Chunked,
        framing => framing,
    };
    h1::begin_request(out, &head.method, head.path.as_str(), head.authority.as_str().as_bytes());
    if let Some(left) = *left {
        h1::write_number(out, &DEADLINE, u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if head.grpc {
            h1::write_field(out, &GRPC_TIMEOUT, encode_grpc_timeout(left).as_bytes());
        }
    }
    let own = [DEADLINE, GRPC_TIMEOUT];
    h1::write_fields(out, &head.headers, if head.grpc { &own } else { &own[..1] });
    if let Some(trailers) = body.buffered.trailers()
        && !head.headers.contains_key(header::TRAILER)
    {
        let names: Vec<_> = trailers.keys().map(header::HeaderName::as_str).collect();
        h1::write_field(out, &header::TRAILER, names.join(", ").as_bytes());
    }
    h1::end_headers(out, framing);
    Ok(framing)
}

/// Error: the server closed the connection too early.
pub(super) fn closed(when: &str) -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, format!("the server closed the connection {when}"))
}

/// Error: the server switched protocols before the request was sent, so the rest of the request would be ambiguous.
fn early_switch() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the server switched protocols before the request was sent")
}

/// Converts an error while reading the response. If the server rejected this program before it read the request, the
/// error kind is that of a failed connect.
pub(super) fn unread(error: io::Error) -> SendError {
    match error.kind() {
        ErrorKind::ConnectionRefused => SendError::Refused(error.into()),
        _ => broken(error),
    }
}

pub(super) fn broken(error: impl Into<BoxError>) -> SendError {
    SendError::Broken(error.into())
}
