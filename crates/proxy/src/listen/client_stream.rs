//! A program's connection, as it is or within TLS.

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_rustls::server::TlsStream;

/// A connection of which one reads and another writes, and that can be put together again.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    type Reader: AsyncRead + Unpin + Send + 'static;
    type Writer: AsyncWrite + Unpin + Send + 'static;

    /// What it is carried by.
    fn socket(&self) -> &TcpStream;

    fn into_split(self) -> (Self::Reader, Self::Writer);

    /// `None` where the halves are of two connections.
    fn reunite(reader: Self::Reader, writer: Self::Writer) -> Option<Self>;
}

impl ClientStream for TcpStream {
    type Reader = OwnedReadHalf;
    type Writer = OwnedWriteHalf;

    fn socket(&self) -> &TcpStream {
        self
    }

    fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        TcpStream::into_split(self)
    }

    fn reunite(reader: OwnedReadHalf, writer: OwnedWriteHalf) -> Option<Self> {
        reader.reunite(writer).ok()
    }
}

impl ClientStream for TlsStream<TcpStream> {
    type Reader = ReadHalf<Self>;
    type Writer = WriteHalf<Self>;

    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        split(self)
    }

    fn reunite(reader: ReadHalf<Self>, writer: WriteHalf<Self>) -> Option<Self> {
        reader.is_pair_of(&writer).then(|| reader.unsplit(writer))
    }
}
