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
pub(crate) trait Link: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    type Reader: AsyncRead + Unpin + Send + 'static;
    type Writer: AsyncWrite + Unpin + Send + 'static;

    /// What it is carried by.
    fn socket(&self) -> &TcpStream;

    fn halves(self) -> (Self::Reader, Self::Writer);

    /// `None` where the halves are of two connections.
    fn whole(halves: (Self::Reader, Self::Writer)) -> Option<Self>;
}

impl Link for TcpStream {
    type Reader = OwnedReadHalf;
    type Writer = OwnedWriteHalf;

    fn socket(&self) -> &TcpStream {
        self
    }

    fn halves(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        self.into_split()
    }

    fn whole((reader, writer): (OwnedReadHalf, OwnedWriteHalf)) -> Option<Self> {
        reader.reunite(writer).ok()
    }
}

impl Link for TlsStream<TcpStream> {
    type Reader = ReadHalf<Self>;
    type Writer = WriteHalf<Self>;

    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn halves(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        split(self)
    }

    fn whole((reader, writer): (ReadHalf<Self>, WriteHalf<Self>)) -> Option<Self> {
        reader.is_pair_of(&writer).then(|| reader.unsplit(writer))
    }
}
