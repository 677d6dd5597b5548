use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use fairmesh_listen::{Acceptor, GuardedStream, Limits, Memory};
use futures_util::{Stream, stream::unfold};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};
use tonic::transport::server::{Connected, TcpConnectInfo};

use fairmesh_http::socket;

/// The connections of a listener for tonic's `serve_with_incoming` and the like: a connection that does not send the
/// HTTP/2 preface within 10 s is closed, and a failing accept, as when file descriptors run out, is logged and retried
/// after a pause (`docs/limits.md`).
///
/// After the preface, the connection is managed by its server, whose keep-alive
/// (`Server::builder().http2_keepalive_interval`) detects vanished peers.
pub fn incoming(listener: TcpListener) -> impl Stream<Item = io::Result<IncomingStream>> + Send {
    let acceptor = Acceptor::new("program", Limits::program(), Memory::default());
    unfold((listener, acceptor), |(listener, acceptor)| async move {
        let accept = |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| stream);
        let stream = acceptor.accept(accept).await;
        socket::configure(stream.get_ref());
        Some((Ok(IncomingStream { stream, is_exempt: false }), (listener, acceptor)))
    })
}

/// A connection accepted by [`incoming`].
#[derive(Debug)]
pub struct IncomingStream {
    stream: GuardedStream<TcpStream>,
    is_exempt: bool,
}

impl Connected for IncomingStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.get_ref().connect_info()
    }
}

impl AsyncRead for IncomingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if !self.is_exempt
            && let Some(connection) = self.stream.connection().filter(|connection| connection.has_begun())
        {
            // The ends of its requests are not visible here.
            connection.exempt();
            self.is_exempt = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for IncomingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
