//! The connection of a caller whose requests may bypass TCP.
//!
//! Data that bypasses TCP arrives in a separate queue of the socket, and a read takes data from only one of
//! the two queues. tokio treats a short read as the end of the available data, and would leave the other
//! queue's data until more arrives. This stream reads until the system reports that nothing is available.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use fairmesh_edge::listen::client_stream::ClientStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

/// The connection of a caller.
#[derive(Debug)]
pub(crate) struct CallerStream(TcpStream);

/// The read half.
#[derive(Debug)]
pub(crate) struct CallerReader(OwnedReadHalf);

impl CallerStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(stream)
    }
}

fn poll_read(
    stream: &TcpStream,
    context: &mut Context<'_>,
    buffer: &mut ReadBuf<'_>,
) -> Poll<io::Result<()>> {
    loop {
        ready!(stream.poll_read_ready(context))?;
        match stream.try_read_buf(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return Poll::Ready(read.map(drop)),
        }
    }
}

impl AsyncRead for CallerReader {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_read(self.0.as_ref(), context, buffer)
    }
}

impl AsyncRead for CallerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        poll_read(&self.0, context, buffer)
    }
}

impl AsyncWrite for CallerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl ClientStream for CallerStream {
    type Reader = CallerReader;
    type Writer = OwnedWriteHalf;

    fn into_split(self) -> (CallerReader, OwnedWriteHalf) {
        let (reader, writer) = self.0.into_split();
        (CallerReader(reader), writer)
    }

    fn reunite(reader: CallerReader, writer: OwnedWriteHalf) -> Option<Self> {
        reader.0.reunite(writer).ok().map(Self)
    }
}
