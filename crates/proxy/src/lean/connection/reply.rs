//! How a connection answers.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_client::BoxError;
use fairmesh_http::h1::{Encoder, Framing, ResponseContext, write_response};
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::Connection;
#[cfg(test)]
use super::Planted;
use crate::lean::Broken;

/// Text beyond which the memory of answers is given back.
pub(super) const KEPT: usize = 8 * 1024;

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Writes an answer; whether the connection may carry another.
    pub(super) async fn reply<B>(
        &mut self,
        response: Response<B>,
        asked: ResponseContext,
        persistent: bool,
    ) -> Result<bool, Broken>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let (head, body) = response.into_parts();
        let switches = self.begins.is_some();
        // Of another protocol that nobody asked for, or before the request was read: its server has gone astray.
        let astray = !switches && (head.status.is_informational() || asked.switches_protocol(head.status));
        let (status, headers) =
            if astray { (StatusCode::BAD_GATEWAY, HeaderMap::new()) } else { (head.status, head.headers) };
        let persistent = persistent && !astray && !switches;
        let length = if astray { Some(0) } else { body.size_hint().exact() };
        let date = || self.date.now();
        let framing =
            write_response(self.output.clear(), (status, &headers), asked, (length, persistent), date);
        #[cfg(test)]
        let framing = match self.planted {
            Some(Planted::NoChunks) if framing == Framing::Chunked => Framing::UntilClose,
            _ => framing,
        };
        self.send(pin!(body), Encoder::new(framing), asked).await?;
        self.output.shrink(KEPT);
        Ok(persistent && framing != Framing::UntilClose)
    }

    /// Sends the head, which is written, and the body.
    async fn send<B>(
        &mut self,
        mut body: Pin<&mut B>,
        mut encoder: Encoder,
        asked: ResponseContext,
    ) -> Result<(), Broken>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        while !encoder.is_done() {
            // The head waits for what is at hand of the body, and not for the rest.
            let frame = match poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.flush().await?;
                    poll_fn(|context| self.poll_frame(body.as_mut(), context)).await?
                }
            };
            let frame = frame.transpose().map_err(|error| Broken::Answer(error.into()))?;
            match frame.map(Frame::into_data) {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(Ok(chunk)) => {
                    let tail = encoder.data(chunk.len(), body.is_end_stream(), self.output.text())?;
                    #[cfg(test)]
                    let tail = if self.planted == Some(Planted::NoTail) { b"" } else { tail };
                    self.output.append(chunk, tail);
                    self.flush().await?;
                }
                Some(Err(frame)) => {
                    let trailers = frame.into_trailers().ok().filter(|_| asked.accepts_trailers());
                    encoder.end(&trailers.unwrap_or_default(), self.output.text())?;
                }
                None => encoder.end(&HeaderMap::new(), self.output.text())?,
            }
        }
        self.flush().await
    }

    /// Waits for more of an answer, and for the program to give up.
    #[allow(clippy::type_complexity, reason = "the type is that of bodies")]
    fn poll_frame<B: Body>(
        &mut self,
        body: Pin<&mut B>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Result<Frame<B::Data>, B::Error>>, Broken>> {
        if let Poll::Ready(frame) = body.poll_frame(context) {
            return Poll::Ready(Ok(frame));
        }
        ready!(self.poll_gone(context));
        Poll::Ready(Err(Broken::Gone))
    }

    /// Sends all that is written.
    pub(super) async fn flush(&mut self) -> Result<(), Broken> {
        let mut waited = false;
        poll_fn(|context| {
            if let Poll::Ready(sent) = self.output.poll_flush(&mut self.writer, context) {
                return Poll::Ready(sent.map_err(Broken::Io));
            }
            if !mem::replace(&mut waited, true) {
                self.due = Instant::now() + self.patience;
            }
            if self.is_late(context) { Poll::Ready(Err(Broken::Late)) } else { Poll::Pending }
        })
        .await?;
        self.output.clear();
        Ok(())
    }
}
