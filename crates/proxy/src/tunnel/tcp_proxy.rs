//! TCP connections to a service.

use fairmesh_client::{Fault, ServiceName, Tunnel};
use http::{Method, Request};
use tokio::io::AsyncWriteExt as _;

use crate::{
    forward::forwarder::Forwarder,
    listen::{client_stream::ClientStream, socket},
    observe::counter::increment,
};

/// Carries a connection to a server of the service and back.
pub(crate) async fn serve(
    forwarder: &Forwarder,
    stream: impl ClientStream,
    service: &ServiceName,
    header: Option<Vec<u8>>,
) {
    match connect(forwarder, service, header).await {
        Ok(server) => forwarder.tunnels().carry(stream, server).await,
        Err(problem) => {
            increment(&forwarder.metrics.tunnels.tcp_refused);
            tracing::debug!(%service, problem, "a connection found no server");
            socket::reset(stream);
        }
    }
}

async fn connect(
    forwarder: &Forwarder,
    service: &ServiceName,
    header: Option<Vec<u8>>,
) -> Result<Tunnel, String> {
    let target = forwarder.services().by_name(service).map_err(|error| error.to_string())?;
    let mut request = Request::new(());
    *request.method_mut() = Method::CONNECT;
    let connected = target.handle.connect(request).await;
    let mut server = connected.map_err(|fault: Fault| {
        increment(&target.metrics.faults);
        fault.to_string()
    })?;
    if let Some(header) = header {
        server.write_all(&header).await.map_err(|error| error.to_string())?;
    }
    Ok(server)
}
