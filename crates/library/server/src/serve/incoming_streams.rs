use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_http::socket_options;
use fairmesh_listen::{Acceptor, GuardedStream, Limits, Memory, forward_async_write};
use fairmesh_wire::transport::{Stream, Transport};
use futures_util::stream::{self, unfold};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::TcpListener,
    task::JoinSet,
};
#[cfg(feature = "grpc")]
use tonic::transport::server::{Connected, TcpConnectInfo};

use crate::{Caller, ConnectInfo, MeshServer, ServerLayer, identity_of};

/// Returns the connections of a listener of `server`, for tonic's `serve_with_incoming` and similar. A connection that
/// does not send the HTTP/2 preface within 10 s is closed. A failing accept, for example without free file descriptors,
/// is logged and retried after a pause (`docs/limits.md`). The server needs the [layer](MeshServer::layer), which
/// decides who may call, and adds the addresses and the [`Caller`] to requests.
///
/// After the preface, the server manages the connection: its keep-alive
/// (`tonic::transport::Server::builder().http2_keepalive_interval`) detects vanished peers.
pub fn incoming(
    listener: TcpListener,
    server: &MeshServer,
) -> impl stream::Stream<Item = io::Result<IncomingStream>> + Send {
    let acceptor = Acceptor::new("program", Limits::program(), Memory::default());
    let incoming = Incoming {
        listener,
        acceptor,
        layer: server.layer(),
        transport: server.inner.transport.clone(),
        establishing: JoinSet::new(),
    };
    unfold(incoming, |mut incoming| async { Some((Ok(incoming.next().await), incoming)) })
}

/// Accepts connections for a server that the program runs itself.
struct Incoming {
    listener: TcpListener,
    acceptor: Acceptor,
    layer: ServerLayer,
    transport: Transport,
    /// Accepted connections whose handshake is not complete.
    establishing: JoinSet<io::Result<GuardedStream<Stream>>>,
}

impl Incoming {
    async fn next(&mut self) -> IncomingStream {
        let Self { listener, acceptor, layer, transport, establishing } = self;
        let accept =
            |cx: &mut Context<'_>| listener.poll_accept(cx).map_ok(|(stream, _)| Stream::Tcp(stream));
        loop {
            tokio::select! {
                stream = acceptor.accept(accept) => {
                    stream.get_ref().tcp().into_iter().for_each(socket_options::configure);
                    let (layer, transport) = (layer.clone(), transport.clone());
                    establishing.spawn(async move { layer.handshake(&transport, stream).await });
                }
                Some(established) = establishing.join_next() => match established {
                    // The ends of the connection's requests are not visible here.
                    Ok(Ok(stream)) => return IncomingStream(stream.exempt_once_begun()),
                    Ok(Err(error)) => tracing::debug!(%error, "a connection ended before it began"),
                    // The runtime has reported the panic.
                    Err(_) => {}
                }
            }
        }
    }
}

/// A connection accepted by [`incoming`].
#[derive(Debug)]
pub struct IncomingStream(GuardedStream<Stream>);

#[cfg(feature = "grpc")]
impl Connected for IncomingStream {
    type ConnectInfo = ConnectInfo;

    fn connect_info(&self) -> ConnectInfo {
        let socket = self.0.get_ref().tcp();
        let tcp =
            socket.map_or(TcpConnectInfo { local_addr: None, remote_addr: None }, Connected::connect_info);
        ConnectInfo { tcp, caller: Caller::of(&identity_of(&self.0)) }
    }
}

impl AsyncRead for IncomingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

forward_async_write!(IncomingStream, 0);
