//! Ends a connection, or hands it over to another protocol.

use std::{future::poll_fn, mem};

use bytes::Bytes;
use fairmesh_http::h1::{ResponseContext, write_response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::{Instant, timeout, timeout_at},
};

use crate::{
    http1::{
        connection::{Connection, LINGER, LINGER_PAUSE, MAX_LINGER_BYTES, ReadState},
        connection_end::{ConnectionEnd, ConnectionParts},
        read_side::ReadSide,
        request_offload::Offload,
        upgraded_stream::PendingUpgrade,
    },
    shutdown::Shutdown,
};

impl<R, W, O> Connection<R, W, O>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    O: Offload,
{
    /// Decides whether the response with this status is the last HTTP message; the receiver of
    /// `pending_upgrade` then owns the connection. Later bytes can be delimited only once the request body
    /// has been read.
    pub(crate) fn set_upgrade(
        &mut self,
        pending_upgrade: Option<PendingUpgrade>,
        asked: ResponseContext,
        status: StatusCode,
    ) {
        let is_read = matches!(self.source, ReadState::Owned(_));
        self.pending_upgrade = pending_upgrade.filter(|_| is_read && asked.switches_protocol(status));
        if asked.is_connect() && self.pending_upgrade.is_none() {
            // A client that did not wait for its tunnel may already have sent data from a third party. If
            // that data were parsed as requests, it would be sent in the client's name.
            self.stop_reading();
        }
    }

    /// Stops parsing requests.
    fn stop_reading(&mut self) {
        if let ReadState::Owned(read_side) = mem::replace(&mut self.source, ReadState::Lost) {
            self.source = ReadState::Unframed(read_side);
        }
    }

    /// Ends the connection after its last response.
    pub(crate) async fn finish(mut self, shutdown: &Shutdown) -> ConnectionEnd<R, W> {
        match self.pending_upgrade.take() {
            Some(pending_upgrade) => self
                .into_parts()
                .map_or(ConnectionEnd::Closed, |left| ConnectionEnd::Upgraded(left, pending_upgrade)),
            None => {
                self.close(shutdown).await;
                ConnectionEnd::Closed
            }
        }
    }

    /// The parts of the connection, for another protocol; `None` if the read half was lost.
    pub(crate) fn into_parts(self) -> Option<ConnectionParts<R, W>> {
        match self.source {
            ReadState::Owned(ReadSide { io, input, .. }) => {
                Some(ConnectionParts { reader: io, writer: self.writer, read: input.into_bytes() })
            }
            ReadState::Lent(_) | ReadState::Unframed(_) | ReadState::Lost => None,
        }
    }

    /// Sends an error response and closes the connection.
    pub(crate) async fn refuse(&mut self, (status, reason): (StatusCode, &'static str), shutdown: &Shutdown) {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        let length = Some(reason.len() as u64 + 1);
        let date = || self.date.now();
        write_response(
            self.output.clear(),
            (status, &headers),
            ResponseContext::unknown(),
            (length, false),
            date,
        );
        self.output.keep_unsent(Some(Bytes::from_static(reason.as_bytes())), b"\n", 0);
        self.stop_reading();
        if self.flush().await.is_ok() {
            self.close(shutdown).await;
        }
    }

    /// Closes the connection after its last response.
    pub(crate) async fn close(&mut self, shutdown: &Shutdown) {
        // Fails only if the client has disconnected.
        let _ = self.writer.shutdown().await;
        if let ReadState::Lent(returned) = &mut self.source
            && let Ok(Ok(reader)) = timeout(LINGER_PAUSE, returned).await
        {
            self.resume_after_body(reader);
        }
        if let ReadState::Unframed(read_side) = &mut self.source {
            discard(read_side, shutdown).await;
        }
    }
}

/// Reads and discards what a client still sends, within the limits. When the proxy stops, for at most one further
/// pause.
async fn discard<R: AsyncRead + Unpin>(read_side: &mut ReadSide<R>, shutdown: &Shutdown) {
    let (mut end, mut left) = (Instant::now() + LINGER, MAX_LINGER_BYTES);
    while left > 0 {
        let pause_end = Instant::now() + LINGER_PAUSE;
        if shutdown.is_started() {
            end = end.min(pause_end);
        }
        read_side.input.clear();
        let read = timeout_at(end.min(pause_end), poll_fn(|context| read_side.poll_read(0, context))).await;
        let Ok(Ok(read @ 1..)) = read else { return };
        left = left.saturating_sub(read as u64);
        // A read that is ready at once ignores the time limit.
        if Instant::now() >= end {
            return;
        }
    }
}
