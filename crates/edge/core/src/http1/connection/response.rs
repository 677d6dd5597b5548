//! Writes responses.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_calls::BoxError;
use fairmesh_http::{
    ResponseDeadline,
    h1::{Encoder, Framing, ResponseContext, write_response},
};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

#[cfg(test)]
use crate::http1::connection::Mutation;
use crate::http1::{
    connection::{Connection, KEEP_CAPACITY},
    connection_end::ConnectionError,
    request_offload::Offload,
};

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Writes a response; returns whether the connection may carry another.
    pub(crate) async fn respond<B>(
        &mut self,
        response: Response<B>,
        asked: ResponseContext,
        persistent: bool,
    ) -> Result<bool, ConnectionError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (head, body) = response.into_parts();
        let switches = self.pending_upgrade.is_some();
        // The server switched protocols without being asked, or before the request was read: a protocol
        // error.
        let astray = !switches && (head.status.is_informational() || asked.switches_protocol(head.status));
        let (status, headers) =
            if astray { (StatusCode::BAD_GATEWAY, HeaderMap::new()) } else { (head.status, head.headers) };
        let persistent = persistent && !astray && !switches;
        let length = if astray { Some(0) } else { body.size_hint().exact() };
        let date = || self.date.now();
        let framing =
            write_response(self.output.clear(), (status, &headers), asked, (length, persistent), date);
        #[cfg(test)]
        let framing = match self.mutation {
            Some(Mutation::NoChunks) if framing == Framing::Chunked => Framing::UntilClose,
            _ => framing,
        };
        if persistent && framing != Framing::UntilClose {
            let body = match framing {
                Framing::Absent => Some(0),
                Framing::Length(length) => Some(length),
                Framing::Chunked | Framing::UntilClose => None,
            };
            self.note_served(body.map(|body| self.output.len() as u64 + body));
        }
        let deadline = head.extensions.get::<ResponseDeadline>().map(|deadline| deadline.0);
        self.send_body(pin!(body), Encoder::new(framing), asked, deadline).await?;
        self.output.shrink(KEEP_CAPACITY);
        Ok(persistent && framing != Framing::UntilClose)
    }

    /// Sends the headers, which are already in the buffer, and the body.
    pub(crate) async fn send_body<B>(
        &mut self,
        mut body: Pin<&mut B>,
        mut encoder: Encoder,
        asked: ResponseContext,
        deadline: Option<Instant>,
    ) -> Result<(), ConnectionError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        while !encoder.is_done() {
            // The headers wait for body data that is ready now, but not for more.
            let frame = match poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.flush_by(deadline).await?;
                    poll_fn(|context| self.poll_frame(body.as_mut(), context)).await?
                }
            };
            let frame = frame.transpose().map_err(|error| ConnectionError::Response(error.into()))?;
            match frame.map(Frame::into_data) {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => {
                    let tail = encoder.data(chunk.len(), body.is_end_stream(), self.output.text())?;
                    #[cfg(test)]
                    let tail = if self.mutation == Some(Mutation::NoTail) { b"" } else { tail };
                    self.output.append(chunk, tail);
                    self.flush_by(deadline).await?;
                }
                Some(Err(frame)) => {
                    let trailers = frame.into_trailers().ok().filter(|_| asked.accepts_trailers());
                    encoder.end(&trailers.unwrap_or_default(), self.output.text())?;
                }
                None => encoder.end(&HeaderMap::new(), self.output.text())?,
            }
        }
        self.flush_by(deadline).await
    }

    /// Waits for the next frame of the body, and detects disconnects of the client.
    #[allow(clippy::type_complexity, reason = "the type is that of bodies")]
    fn poll_frame<B: Body>(
        &mut self,
        body: Pin<&mut B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Result<Frame<B::Data>, B::Error>>, ConnectionError>> {
        if let Poll::Ready(frame) = body.poll_frame(context) {
            return Poll::Ready(Ok(frame));
        }
        ready!(self.poll_disconnect(context));
        Poll::Ready(Err(ConnectionError::Disconnected))
    }

    /// Sends the write buffer.
    pub(crate) async fn flush(&mut self) -> Result<(), ConnectionError> {
        self.flush_by(None).await
    }

    /// Sends the write buffer; fails after the idle timeout, or at the deadline of the response.
    async fn flush_by(&mut self, deadline: Option<Instant>) -> Result<(), ConnectionError> {
        self.note_sent(Some(self.output.len()));
        let mut waited = false;
        poll_fn(|context| {
            if let Poll::Ready(sent) = self.output.poll_flush(&mut self.writer, context) {
                return Poll::Ready(sent.map_err(ConnectionError::Io));
            }
            if !mem::replace(&mut waited, true) {
                let idle_at = Instant::now() + self.idle_timeout;
                self.deadline = deadline.map_or(idle_at, |deadline| deadline.min(idle_at));
                if self.timer.deadline() > self.deadline {
                    self.timer.as_mut().reset(self.deadline);
                }
            }
            if self.timed_out(context) { Poll::Ready(Err(ConnectionError::Timeout)) } else { Poll::Pending }
        })
        .await?;
        self.output.clear();
        Ok(())
    }
}
