//! Forwards TCP connections to a service. Each connection gets its own endpoint, and another one if that is
//! unreachable.

use fairmesh_calls::{Fault, ServiceName, Tunnel};
use http::{Method, Request};
use tokio::io::AsyncWriteExt as _;

use crate::{
    counter::increment,
    forward::forwarder::Forwarder,
    listen::{client_stream::TcpClientStream, socket_options},
};

/// How a TCP connection is forwarded.
#[derive(Debug)]
pub struct TcpRoute<'a> {
    /// The service to which the connection is forwarded.
    pub service: &'a ServiceName,
    /// The PROXY protocol header that is sent to the server first.
    pub header: Option<Vec<u8>>,
}

/// Copies a connection to a server of the service.
pub async fn serve(forwarder: &Forwarder, stream: impl TcpClientStream, route: TcpRoute<'_>) {
    let service = route.service;
    match connect(forwarder, route).await {
        Ok(server) => drop(forwarder.tunnels.carry(stream, server).await),
        Err(problem) => {
            increment(&forwarder.metrics.tunnels.tcp_refused);
            tracing::debug!(%service, problem, "no server for a TCP connection");
            socket_options::reset(stream);
        }
    }
}

async fn connect(
    forwarder: &Forwarder,
    TcpRoute { service, header }: TcpRoute<'_>,
) -> Result<Tunnel, String> {
    let target = forwarder.services.by_name(service).map_err(|error| error.to_string())?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    let connected = target.handle.open_connection(request).await;
    let mut server = connected.map_err(|fault: Fault| {
        increment(&target.metrics.faults);
        fault.to_string()
    })?;
    if let Some(header) = header {
        server.write_all(&header).await.map_err(|error| error.to_string())?;
    }
    Ok(server)
}
