use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::HeaderMap;
use http_body::Body as _;
use tokio::io::{AsyncWrite, AsyncWriteExt as _, WriteHalf};

use crate::{
    attempt_waits::{SendProgress, UploadActivity},
    request_body::RequestBody,
};
use fairmesh_http::{
    BoxError,
    h1::{Encoder, WriteBuffer},
};

/// A request that is being sent.
pub(super) struct Upload {
    pub(super) body: RequestBody,
    pub(super) encoder: Encoder,
    /// Number of pieces taken from the body.
    pieces: u64,
}

/// Why an upload failed.
pub(super) enum UploadError {
    /// The caller's body failed.
    Body(BoxError),
    /// The server accepts no more of the request.
    Refused,
}

impl Upload {
    pub(super) fn new(body: RequestBody, encoder: Encoder) -> Self {
        Self { body, encoder, pieces: 0 }
    }

    /// Returns the progress of the upload; `output` holds the unsent bytes.
    pub(super) fn progress(&self, output: &WriteBuffer) -> SendProgress {
        SendProgress { pieces: self.pieces, unsent: output.len() }
    }

    /// Sends as much as the socket accepts. Ready when everything is sent.
    pub(super) fn poll<W>(
        &mut self,
        output: &mut WriteBuffer,
        io: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), UploadError>>
    where
        W: AsyncWrite + Unpin,
    {
        loop {
            ready!(output.poll_flush(io, context)).map_err(|_| UploadError::Refused)?;
            if self.encoder.is_done() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_encode(output, context)).map_err(UploadError::Body)?;
        }
    }

    /// Encodes the next frame of the body.
    fn poll_encode(
        &mut self,
        output: &mut WriteBuffer,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), BoxError>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()?;
        self.pieces += 1;
        match frame.map(http_body::Frame::into_data) {
            Some(Ok(chunk)) if chunk.is_empty() => {}
            Some(Ok(chunk)) => {
                let last = self.body.is_end_stream();
                let tail = self.encoder.data(chunk.len(), last, output.clear())?;
                output.append(chunk, tail);
            }
            Some(Err(frame)) => {
                self.encoder.end(&frame.into_trailers().unwrap_or_default(), output.clear())?;
            }
            None => self.encoder.end(&HeaderMap::new(), output.clear())?,
        }
        Poll::Ready(Ok(()))
    }

    /// Sends the rest of the request. If the body fails, the connection is cut off, so that the server does not take
    /// the request for complete.
    pub(super) async fn finish<I>(
        mut self,
        mut output: WriteBuffer,
        mut io: WriteHalf<I>,
        activity: Arc<UploadActivity>,
    ) where
        I: AsyncWrite,
    {
        let sent = poll_fn(|context| {
            let before = self.progress(&output);
            let sent = self.poll(&mut output, &mut io, context);
            if self.progress(&output) != before {
                activity.record();
            }
            sent
        });
        let sent = sent.await;
        if sent.is_err() {
            // The reader of the response sees the failure.
            let _ = io.shutdown().await;
        }
    }
}
