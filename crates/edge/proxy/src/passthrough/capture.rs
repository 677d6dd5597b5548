//! Serves connections that nftables or eBPF programs redirected.

use std::{io, net::SocketAddr, sync::Arc};

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::{
    counter::increment,
    forward::connection_info::ConnectionInfo,
    kernel::{caller::KernelCaller, caller_stream::CallerStream},
    listen::{
        connection_permit::ConnectionPermit,
        listener_config::{ListenerConfig, ListenerKind},
        socket,
    },
    passthrough::{
        http2::CapturedConnection,
        original_dst::PassthroughConnection,
        protocol_detect::{self, DetectedProtocol},
    },
    server::ConnectionServer,
};

impl ConnectionServer {
    /// Serves HTTP to services, and passes other traffic through to its original destination.
    pub(crate) async fn serve_captured(
        &self,
        stream: TcpStream,
        caller: SocketAddr,
        listen: &ListenerConfig,
        permit: Arc<ConnectionPermit>,
    ) {
        let (forwarder, counts) = (&self.forwarder, &self.forwarder.metrics.capture);
        let Some((only_services, original, kernel)) = self.destination(&stream, caller, listen) else {
            return;
        };
        let Some(original) = original else {
            increment(&counts.loops);
            tracing::debug!(%caller, "refused a connection that was not redirected");
            return socket::reset(stream);
        };
        let (connector, idle_timeout) = (&forwarder.connector, self.limits.idle_timeout);
        let seen = tokio::select! {
            seen = protocol_detect::detect(&stream, caller, original, connector, idle_timeout) => seen,
            () = self.shutdown.idle_grace_over().cancelled() => return,
        };
        // Checked after detection: by the time that one of the proxy's own connections has sent data, it is registered
        // as such.
        if forwarder.connector.is_own(caller) {
            increment(&counts.loops);
            let problem = "the proxy's own connection was redirected to it; except the proxy from capture";
            tracing::warn!(%original, "{problem}");
            return socket::reset(stream);
        }
        let (is_served, server) = match seen {
            Ok(DetectedProtocol::Http1(host)) => {
                (only_services || forwarder.services().is_declared(&host).await, None)
            }
            Ok(DetectedProtocol::Http2) => (true, None),
            Ok(DetectedProtocol::Other(server)) => (false, server),
            Err(_) => return increment(&forwarder.metrics.connections.failed),
        };
        if is_served {
            increment(&counts.served);
            socket::set_user_timeout(&stream, self.limits.idle_timeout);
            let captured = CapturedConnection::new(original, only_services);
            let client_info = ConnectionInfo::captured(caller, permit, captured)
                .allow_connect(listen.connect)
                .with_kernel(kernel);
            match client_info.kernel.is_some() {
                true => self.serve_http(CallerStream::new(stream), client_info).await,
                false => self.serve_http(stream, client_info).await,
            }
        } else if only_services {
            drop(kernel);
            increment(&counts.refused);
            socket::reset(stream);
        } else {
            // It holds a descriptor of the connection.
            drop(kernel);
            self.pass_through(stream, original, server).await;
        }
    }

    /// Whether the listener serves services alone, and the original destination of a connection, where it was redirected; `None`
    /// for other listeners.
    fn destination(
        &self,
        stream: &TcpStream,
        caller: SocketAddr,
        listen: &ListenerConfig,
    ) -> Option<(bool, Option<SocketAddr>, Option<KernelCaller>)> {
        match listen.kind {
            ListenerKind::Captured { only_services, transparent } => {
                Some((only_services, original_dst(stream, transparent.then_some(listen.address)), None))
            }
            ListenerKind::Kernel { only_services, .. } => {
                let (original, kernel) = self.redirected.original_dst(stream, caller).unzip();
                let of_cgroup = kernel.as_ref().is_some_and(|kernel| kernel.only_services);
                Some((only_services || of_cgroup, original, kernel))
            }
            ListenerKind::Http { .. } | ListenerKind::Tcp { .. } => None,
        }
    }

    async fn pass_through(
        &self,
        stream: TcpStream,
        original: SocketAddr,
        server: Option<PassthroughConnection>,
    ) {
        let (forwarder, counts) = (&self.forwarder, &self.forwarder.metrics.capture);
        increment(&counts.passed_through);
        let server = async {
            match server {
                Some(server) => Ok(server),
                None => forwarder.connector.connect(original).await,
            }
        };
        let server = tokio::select! {
            server = server => server,
            () = self.drain_deadline() => return increment(&forwarder.metrics.connections.drain_timeouts),
        };
        match (server, reregister(stream)) {
            (Ok(server), Ok(stream)) => forwarder.tunnels().carry(stream, server).await,
            (Err(error), Ok(stream)) => {
                increment(&counts.failed);
                tracing::debug!(%error, %original, "cannot connect to the original destination");
                socket::reset(stream);
            }
            (_, Err(_)) => increment(&forwarder.metrics.connections.failed),
        }
    }
}

/// The original destination of a connection; `None` if it is this listener itself. `own` is the address of a
/// transparent listener.
fn original_dst(stream: &TcpStream, own: Option<SocketAddr>) -> Option<SocketAddr> {
    let socket = SockRef::from(stream);
    let here = stream.local_addr().ok()?;
    if own.is_some_and(|own| own != here) {
        return Some(here);
    }
    let original = if here.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    original.ok()?.as_socket().filter(|original| *original != here)
}

/// Registers the connection with the runtime again, to renew its readiness.
fn reregister(stream: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.into_std()?)
}
