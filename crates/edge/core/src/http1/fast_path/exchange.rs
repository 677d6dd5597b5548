//! Forwards a request and its response without building messages from them.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_calls::BoxError;
use fairmesh_http::{
    h1::{BorrowedResponse, WriteBuffer, thread_buffers},
    informational,
};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{
        connection::{Connection, KEEP_CAPACITY, ReadState},
        connection_end::ConnectionError,
        date::Date,
        request_body::IncomingBody,
        request_offload::Offload,
    },
    shutdown::Shutdown,
};

/// Writes a response to the client.
pub(crate) struct ResponseWriter<'a, W> {
    writer: &'a mut W,
    output: &'a mut WriteBuffer,
    date: &'a mut Date,
}

impl<W: AsyncWrite + Unpin> ResponseWriter<'_, W> {
    /// Writes as much of a response as the socket accepts, and buffers the rest. Returns whether everything
    /// was written. `closes` says whether the connection ends after the response.
    pub(crate) fn send(
        &mut self,
        response: &BorrowedResponse<'_>,
        closes: bool,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        thread_buffers::with_write_buffer(|text| {
            response.write(text, || self.date.now(), closes);
            let rest = thread_buffers::append_short(text, response.body);
            self.write([text, rest], context)
        })
    }

    fn write(&mut self, parts: [&[u8]; 2], context: &mut Context<'_>) -> io::Result<bool> {
        let mut writer = Pin::new(&mut *self.writer);
        let wrote = match parts {
            [text, []] => writer.as_mut().poll_write(context, text),
            parts => writer.as_mut().poll_write_vectored(context, &parts.map(IoSlice::new)),
        };
        let written = match wrote? {
            Poll::Ready(0) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(written) => written,
            Poll::Pending => 0,
        };
        let kept = self.output.clear();
        thread_buffers::keep_unsent(kept, parts, written);
        // Flushing a TCP socket does nothing. TLS may hold data that the socket did not accept.
        Ok(kept.is_empty() && writer.poll_flush(context)?.is_ready())
    }
}

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Unparsed bytes, beginning with the next request.
    pub(crate) fn input(&self) -> &[u8] {
        match &self.source {
            ReadState::Owned(read_side) => &read_side.input,
            ReadState::Lent(_) | ReadState::Unframed(_) | ReadState::Lost => &[],
        }
    }

    /// Discards the body of the first request and frees its memory.
    pub(crate) fn discard_body(&mut self, body: Range<usize>) {
        if let ReadState::Owned(read_side) = &mut self.source {
            read_side.discard_body(body);
        }
    }

    /// Polls until the response to the first request is being sent, or the fast path ends. `length` is the length of
    /// the request in bytes. Detects disconnects.
    pub(crate) async fn forward<T>(
        &mut self,
        length: usize,
        mut poll: impl FnMut(ResponseWriter<'_, W>, &mut Context<'_>) -> Poll<T>,
    ) -> Result<T, ConnectionError> {
        self.forwarded_len = match &self.source {
            ReadState::Owned(read_side) => read_side.buffered_len(length),
            ReadState::Lent(_) | ReadState::Unframed(_) | ReadState::Lost => 0,
        };
        let answered = poll_fn(|context| {
            let Self { writer, output, date, .. } = self;
            let (answered, before) =
                informational::collect(|| poll(ResponseWriter { writer, output, date }, context));
            // A response that follows an informational one takes the slow path and is sent after it. Requests
            // on the fast path are HTTP/1.1.
            self.write_informational_responses(&before);
            if let Poll::Ready(answered) = answered {
                return Poll::Ready(Ok(answered));
            }
            if !self.output.is_empty()
                && let Poll::Ready(Err(error)) = self.output.poll_flush(&mut self.writer, context)
            {
                return Poll::Ready(Err(error.into()));
            }
            ready!(self.poll_disconnect(context));
            Poll::Ready(Err(ConnectionError::Disconnected))
        });
        let answered = answered.await;
        self.forwarded_len = 0;
        answered
    }

    /// Sends the rest of the response, unless `sent` says that it was sent completely, and continues with the next
    /// request. `length` is the length of the first request in bytes.
    pub(crate) async fn finish_response(&mut self, sent: bool, length: usize) -> Result<(), ConnectionError> {
        if !sent {
            self.flush().await?;
            self.output.shrink(KEEP_CAPACITY);
        }
        if let ReadState::Owned(read_side) = &mut self.source {
            read_side.consume(length);
        }
        self.requests.note_request();
        self.unparsed = true;
        Ok(())
    }

    /// Parses the first request, which is complete except for a discarded body, and handles it on the slow
    /// path. Returns whether the connection may carry another request.
    pub(crate) async fn parse_and_handle<A, F, B>(
        &mut self,
        handle: A,
        shutdown: &Shutdown,
    ) -> Result<bool, ConnectionError>
    where
        A: FnOnce(Request<IncomingBody<R>>) -> F,
        F: Future<Output = Response<B>>,
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let received = match &mut self.source {
            ReadState::Owned(read_side) => {
                let received = self.requests.read(&mut read_side.input);
                received.map(|found| found.map(|received| read_side.without_discarded(received)))
            }
            ReadState::Lent(_) | ReadState::Unframed(_) | ReadState::Lost => Ok(None),
        };
        match received {
            Ok(Some(received)) => self.exchange(received, handle, shutdown).await,
            // A request that the fast path accepts is valid for the parser.
            Ok(None) | Err(_) => Err(ConnectionError::UnexpectedEof),
        }
    }
}
