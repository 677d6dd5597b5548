//! One connection of a node: identifies the calling pod and the requested service, and serves the connection.

use std::{
    collections::BTreeMap,
    io, mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fairmesh_calls::forwarding::Principal;
use fairmesh_edge::{
    counter::increment,
    forward::{
        connection_info::ConnectionInfo,
        misdirected_request::{self, ServedServices},
    },
    listen::{
        connection_permit::ConnectionPermit,
        proxy_header,
        proxy_protocol::{Addresses, ConnectionId},
        socket_options,
        unidentified_peers::Unidentified,
    },
    server::AcceptedConnection,
};
use fairmesh_listen::GuardedStream;
use fairmesh_model::{CallerId, Identity, ServiceName, SpiffePath};
use fairmesh_wire::{
    LogLimiter,
    transport::{SecureStream, Stream, Transport},
};
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncWriteExt as _, copy, sink},
    net::TcpStream,
    sync::Semaphore,
    time::{Instant, timeout},
};

use crate::{
    metrics::GatewayMetrics,
    pod_connection::PodConnection,
    tenant_directory::{Directory, Entry},
    tenants::{TenantServer, Tenants},
};

/// Time limit for identifying the caller: a handshake of two round trips and a signature on a busy node, and
/// the PROXY protocol header.
const IDENTIFY_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit for a node to read a refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Limits log lines about connections over the maximum of tenants, or of connections of all tenants.
static TOO_MANY: LogLimiter = LogLimiter::new();

/// Serves the connections of nodes.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) transport: Transport,
    pub(crate) tenants: Tenants,
    pub(crate) directory: Arc<Directory>,
    pub(crate) metrics: Arc<GatewayMetrics>,
    pub(crate) unidentified: Arc<Unidentified>,
    /// Permits of the connections of all tenants.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) idle_timeout: Duration,
    /// Connections to virtual addresses since the last report, by service: as many services as connections were accepted meanwhile.
    /// `None`: this replica does not report.
    pub(crate) opened: Option<Mutex<BTreeMap<ServiceName, u64>>>,
}

/// A connection whose pod is authenticated.
struct PodStream {
    stream: Box<dyn SecureStream>,
    caller: ServiceName,
    id: CallerId,
    connection: ConnectionId,
    addresses: Addresses,
}

impl Connections {
    /// Serves a connection until it ends. Long operations are boxed, since every connection would otherwise
    /// reserve space for the largest one.
    pub(crate) async fn serve(self: Arc<Self>, accepted: AcceptedConnection) {
        let AcceptedConnection { stream, caller: node, permit } = accepted;
        let Some(place) = self.unidentified.enter(node.ip()) else { return socket_options::reset(stream) };
        // Fails only on a broken socket, which the first read reports.
        let _ = stream.set_nodelay(true);
        socket_options::set_user_timeout(&stream, self.idle_timeout);
        let identified = timeout(IDENTIFY_TIMEOUT, self.identify(stream)).boxed().await;
        let pod = match identified.unwrap_or_else(|late| Err(late.into())) {
            Ok(pod) => pod,
            Err(error) if has_left(&error) => {
                increment(&self.metrics.left_peers);
                return tracing::debug!(%node, %error, "a peer left before it said who it is");
            }
            Err(error) => {
                increment(&self.metrics.refused_peers);
                return tracing::debug!(%node, %error, "refused a connection");
            }
        };
        let Some(tenant) = self.admit(&pod, &permit) else { return };
        drop(place);
        self.serve_pod(pod, &tenant, permit).boxed().await;
    }

    /// Takes the connections to virtual addresses counted since the last call.
    pub(crate) fn take_opened(&self) -> BTreeMap<ServiceName, u64> {
        let take = |opened: &Mutex<_>| mem::take(&mut *opened.lock().unwrap_or_else(PoisonError::into_inner));
        self.opened.as_ref().map(take).unwrap_or_default()
    }

    /// Replaces the permit of an unidentified peer by one of its tenant and one of all tenants. The tenant's
    /// permit is taken first, so that a tenant at its limit takes nothing from others.
    fn admit(&self, pod: &PodStream, permit: &ConnectionPermit) -> Option<Arc<TenantServer>> {
        let (name, connection) = (&pod.caller.tenant, pod.connection);
        let Some(tenant) = self.tenants.server_of(name, self.directory.quotas()) else {
            increment(&self.metrics.tenants_refused);
            if let Some(suppressed) = TOO_MANY.next() {
                tracing::warn!(tenant = %name, suppressed, "refused a connection: --max-tenants are served already");
            }
            return None;
        };
        let Some(of_tenant) = tenant.enter() else {
            tracing::debug!(tenant = %name, %connection, "refused a connection at the limit of the tenant");
            return None;
        };
        let Ok(of_all) = Arc::clone(&self.permits).try_acquire_owned() else {
            increment(&self.metrics.refused_connections);
            if let Some(suppressed) = TOO_MANY.next() {
                tracing::warn!(tenant = %name, suppressed, "refused a connection: --max-connections are open already");
            }
            return None;
        };
        increment(&tenant.accepted);
        permit.exchange(of_all, of_tenant);
        Some(tenant)
    }

    /// Serves a connection of a pod whose tenant has room for it, always as HTTP: if bytes were forwarded
    /// unread, they could be a request that claims any caller, on a connection that the server trusts as the
    /// gateway's.
    async fn serve_pod(&self, pod: PodStream, tenant: &TenantServer, permit: Arc<ConnectionPermit>) {
        let PodStream { stream, caller, id, connection, addresses } = pod;
        let Ok(service) = self.directory.service_at(&caller.tenant, addresses.destination).await else {
            increment(&self.metrics.unrouted);
            if let Some(suppressed) = tenant.log.next() {
                tracing::warn!(tenant = %caller.tenant, %connection, suppressed, "closed a connection: the tenant's virtual addresses are not known yet");
            }
            return;
        };
        let ends_by = match service.as_ref().map(|service| (service, self.enter(service))) {
            None => None,
            Some((_, Entry::Admitted(ends_by))) => Some(ends_by),
            Some((service, Entry::Elsewhere)) => return refuse(stream, service).await,
            Some((service, Entry::Throttled)) => {
                if let Some(suppressed) = tenant.log.next() {
                    tracing::warn!(%service, %connection, suppressed, "refused a connection at the limit in the placement of its service");
                }
                return;
            }
        };
        let default = self.directory.default_authorization();
        let (log, mirrors) = (Arc::clone(&tenant.log), Arc::clone(&tenant.mirrors));
        let (source, tokens) = (addresses.source.ip().to_canonical(), self.directory.token_verifier());
        let principal = Principal { caller: id, default, source, tokens, connection, log, mirrors };
        // `info` holds the permit until the connection ends.
        let info = ConnectionInfo::new(addresses.source, service, permit)
            .of_principal(Arc::new(principal))
            .within(Arc::clone(&tenant.requests))
            .ending_by(ends_by.clone())
            .among(Arc::clone(&self.directory) as Arc<dyn ServedServices>);
        let shutdown = ends_by.as_ref().unwrap_or(&tenant.server.shutdown);
        tenant.server.serve_http_until(shutdown, stream, info, PodConnection).boxed().await;
    }

    /// Lets a connection to the virtual address of a service begin. Those beyond its limit are reported too: they are what is wanted.
    fn enter(&self, service: &ServiceName) -> Entry {
        let entry = self.directory.enter(service, Instant::now());
        if let (Some(opened), Entry::Admitted(_) | Entry::Throttled) = (&self.opened, &entry) {
            let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
            *opened.entry(service.clone()).or_default() += 1;
        }
        entry
    }

    /// Identifies who connects. Tenant and service come from the certificate. Addresses and connection id
    /// come from the node, and can only refer to that tenant.
    async fn identify(&self, stream: TcpStream) -> io::Result<PodStream> {
        let accepting = self.transport.accept(GuardedStream::outgoing(Stream::Tcp(stream)));
        let (stream, _) = accepting.await?.into_parts();
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
                Ok(PodStream { stream, caller, id: CallerId::new(id), connection, addresses })
            }
            _ => Err(refused(format!("{caller} sent a header without addresses or without an id"))),
        }
    }
}

/// Tells the node that a service is placed on other backends. Nothing of the connection was processed, so the
/// node sends the pod's bytes again to another backend.
async fn refuse(mut stream: Box<dyn SecureStream>, service: &ServiceName) {
    let refusing = async {
        stream.write_all(&misdirected_request::response_bytes(service)).await?;
        stream.shutdown().await?;
        // Closing a connection with unread bytes would reset it, and the response would be lost.
        copy(&mut stream, &mut sink()).await
    };
    let _ = timeout(REFUSAL_TIMEOUT, refusing).await;
}

/// Whether the peer closed the connection. A node that tries two replicas closes the slower connection and claims nothing on it.
fn has_left(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn refused(problem: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, problem)
}
