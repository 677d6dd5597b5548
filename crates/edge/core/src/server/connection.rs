//! Serves one accepted connection.

use std::{
    error::Error,
    future::poll_fn,
    mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use bytes::BytesMut;
use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{net::TcpStream, time::sleep_until};
use tokio_rustls::server::TlsStream;

use crate::{
    counter::increment,
    forward::{
        connection_info::ConnectionInfo,
        http1_handler::Http1Handler,
        http2_handler::Http2Handler,
        origin::{Direct, Origin},
        tcp,
    },
    http1::{
        connection::Connection,
        outcome::{ConnectionEnd, ConnectionParts},
        serve,
    },
    http2::connection::Http2Server,
    listen::{
        client_stream::ClientStream,
        connection_permit::ConnectionPermit,
        proxy_header,
        proxy_protocol::{self, Addresses},
        socket,
    },
    server::{
        AcceptedConnection, ConnectionServer,
        options::{ServeOptions, ServedProtocol},
    },
    tls::Alpn,
    tunnel::prefixed_io::PrefixedIo,
};

/// Reunites a connection with its unread bytes. Always succeeds, since the halves belong together.
fn reunite<L: ClientStream>(parts: ConnectionParts<L::Reader, L::Writer>) -> Option<(L, BytesMut)> {
    Some((L::reunite(parts.reader, parts.writer)?, parts.read))
}

impl ConnectionServer {
    /// Reads the PROXY protocol header if required, and serves the protocol of the listener. Long operations are boxed,
    /// since every connection would otherwise reserve space for the largest one.
    pub async fn serve_connection(
        self: Arc<Self>,
        AcceptedConnection { mut stream, caller, permit }: AcceptedConnection,
        options: Arc<ServeOptions>,
    ) {
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        let mut addresses = socket::connection_addresses(&stream, caller);
        if options.accept_proxy {
            match proxy_header::read(&mut stream, self.limits.idle_timeout).boxed().await {
                Ok(sent) => addresses = sent.unwrap_or(addresses),
                Err(error) => {
                    increment(&self.forwarder.metrics.connections.proxy_protocol_errors);
                    tracing::debug!(%error, %caller, "refused a connection without a valid PROXY header");
                    return socket::reset(stream);
                }
            }
        }
        let served = if options.tls {
            // Awaits nothing else in here, since every connection would otherwise reserve space for the TLS handshake.
            match self.accept_tls(stream, &options, addresses.source).boxed().await {
                Some(stream) => self.serve_protocol(stream, addresses, &options, permit),
                None => return,
            }
        } else {
            self.serve_protocol(stream, addresses, &options, permit)
        };
        served.await;
    }

    /// Performs the TLS handshake.
    async fn accept_tls(
        &self,
        stream: TcpStream,
        options: &ServeOptions,
        caller: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let (tls, counts) = (self.tls.as_ref()?, &self.forwarder.metrics.tls);
        let alpn = match options.protocol {
            ServedProtocol::Http { .. } => Alpn::Http,
            ServedProtocol::Tcp { .. } => Alpn::None,
        };
        let handshake = tokio::select! {
            handshake = tls.accept(stream, alpn, self.limits.idle_timeout, counts) => handshake,
            () = self.drain_deadline() => {
                increment(&self.forwarder.metrics.connections.drain_timeouts);
                return None;
            }
        };
        let log = |error| tracing::debug!(%error, %caller, "TLS handshake failed");
        handshake.map_err(log).ok()
    }

    /// Serves the protocol of the listener.
    fn serve_protocol<'a, L: ClientStream>(
        &'a self,
        stream: L,
        addresses: Addresses,
        options: &'a ServeOptions,
        permit: Arc<ConnectionPermit>,
    ) -> BoxFuture<'a, ()> {
        match &options.protocol {
            ServedProtocol::Http { service } => {
                socket::set_user_timeout(stream.socket(), self.limits.idle_timeout);
                let client_info = ConnectionInfo::new(addresses.source, service.clone(), permit)
                    .over_tls(options.tls)
                    .allow_connect(options.connect);
                self.serve_http(stream, client_info, Direct).boxed()
            }
            ServedProtocol::Tcp { service, send_proxy } => {
                let header = send_proxy.map(|version| proxy_protocol::write(version, addresses));
                tcp::serve(&self.forwarder, stream, service, header).boxed()
            }
        }
    }

    /// Serves HTTP, and the protocol after an upgrade.
    pub fn serve_http<L: ClientStream, O: Origin>(
        &self,
        stream: L,
        client_info: ConnectionInfo,
        origin: O,
    ) -> impl Future<Output = ()> + Send {
        let metrics = &self.forwarder.metrics;
        let caller = client_info.caller;
        let (reader, writer) = stream.into_split();
        // An `async fn` would reserve space for its arguments twice.
        async move {
            let ended = {
                let handler = Http1Handler::new(&self.forwarder, &client_info, &origin);
                let (idle_timeout, offload) = (self.limits.idle_timeout, origin.take_offload());
                let connection = Connection::with_offload(reader, writer, idle_timeout, offload);
                let served = pin!(serve::serve(connection, &self.shutdown, &handler));
                self.until_drain_deadline(served).await
            };
            let Some(ended) = ended else { return increment(&metrics.connections.drain_timeouts) };
            match ended {
                ConnectionEnd::Closed => {}
                ConnectionEnd::Failed(error) => {
                    increment(&metrics.connections.failed);
                    tracing::debug!(error = &error as &dyn Error, %caller, "connection failed");
                }
                ConnectionEnd::Http2(parts) => {
                    let Some((stream, read)) = reunite::<L>(parts) else { return };
                    let forwarder = Arc::clone(&self.forwarder);
                    let handler = Http2Handler { forwarder, client_info, origin };
                    self.http2().serve(stream, read, caller, handler).boxed().await;
                }
                ConnectionEnd::Upgraded(parts, pending_upgrade) => {
                    let Some((stream, read)) = reunite::<L>(parts) else { return };
                    pending_upgrade.fulfill(PrefixedIo::new(read, stream));
                }
            }
        }
    }

    fn http2(&self) -> Http2Server<'_> {
        let metrics = &self.forwarder.metrics.connections;
        Http2Server { idle_timeout: self.limits.idle_timeout, metrics, shutdown: &self.shutdown }
    }

    /// The result of serving a connection, unless the drain deadline passes first.
    async fn until_drain_deadline<T>(&self, mut served: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut drain_deadline = pin!(self.drain_deadline());
        let mut is_polled = false;
        poll_fn(|context| {
            if let Poll::Ready(ended) = served.as_mut().poll(context) {
                return Poll::Ready(Some(ended));
            }
            // Polled first to register the waker, which never changes; nothing can happen before the shutdown starts.
            let was_polled = mem::replace(&mut is_polled, true);
            let may_be_due = !was_polled || self.shutdown.is_started();
            if may_be_due && drain_deadline.as_mut().poll(context).is_ready() {
                Poll::Ready(None)
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Completes at the drain deadline; before that, wakes the task at each step of the shutdown.
    pub async fn drain_deadline(&self) {
        let deadline = self.shutdown.deadline().await;
        self.shutdown.idle_grace_over().cancelled().await;
        sleep_until(deadline).await;
    }
}
