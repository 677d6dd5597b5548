//! Ends a connection, or hands it over to another protocol.

use std::{
    future::poll_fn,
    mem,
    task::{Poll, ready},
};

use bytes::Bytes;
use fairmesh_http::h1::{ResponseContext, write_response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use crate::http1::{
    connection::{Connection, LINGER, ReadState},
    outcome::{ConnectionEnd, ConnectionParts},
    read_side::ReadSide,
    upgrade::PendingUpgrade,
};

impl<R, W> Connection<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Decides whether the response of this status is the last HTTP message, after which the receiver of
    /// `pending_upgrade` owns the connection. Later bytes can be delimited only once the request body has been read.
    pub(crate) fn set_upgrade(
        &mut self,
        pending_upgrade: Option<PendingUpgrade>,
        asked: ResponseContext,
        status: StatusCode,
    ) {
        let is_read = matches!(self.source, ReadState::Owned(_));
        self.pending_upgrade = pending_upgrade.filter(|_| is_read && asked.switches_protocol(status));
        if asked.is_connect() && self.pending_upgrade.is_none() {
            // A client that did not wait for its tunnel may already have sent data of a third party. Parsed as
            // requests, that data would be sent in the client's name.
            self.stop_reading();
        }
    }

    /// Parses no further requests.
    fn stop_reading(&mut self) {
        if let ReadState::Owned(read_side) = mem::replace(&mut self.source, ReadState::Lost) {
            self.source = ReadState::Unframed(read_side);
        }
    }

    /// Ends the connection after its last response.
    pub(crate) async fn finish(mut self) -> ConnectionEnd<R, W> {
        match self.pending_upgrade.take() {
            Some(pending_upgrade) => self
                .into_parts()
                .map_or(ConnectionEnd::Closed, |left| ConnectionEnd::Upgraded(left, pending_upgrade)),
            None => {
                self.close().await;
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
    pub(crate) async fn refuse(&mut self, status: StatusCode, reason: &'static str) {
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
            self.close().await;
        }
    }

    /// Closes the connection after its last response.
    pub(crate) async fn close(&mut self) {
        // Fails only if the client has disconnected.
        let _ = self.writer.shutdown().await;
        if let ReadState::Unframed(read_side) = &mut self.source {
            let ended = poll_fn(|context| {
                loop {
                    read_side.input.clear();
                    if !matches!(ready!(read_side.poll_read(0, context)), Ok(1..)) {
                        return Poll::Ready(());
                    }
                }
            });
            let _ = timeout(LINGER, ended).await;
        }
    }
}
