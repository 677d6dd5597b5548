//! The stream of a caller's connection, in the form that the HTTP server takes.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_edge::listen::client_stream::ClientStream;
use fairmesh_listen::{GuardedStream, forward_async_write};
use fairmesh_server::Stream;
use tokio::io::{AsyncRead, ReadBuf, ReadHalf, WriteHalf, split};

/// A connection of a caller, with or without TLS, within the limits of its listener.
#[derive(Debug)]
pub(crate) struct CallerStream(pub(crate) GuardedStream<Stream>);

impl AsyncRead for CallerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

forward_async_write!(CallerStream, 0);

impl ClientStream for CallerStream {
    type Reader = ReadHalf<Self>;
    type Writer = WriteHalf<Self>;

    fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        split(self)
    }

    fn reunite(reader: ReadHalf<Self>, writer: WriteHalf<Self>) -> Option<Self> {
        reader.is_pair_of(&writer).then(|| reader.unsplit(writer))
    }
}
