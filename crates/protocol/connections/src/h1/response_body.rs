use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_wire::transport::Stream;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::connection::{Connection, closed};
use crate::raw_connection::RawConnection;
use fairmesh_http::{
    BoxError,
    h1::{Decoder, Piece},
};

/// Maximum number of pieces of an unwanted response that are read. Reading them is cheaper than opening another
/// connection.
const MAX_DISCARDED_PIECES: usize = 4;

/// The body of a response, read from the connection on demand. Dropping it early closes the connection, since the rest
/// of the response may still arrive on it.
pub struct ResponseBody<I = Stream> {
    /// The connection; `None` once it is reused.
    connection: Option<Box<Connection<I>>>,
    decoder: Decoder,
    /// The status was 101: the following bytes are not HTTP.
    switched: bool,
}

impl<I> ResponseBody<I> {
    pub(super) fn new(connection: Box<Connection<I>>, decoder: Decoder, switched: bool) -> Self {
        Self { connection: Some(connection), decoder, switched }
    }

    /// Time of the last progress of the request, if a task is still sending it.
    pub fn last_moved(&self) -> Option<Instant> {
        self.connection.as_ref()?.last_moved()
    }

    /// Whether the connection carries another protocol from here on.
    pub fn is_switched(&self) -> bool {
        self.switched
    }

    /// Returns the connection if it [speaks another protocol](Self::is_switched).
    pub fn into_raw(self) -> Option<RawConnection<I>> {
        self.connection.filter(|_| self.switched)?.into_raw()
    }
}

impl ResponseBody {
    /// Discards the rest of a response if its end is near. Returns the connection if it can carry another call.
    pub(super) async fn discard(mut self) -> Option<Box<Connection>> {
        for _ in 0..MAX_DISCARDED_PIECES {
            let frame = poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await;
            if !matches!(frame, Some(Ok(_))) {
                break;
            }
        }
        self.take_reusable()
    }

    /// Returns the connection of a completely read response, unless the request is still being sent.
    pub(crate) fn take_reusable(&mut self) -> Option<Box<Connection>> {
        let connection = self.connection.take_if(|connection| !connection.is_sending())?;
        (self.decoder.is_done() && connection.is_reusable()).then_some(connection)
    }
}

#[cfg(test)]
impl<I> ResponseBody<I> {
    pub(super) fn connection(&mut self) -> Option<&mut Connection<I>> {
        self.connection.as_deref_mut()
    }

    /// Injects a framing bug, for a test that must find it.
    pub(super) fn stop_too_soon(&mut self) {
        self.decoder.stop_too_soon();
    }
}

impl<I> Body for ResponseBody<I>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { connection: Some(connection), decoder, .. } = &mut *self else {
            return Poll::Ready(None);
        };
        loop {
            match decoder.decode(connection.input())? {
                Some(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Piece::Trailers(trailers)) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                None if decoder.is_done() => return Poll::Ready(None),
                None => {}
            }
            let due = usize::try_from(decoder.due()).unwrap_or(usize::MAX);
            if ready!(connection.poll_read(due, context))? == 0 && !decoder.close() {
                return Poll::Ready(Some(Err(closed("in the middle of its response").into())));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.decoder.is_done()
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder.left().map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
