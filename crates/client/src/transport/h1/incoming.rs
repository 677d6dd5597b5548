use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::Instant,
};

use super::{
    Line,
    connection::{Connection, cut},
};
use crate::{BoxError, stats::OpenConnection};
use fairmesh_http::h1::{Decoder, Piece};

/// Pieces up to which reading an unwanted answer is cheaper than another connection.
const FEW: usize = 4;

/// The body of an answer, read from the connection as its reader asks for it. Dropping it before its end closes the
/// connection: bytes of the answer may be on it.
pub(crate) struct Incoming<I = TcpStream> {
    /// Until it is given back.
    connection: Option<Box<Connection<I>>>,
    decoder: Decoder,
    /// The answer was 101: what follows is no HTTP.
    switched: bool,
}

impl<I> Incoming<I> {
    pub(super) fn new(connection: Box<Connection<I>>, decoder: Decoder, switched: bool) -> Self {
        Self { connection: Some(connection), decoder, switched }
    }

    /// When the rest of the request last moved, where that is still sent.
    pub(crate) fn last_moved(&self) -> Option<Instant> {
        self.connection.as_ref()?.last_moved()
    }

    /// Whether the connection speaks another protocol from here on.
    pub(crate) fn is_switched(&self) -> bool {
        self.switched
    }

    /// The connection itself where it [speaks another protocol](Self::is_switched), what came on it already, and its count.
    pub(crate) fn into_raw(self) -> Option<(I, BytesMut, Option<OpenConnection>)> {
        self.connection.filter(|_| self.switched)?.into_raw()
    }
}

impl Incoming {
    /// Reads an answer that nobody wants to its end, where that is near; its connection where it can carry another.
    pub(super) async fn finish(mut self) -> Option<Box<Connection>> {
        for _ in 0..FEW {
            let frame = poll_fn(|context| Pin::new(&mut self).poll_frame(context)).await;
            if !matches!(frame, Some(Ok(_))) {
                break;
            }
        }
        self.reusable()
    }

    /// The answer was read to its end: the connection may carry another call, unless the request is still being sent.
    pub(crate) fn give_back(&mut self, line: &Arc<Line>) {
        if let Some(connection) = self.reusable()
            && !line.is_retired()
        {
            line.h1.here().put_used(connection);
        }
    }

    fn reusable(&mut self) -> Option<Box<Connection>> {
        let connection = self.connection.take_if(|connection| !connection.is_sending())?;
        (self.decoder.is_done() && connection.is_reusable()).then_some(connection)
    }
}

#[cfg(test)]
impl<I> Incoming<I> {
    pub(super) fn connection(&mut self) -> Option<&mut Connection<I>> {
        self.connection.as_deref_mut()
    }

    /// Plants a mistake, for a test that must find it.
    pub(super) fn stop_too_soon(&mut self) {
        self.decoder.stop_too_soon();
    }
}

impl<I> Body for Incoming<I>
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
                return Poll::Ready(Some(Err(cut("in the middle of its answer").into())));
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
