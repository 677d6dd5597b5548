//! A client connection, with or without TLS.

use fairmesh_wire::transport::SecureStream;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_rustls::server::TlsStream;

/// A connection that can be split into halves and reunited.
pub trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + Sized + 'static {
    /// The read half.
    type Reader: AsyncRead + Unpin + Send + 'static;
    /// The write half.
    type Writer: AsyncWrite + Unpin + Send + 'static;

    /// Splits the connection into its halves.
    fn into_split(self) -> (Self::Reader, Self::Writer);

    /// Joins the halves again. `None` if they belong to different connections.
    fn reunite(reader: Self::Reader, writer: Self::Writer) -> Option<Self>;
}

/// A connection over TCP that the proxy accepted itself.
pub trait TcpClientStream: ClientStream {
    /// The underlying TCP connection.
    fn socket(&self) -> &TcpStream;
}

impl TcpClientStream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }
}

impl TcpClientStream for TlsStream<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().0
    }
}

impl ClientStream for TcpStream {
    type Reader = OwnedReadHalf;
    type Writer = OwnedWriteHalf;

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

    fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        split(self)
    }

    fn reunite(reader: ReadHalf<Self>, writer: WriteHalf<Self>) -> Option<Self> {
        reader.is_pair_of(&writer).then(|| reader.unsplit(writer))
    }
}

/// A connection whose client proved an identity of the mesh.
impl ClientStream for Box<dyn SecureStream> {
    type Reader = ReadHalf<Self>;
    type Writer = WriteHalf<Self>;

    fn into_split(self) -> (ReadHalf<Self>, WriteHalf<Self>) {
        split(self)
    }

    fn reunite(reader: ReadHalf<Self>, writer: WriteHalf<Self>) -> Option<Self> {
        reader.is_pair_of(&writer).then(|| reader.unsplit(writer))
    }
}
