//! Requests that are answered without being taken apart.

use std::{
    future::{Future, poll_fn},
    io::{self, IoSlice},
    ops::Range,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_http::{
    h1::{Outbox, PlainAnswer, scratch},
    informational,
};
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{
        connection::{Connection, KEEP_CAPACITY, ReadState},
        date::Date,
        outcome::ConnectionError,
        request_body::IncomingBody,
    },
    lifecycle::shutdown::Shutdown,
};

/// Where an answer goes.
pub(crate) struct ResponseWriter<'a, W> {
    writer: &'a mut W,
    output: &'a mut Outbox,
    date: &'a mut Date,
}

impl<W: AsyncWrite + Unpin> ResponseWriter<'_, W> {
    /// Sends an answer as far as that goes now, and keeps what does not; whether that was all. `closes`: whether the connection
    /// ends with it.
    pub(crate) fn send(
        &mut self,
        response: &PlainAnswer<'_>,
        closes: bool,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        scratch::text(|text| {
            response.write(text, || self.date.now(), closes);
            let rest = scratch::follow(text, response.body);
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
        scratch::unsent(kept, parts, written);
        // A socket has nothing to flush; TLS keeps what the socket below did not take.
        Ok(kept.is_empty() && writer.poll_flush(context)?.is_ready())
    }
}

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// What came and was not used, the next request first.
    pub(crate) fn input(&self) -> &[u8] {
        match &self.source {
            ReadState::Owned(read_side) => &read_side.input,
            ReadState::Lent(_) | ReadState::Unframed(_) | ReadState::Lost => &[],
        }
    }

    /// Forgets the body of the first request, which lies there, and gives its memory back: it is needed no more.
    pub(crate) fn discard_body(&mut self, body: Range<usize>) {
        if let ReadState::Owned(read_side) = &mut self.source {
            read_side.discard_body(body);
        }
    }

    /// Waits until `poll` has begun to send an answer to the first request, which has this length, or has nothing more to wait
    /// for; and for the program to give up.
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
                informational::during(|| poll(ResponseWriter { writer, output, date }, context));
            // What comes behind one is taken apart, and sent behind it. A plain request is of HTTP/1.1.
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

    /// Sends the rest of the answer to the first request, which has this length, where not all of it is `sent`, and goes on to
    /// the next one.
    pub(crate) async fn finish_response(&mut self, sent: bool, length: usize) -> Result<(), ConnectionError> {
        if !sent {
            self.flush().await?;
            self.output.shrink(KEEP_CAPACITY);
        }
        if let ReadState::Owned(read_side) = &mut self.source {
            read_side.consume(length);
        }
        self.requests.passed();
        self.unparsed = true;
        Ok(())
    }

    /// Has the first request, which is whole but for what was forgotten, answered as one that is taken apart; whether the connection
    /// may carry another.
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
            // What is plain is a request by every reader.
            Ok(None) | Err(_) => Err(ConnectionError::UnexpectedEof),
        }
    }
}
