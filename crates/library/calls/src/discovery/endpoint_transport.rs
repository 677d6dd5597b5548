use std::sync::Arc;

use fairmesh_connections::{EndpointPool, TransportContext};
use fairmesh_router::EndpointRef;

/// The transport to one endpoint: usually a handle to its connections. `()` is the transport of programs that decide
/// calls but do not send them.
pub trait EndpointTransport: Clone + Send + Sync + 'static {
    /// Configuration that all transports of one mesh share.
    type Context: Clone + Send + Sync + 'static;

    /// Creates the transport to an endpoint. Called on the request path, once per endpoint.
    fn open(context: &Self::Context, endpoint: EndpointRef) -> Self;

    /// Called when the endpoint was removed, moved to another address or left this client's subset. Closes idle
    /// connections now, and the others when their calls end.
    fn retire(&self);

    /// Closes connections that were idle for too long. Called periodically.
    fn close_idle(&self);

    /// Closes idle connections that have ended because their peers were revoked.
    fn close_ended(&self);
}

impl EndpointTransport for () {
    type Context = ();

    fn open(_: &(), _: EndpointRef) -> Self {}

    fn retire(&self) {}

    fn close_idle(&self) {}

    fn close_ended(&self) {}
}

impl EndpointTransport for Arc<EndpointPool> {
    type Context = TransportContext;

    fn open(context: &TransportContext, endpoint: EndpointRef) -> Self {
        Self::new(EndpointPool::new(context, endpoint))
    }

    fn retire(&self) {
        EndpointPool::retire(self);
    }

    fn close_idle(&self) {
        EndpointPool::close_idle(self);
    }

    fn close_ended(&self) {
        EndpointPool::close_ended(self);
    }
}
