//! The connection on which a request arrives.

use std::{net::SocketAddr, sync::Arc};

use fairmesh_calls::{Body, Fault, ServiceName, forwarding::Principal};
use fairmesh_model::SpiffePath;
use http::{Extensions, HeaderValue, Response};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    forward::{
        error_response,
        mesh_boundary::Boundary,
        misdirected_request::{self, ServedServices},
        request_limit::RequestLimit,
    },
    listen::connection_permit::ConnectionPermit,
    services::{
        host_cache::HostCache,
        host_name::{self, HostError},
        target::Target,
    },
    shutdown::Shutdown,
};

/// Information about the client's connection, for handling its requests.
#[derive(Debug)]
pub struct ConnectionInfo {
    pub(crate) caller: SocketAddr,
    /// The service of the listener, if it has one.
    pub(crate) service: Option<ServiceName>,
    /// Permit held by everything that outlives a request, such as tunnels.
    pub(crate) permit: Arc<ConnectionPermit>,
    /// Whether the client uses TLS.
    pub(crate) over_tls: bool,
    /// Whether CONNECT is allowed without a route that names it.
    pub(crate) allows_connect: bool,
    /// Caller that a gateway accepted. Its requests reach only services that the records of its tenant name and that
    /// policies allow.
    pub(crate) principal: Option<Arc<Principal>>,
    /// The limit of concurrent requests that this connection shares with others.
    pub(crate) request_limit: Option<Arc<RequestLimit>>,
    /// The border of the mesh, if the listener's clients are outside the mesh.
    pub(crate) boundary: Option<Boundary>,
    /// The services that this backend of the gateway serves. Requests for other services are refused.
    pub(crate) served: Option<Arc<dyn ServedServices>>,
    /// The shutdown of the connections of its service, by which its tunnels end too.
    pub(crate) ends_by: Option<Arc<Shutdown>>,
    pub(crate) host_cache: HostCache,
}

impl ConnectionInfo {
    /// Info for a client at `caller`. `service` is the service of the listener, if it has one.
    pub fn new(caller: SocketAddr, service: Option<ServiceName>, permit: Arc<ConnectionPermit>) -> Self {
        let host_cache = HostCache::default();
        Self {
            caller,
            service,
            permit,
            over_tls: false,
            allows_connect: false,
            principal: None,
            request_limit: None,
            boundary: None,
            served: None,
            ends_by: None,
            host_cache,
        }
    }

    /// Sets [`over_tls`](Self::over_tls).
    pub(crate) fn over_tls(self, over_tls: bool) -> Self {
        Self { over_tls, ..self }
    }

    /// Sets [`boundary`](Self::boundary).
    pub(crate) fn at_boundary(self, boundary: Option<Boundary>) -> Self {
        Self { boundary, ..self }
    }

    /// Sets the caller that a gateway accepted.
    pub fn of_principal(self, principal: Arc<Principal>) -> Self {
        Self { principal: Some(principal), ..self }
    }

    /// Sets the limit of concurrent requests that the connection shares with others. Its requests do not take
    /// the fast path.
    pub fn within(self, request_limit: Arc<RequestLimit>) -> Self {
        Self { request_limit: Some(request_limit), ..self }
    }

    /// Refuses requests whose host names a service placed on other backends. The service of the connection itself is
    /// not checked: when it moves, open connections stay on this backend.
    pub fn among(self, served: Arc<dyn ServedServices>) -> Self {
        Self { served: Some(served), ..self }
    }

    /// Ends the tunnels of the connection at the deadline of a shutdown of some connections, if there is one.
    pub fn ending_by(self, ends_by: Option<Arc<Shutdown>>) -> Self {
        Self { ends_by, ..self }
    }

    /// Allows CONNECT without a route that names it.
    pub fn allow_connect(self, allows_connect: bool) -> Self {
        Self { allows_connect, ..self }
    }

    /// The service that a host names. For a principal, only services of its own tenant.
    pub(crate) fn service_of_host(&self, host: &str) -> Result<ServiceName, HostError> {
        let service = match self.principal.as_ref().map(|principal| &principal.caller.id().path) {
            None => host_name::service_name(host),
            Some(SpiffePath::Service(caller)) => host_name::service_of_tenant(host, &caller.tenant),
            // A process of the mesh has no tenant.
            Some(SpiffePath::Mesh(..)) => Err(HostError::NotAService(host.to_owned())),
        }?;
        match &self.served {
            Some(served) if !served.serves(&service) => Err(HostError::Misdirected(service)),
            _ => Ok(service),
        }
    }

    /// Takes a permit for a request, if the connection shares a limit.
    ///
    /// # Errors
    /// The limit is reached.
    pub(crate) fn enter_request(&self) -> Result<Option<OwnedSemaphorePermit>, Fault> {
        self.request_limit.as_ref().map(|limit| limit.enter()).transpose()
    }

    /// Whether the client's identity claims are removed. This is so if a gateway states the principal instead, or if
    /// the client is outside the mesh and has no identity.
    pub(crate) fn states_caller(&self) -> bool {
        self.principal.is_some() || self.boundary.is_some()
    }

    /// Returns the response to a failed call. Principals, and clients outside the mesh that get no explanations, see
    /// only the service and the kind of the fault, because the message may name servers and addresses. The log has
    /// the full message.
    pub(crate) fn fault_response(
        &self,
        fault: &Fault,
        target: &Target,
        grpc: Option<HeaderValue>,
    ) -> Response<Body> {
        let (service, kind) = (target.handle.name(), fault.kind().label());
        let message = match (&self.principal, self.boundary) {
            (Some(principal), _) => {
                let connection = principal.connection;
                let caller = principal.caller.as_str();
                tracing::debug!(%service, %connection, caller, %fault, "a call failed");
                format!("{service}: {kind}; it is connection {connection} in the gateway's log")
            }
            (None, Some(Boundary { explains: false })) => {
                tracing::debug!(%service, client = %self.caller, %fault, "a call failed");
                format!("{service}: {kind}; the proxy's log at level debug has the reason")
            }
            (None, _) => return error_response::from_fault(fault, grpc),
        };
        let shown = Fault::new(fault.kind(), message);
        let shown = match fault.retry_after() {
            Some(wait) => shown.with_retry_after(wait),
            None => shown,
        };
        error_response::from_fault(&shown, grpc)
    }

    /// Clears a request's extensions, which belong to the client's connection, except the principal.
    pub(crate) fn reset_extensions(&self, extensions: &mut Extensions) {
        extensions.clear();
        self.set_principal(extensions);
    }

    /// Removes response fields that clients outside the mesh must not see, and fields that servers must not send to a
    /// gateway's node.
    pub(crate) fn strip_response(&self, response: &mut Response<Body>) {
        if self.principal.is_some() {
            misdirected_request::remove_claims(response.headers_mut());
        }
        if let Some(boundary) = self.boundary {
            boundary.strip_response(response);
        }
    }

    /// Adds the principal, if there is one, to a request's extensions.
    pub(crate) fn set_principal(&self, extensions: &mut Extensions) {
        if let Some(principal) = &self.principal {
            extensions.insert(Arc::clone(principal));
        }
    }
}
