//! Serves one accepted connection.

use std::{net::SocketAddr, sync::Arc};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio::{net::TcpStream, time::Instant};
use tokio_rustls::server::TlsStream;

use crate::{
    counter::increment,
    forward::{
        connection_handler::ConnectionHandler,
        connection_info::ConnectionInfo,
        connection_origin::{Direct, Origin},
        tcp::{self, TcpRoute},
    },
    listen::{
        client_stream::{ClientStream, TcpClientStream},
        connection_permit::{ConnectionPermit, UntilDisplaced},
        proxy_header,
        proxy_protocol::{self, Addresses},
        socket_options,
    },
    server::{
        AcceptedConnection, ConnectionServer,
        http::HttpServer,
        options::{ServeOptions, ServedProtocol},
    },
    shutdown::Shutdown,
    tls::Alpn,
};

impl ConnectionServer {
    /// Serves a connection until it ends. An HTTP connection that has sent no request may be closed to make
    /// room for another one.
    pub fn serve_connection(
        self: Arc<Self>,
        accepted: AcceptedConnection,
        options: Arc<ServeOptions>,
    ) -> impl Future<Output = ()> + Send {
        let (permit, client) = (Arc::clone(&accepted.permit), accepted.caller);
        // In other protocols the server may speak first, so a silent client is normal.
        if matches!(options.protocol, ServedProtocol::Http { .. }) {
            self.set_silent(&permit, client);
        }
        UntilDisplaced::new(permit, self.serve_accepted(accepted, options))
    }

    /// Serves HTTP on a connection of `client` until it ends, or until it is closed before its first request
    /// to make room for another one.
    pub fn until_displaced(
        &self,
        permit: Arc<ConnectionPermit>,
        client: SocketAddr,
        served: impl Future<Output = ()> + Send,
    ) -> impl Future<Output = ()> + Send {
        self.set_silent(&permit, client);
        UntilDisplaced::new(permit, served)
    }

    fn set_silent(&self, permit: &ConnectionPermit, client: SocketAddr) {
        permit.set_silent(self.silent.enter(client.ip(), Instant::now()));
    }

    /// Reads the PROXY protocol header if required, and serves the protocol of the listener. Long operations are
    /// boxed; otherwise every connection would reserve space for the largest of them.
    async fn serve_accepted(
        self: Arc<Self>,
        AcceptedConnection { mut stream, caller, permit }: AcceptedConnection,
        options: Arc<ServeOptions>,
    ) {
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        let mut addresses = socket_options::connection_addresses(&stream, caller);
        if options.accept_proxy {
            match proxy_header::read(&mut stream, self.limits.idle_timeout).boxed().await {
                Ok(header) => addresses = header.addresses.unwrap_or(addresses),
                Err(error) => {
                    increment(&self.forwarder.metrics.connections.proxy_protocol_errors);
                    tracing::debug!(%error, %caller, "refused a connection without a valid PROXY header");
                    return socket_options::reset(stream);
                }
            }
        }
        let served = if options.tls {
            // This branch awaits nothing else, since every connection would otherwise reserve space for the
            // TLS handshake.
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
            () = self.shutdown.deadline_passed() => {
                increment(&self.forwarder.metrics.connections.drain_timeouts);
                return None;
            }
        };
        let log = |error| tracing::debug!(%error, %caller, "TLS handshake failed");
        handshake.map_err(log).ok()
    }

    /// Serves the protocol of the listener.
    fn serve_protocol<'a, L: TcpClientStream>(
        &'a self,
        stream: L,
        addresses: Addresses,
        options: &'a ServeOptions,
        permit: Arc<ConnectionPermit>,
    ) -> BoxFuture<'a, ()> {
        match &options.protocol {
            ServedProtocol::Http { service } => {
                socket_options::set_user_timeout(stream.socket(), self.limits.idle_timeout);
                let client_info = ConnectionInfo::new(addresses.source, service.clone(), permit)
                    .over_tls(options.tls)
                    .allow_connect(options.connect)
                    .at_boundary(options.boundary);
                self.serve_http(stream, client_info, Direct).boxed()
            }
            ServedProtocol::Tcp { service, send_proxy } => {
                let header = send_proxy.map(|version| proxy_protocol::write(version, addresses));
                let route = TcpRoute { service, header };
                tcp::serve(&self.forwarder, stream, route).boxed()
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
        self.serve_http_until(&self.shutdown, stream, client_info, origin)
    }

    /// As [`serve_http`](Self::serve_http), for a connection that ends by a shutdown of some connections.
    pub fn serve_http_until<'a, L: ClientStream, O: Origin>(
        &'a self,
        shutdown: &'a Shutdown,
        stream: L,
        client_info: ConnectionInfo,
        origin: O,
    ) -> impl Future<Output = ()> + Send {
        let (caller, offload) = (client_info.caller, origin.take_offload());
        let handler = ConnectionHandler { forwarder: Arc::clone(&self.forwarder), client_info, origin };
        let metrics = &self.forwarder.metrics.connections;
        HttpServer { idle_timeout: self.limits.idle_timeout, metrics, shutdown }
            .serve_offloaded(stream, caller, handler, offload)
    }
}
