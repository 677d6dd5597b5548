//! Connections that are passed on as they are: one endpoint is picked for each, and another where that one cannot be reached.

use std::{io, net::SocketAddr, time::Duration};

use fairmesh_client::{Fault, ServiceName, Tunnel};
use http::{Method, Request};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    forward::Forwarder,
    link::Link,
    metrics::count,
    proxy_protocol::{self, Ends, Head, Version},
};

/// How long a head of the PROXY protocol may take: a balancer sends it at once.
const HEAD_PATIENCE: Duration = Duration::from_secs(5);

/// Between whom a connection is, as the system says.
pub(crate) fn ends_of(stream: &TcpStream, caller: SocketAddr) -> Ends {
    Ends { source: caller, destination: stream.local_addr().unwrap_or(caller) }
}

/// Breaks a connection whose program takes nothing of what is sent to it for this long: what waits for it holds a server's
/// connection as well, and nothing else ends that, as deadlines are for servers.
pub(crate) fn limit_silence(stream: &TcpStream, patience: Duration) {
    // Fails only on a socket that is already broken.
    let _ = SockRef::from(stream).set_tcp_user_timeout(Some(patience));
}

/// Reads what a balancer says first of a connection, and nothing beyond it; `None` where it says nothing of who connected.
pub(crate) async fn read_proxy_head(stream: &mut TcpStream, patience: Duration) -> io::Result<Option<Ends>> {
    let head = async {
        let mut head = Vec::with_capacity(proxy_protocol::SHORTEST);
        loop {
            match proxy_protocol::read(&head).map_err(io::Error::other)? {
                Head::Whole { ends, .. } => return Ok(ends),
                Head::More(more) => {
                    // So far and no further: what follows is the program's.
                    let mut rest = (&mut *stream).take(more as u64);
                    if rest.read_buf(&mut head).await? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    };
    timeout(patience.min(HEAD_PATIENCE), head).await?
}

/// Ends a connection in a way that its program cannot take for an empty answer.
pub(crate) fn reset(stream: impl Link) {
    // Fails only on a socket that is already broken.
    let _ = stream.socket().set_zero_linger();
}

/// Carries a connection to a server of the service and back.
pub(crate) async fn serve(
    forwarder: &Forwarder,
    stream: impl Link,
    service: &ServiceName,
    send_proxy: Option<(Version, Ends)>,
) {
    match connect(forwarder, service, send_proxy).await {
        Ok(server) => forwarder.tunnels().carry(stream, server).await,
        Err(problem) => {
            count(&forwarder.metrics.tcp_refused);
            tracing::debug!(%service, problem, "a connection found no server");
            reset(stream);
        }
    }
}

async fn connect(
    forwarder: &Forwarder,
    service: &ServiceName,
    send_proxy: Option<(Version, Ends)>,
) -> Result<Tunnel, String> {
    let target = forwarder.services().by_name(service).map_err(|nobody| nobody.to_string())?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    let connected = target.handle.connect(request).await;
    let mut server = connected.map_err(|fault: Fault| {
        count(&target.golden.faults);
        fault.to_string()
    })?;
    if let Some((version, ends)) = send_proxy {
        let head = proxy_protocol::write(version, ends);
        server.write_all(&head).await.map_err(|error| error.to_string())?;
    }
    Ok(server)
}
