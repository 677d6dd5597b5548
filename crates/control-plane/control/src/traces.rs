//! Receives spans that processes export to this control plane, and serves traces to operators.

use std::net::SocketAddr;

use fairmesh_listen::{Limits, Listeners, PageListener, listener_table};
use fairmesh_model::{Invalid, ServiceName, Tenant};
use fairmesh_traces::{TraceLimits, TraceView, Traces};
use fairmesh_wire::{transport::Transport, v1};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::{
    ControlError,
    access::{Access, guard_spans},
    http::secure,
};

/// The listener for spans.
#[derive(Debug)]
pub(crate) struct TraceListener {
    listener: PageListener,
    traces: Traces,
}

impl TraceListener {
    /// Binds the listener, if an address is given.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(crate) async fn bind(
        address: Option<SocketAddr>,
        listeners: &Listeners,
    ) -> Result<Option<Self>, ControlError> {
        let Some(address) = address else { return Ok(None) };
        let acceptor = listeners.acceptor(&listener_table::CONTROL_TRACES, Limits::pages());
        let bound = PageListener::bind(address, acceptor).await;
        let listener = bound.map_err(|source| ControlError::Traces { address, source })?;
        Ok(Some(Self { listener, traces: Traces::new(TraceLimits::CONTROL_PLANE) }))
    }

    /// The traces built from the received spans.
    pub(crate) fn traces(&self) -> Traces {
        self.traces.clone()
    }

    /// Receives spans until `stopping`. Connections are as those of the pages, accepted by `transport`.
    pub(crate) async fn serve(self, transport: Transport, access: Access, stopping: CancellationToken) {
        let router = guard_spans(self.traces.router(), access);
        let secured = |stream| secure(stream, transport.clone());
        self.listener.serve_secured(router, secured, stopping).await;
    }
}

/// Reads traces for an operator.
///
/// # Errors
/// This control plane receives no spans, the trace does not exist, or a name is malformed.
pub(crate) fn read(
    traces: Option<&Traces>,
    request: v1::ReadTracesRequest,
) -> Result<v1::ReadTracesResponse, Status> {
    let traces = traces.ok_or_else(|| {
        Status::failed_precondition("this control plane takes no spans; start it with --traces ADDRESS")
    })?;
    let invalid = |problem: Invalid| Status::invalid_argument(problem.to_string());
    let view = match (request.service.as_str(), request.tenant.as_str()) {
        ("", "") => TraceView::All,
        ("", tenant) => TraceView::Tenant(Tenant::new(tenant).map_err(invalid)?),
        (service, _) => TraceView::Service(ServiceName::new(service).map_err(invalid)?),
    };
    let malformed = || Status::invalid_argument("id: write the 32 hexadecimal digits of a trace");
    let id = match request.id.as_str() {
        "" => None,
        id if id.len() == 32 => Some(u128::from_str_radix(id, 16).map_err(|_| malformed())?),
        _ => return Err(malformed()),
    };
    traces.read(&view, id).ok_or_else(|| {
        Status::not_found(format!(
            "there is no trace {}; it was neither slow nor failed, is older than an hour, or was not exported to this control plane",
            request.id
        ))
    })
}
