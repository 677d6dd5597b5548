use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use fairmesh_http::socket_options;
use fairmesh_listen::{Connection, GuardedStream, forward_async_write};
use fairmesh_wire::transport::Stream;
use tokio::io::{AsyncRead, ReadBuf};
use tonic::transport::server::TcpConnectInfo;
use tower_layer::Layer;

use super::caller_service::CallerService;
use crate::{Caller, MeshServer, identity_of};

/// A caller's connection, within the limits of its listener.
#[derive(Debug)]
pub struct CallerConnection(GuardedStream<Stream>);

/// Layer that marks the connection as active with each request, and adds the caller to the request.
#[derive(Clone, Debug)]
pub struct CallerLayer {
    connection: Option<Arc<Connection>>,
    caller: Option<Caller>,
    tcp: TcpConnectInfo,
}

impl CallerConnection {
    /// Performs the handshake on an accepted connection.
    pub(super) async fn establish(stream: GuardedStream<Stream>, server: &MeshServer) -> io::Result<Self> {
        stream.get_ref().tcp().into_iter().for_each(socket_options::configure);
        server.inner.layer.handshake(&server.inner.transport, stream).await.map(Self)
    }

    /// The layer for the service that handles the connection's requests.
    pub fn layer(&self) -> CallerLayer {
        let remote_addr = self.0.get_ref().tcp().and_then(|socket| socket.peer_addr().ok());
        CallerLayer {
            connection: self.0.connection().cloned(),
            caller: Caller::of(&identity_of(&self.0)),
            tcp: TcpConnectInfo { local_addr: None, remote_addr },
        }
    }

    /// The stream, which still occupies its slot at the listener.
    pub fn into_stream(self) -> GuardedStream<Stream> {
        self.0
    }
}

impl<S> Layer<S> for CallerLayer {
    type Service = CallerService<S>;

    fn layer(&self, inner: S) -> CallerService<S> {
        CallerService::new(inner, self.connection.clone(), (self.caller.clone(), self.tcp.clone()))
    }
}

impl AsyncRead for CallerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

forward_async_write!(CallerConnection, 0);
