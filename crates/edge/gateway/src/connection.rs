//! One connection of a node: whose it is, what it is for, and how it is served.

use std::{io, sync::Arc, time::Duration};

use bytes::BytesMut;
use fairmesh_calls::forwarding::Principal;
use fairmesh_edge::{
    counter::increment,
    forward::{
        connection_info::ConnectionInfo,
        tcp::{self, TcpRoute},
    },
    listen::{
        connection_permit::ConnectionPermit, first_bytes::FirstBytes, proxy_header,
        proxy_protocol::Addresses, socket,
    },
    server::AcceptedConnection,
    tunnel::prefixed_io::PrefixedIo,
};
use fairmesh_listen::GuardedStream;
use fairmesh_model::{CallerId, Identity, ServiceName, SpiffePath};
use fairmesh_wire::transport::{SecureStream, Stream, Transport};
use futures_util::FutureExt as _;
use http::HeaderValue;
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

use crate::{
    directory::Directory,
    metrics::GatewayMetrics,
    origin::PodConnection,
    tenants::{TenantServer, Tenants},
};

/// Time limit of a handshake: two round trips and a signature on a busy node.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client at a virtual address may be silent before its connection is forwarded as bytes: its server may speak first.
const CLIENT_SILENCE: Duration = Duration::from_secs(1);
/// Time limit of the rest of HTTP headers.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_READ: usize = 4 * 1024;

/// Serves the connections of nodes.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) transport: Transport,
    pub(crate) tenants: Tenants,
    pub(crate) directory: Directory,
    pub(crate) metrics: Arc<GatewayMetrics>,
    pub(crate) idle_timeout: Duration,
}

/// A connection whose pod has proved its identity.
struct PodStream {
    stream: Box<dyn SecureStream>,
    caller: ServiceName,
    principal: Arc<Principal>,
    addresses: Addresses,
}

/// A connection of which the first bytes were read.
type BegunStream = PrefixedIo<Box<dyn SecureStream>>;

impl Connections {
    /// Serves a connection until it ends. Long operations are boxed, since every connection would else reserve space for the largest.
    pub(crate) async fn serve(self: Arc<Self>, accepted: AcceptedConnection) {
        let AcceptedConnection { stream, caller: node, permit } = accepted;
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        socket::set_user_timeout(&stream, self.idle_timeout);
        let pod = match self.identify(stream).boxed().await {
            Ok(pod) => pod,
            Err(error) => {
                increment(&self.metrics.refused_peers);
                return tracing::debug!(%node, %error, "refused a connection");
            }
        };
        let Some(tenant) = self.tenants.server_of(&pod.caller.tenant) else {
            increment(&self.metrics.tenants_refused);
            return tracing::warn!(tenant = %pod.caller.tenant, "refused a connection: --max-tenants are served already");
        };
        let Some(place) = tenant.enter() else {
            return tracing::debug!(tenant = %pod.caller.tenant, "refused a connection at the limit of the tenant");
        };
        permit.hold(place);
        self.serve_pod(pod, &tenant, permit).boxed().await;
    }

    /// Serves a connection of a pod whose tenant has room for it.
    async fn serve_pod(&self, pod: PodStream, tenant: &TenantServer, permit: Arc<ConnectionPermit>) {
        let PodStream { stream, caller, principal, addresses } = pod;
        let service = self.directory.service_at(&caller.tenant, addresses.destination).await;
        // It holds the permit until the connection ends.
        let info = ConnectionInfo::new(addresses.source, service.clone(), permit)
            .of_principal(Arc::clone(&principal));
        let begun = tokio::select! {
            begun = self.begin(stream, service.is_some()) => begun,
            // A client that has sent nothing loses nothing.
            () = tenant.server.shutdown.idle_grace_over().cancelled() => return,
        };
        match (begun, service) {
            (Ok((FirstBytes::Http1(_) | FirstBytes::Http2, stream)), _) => {
                // A SPIFFE id is a header value.
                let Ok(caller) = HeaderValue::try_from(principal.caller.as_str()) else { return };
                tenant.server.serve_http(stream, info, PodConnection { caller }).boxed().await;
            }
            (Ok((FirstBytes::Other, stream)), Some(service)) => {
                let route = TcpRoute { service: &service, header: None, principal: Some(principal) };
                tcp::serve(&tenant.server.forwarder, stream, route).boxed().await;
            }
            (Ok((FirstBytes::Other, stream)), None) => {
                increment(&self.metrics.unrouted);
                tracing::debug!(%caller, destination = %addresses.destination, "refused bytes to no virtual address");
                socket::reset(stream);
            }
            (Err(error), _) => {
                increment(&tenant.server.forwarder.metrics.connections.failed);
                tracing::debug!(%caller, %error, "a connection failed before its first request");
            }
        }
    }

    /// Verifies who connects. Tenant and service are what the certificate says; addresses and the id are what the node says, and name
    /// things of that tenant alone.
    async fn identify(&self, stream: TcpStream) -> io::Result<PodStream> {
        let accepting = self.transport.accept(GuardedStream::outgoing(Stream::Tcp(stream)));
        let (stream, _) = timeout(HANDSHAKE_TIMEOUT, accepting).await??.into_parts();
        let Stream::Tls(mut stream) = stream else { return Err(io::Error::other("it is not secured")) };
        let (id, caller) = match stream.peer() {
            Identity::Spiffe(id) => match id.path.clone() {
                SpiffePath::Service(service) => (id, service),
                path @ SpiffePath::Mesh(..) => {
                    return Err(refused(format!("{path} is no service of a tenant")));
                }
            },
            peer => return Err(refused(format!("{peer} is of no tenant"))),
        };
        let header = proxy_header::read(&mut stream, self.idle_timeout).await?;
        match (header.addresses, header.connection_id) {
            (Some(addresses), Some(connection)) => {
                let default = self.directory.default_authorization();
                let principal = Arc::new(Principal { caller: CallerId::new(id), default, connection });
                Ok(PodStream { stream, caller, principal, addresses })
            }
            _ => Err(refused(format!("{caller} sent a header without addresses or without an id"))),
        }
    }

    /// Reads until the protocol is known.
    async fn begin(
        &self,
        mut stream: Box<dyn SecureStream>,
        is_virtual: bool,
    ) -> io::Result<(FirstBytes, BegunStream)> {
        let mut read = BytesMut::with_capacity(FIRST_READ);
        let mut time_limit = if is_virtual { CLIENT_SILENCE } else { self.idle_timeout };
        let seen = loop {
            match timeout(time_limit, stream.read_buf(&mut read)).await {
                Ok(Ok(0)) if read.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(late) if read.is_empty() && !is_virtual => return Err(late.into()),
                Ok(Ok(0)) | Err(_) => break FirstBytes::Other,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
            }
            // It changes what it reads.
            if let Some(seen) = FirstBytes::classify(&mut read.clone()) {
                break seen;
            }
            time_limit = HEAD_TIMEOUT;
        };
        Ok((seen, PrefixedIo::new(read, stream)))
    }
}

fn refused(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, problem)
}
