//! Receives spans that processes export to this control plane.

use std::net::SocketAddr;

use fairmesh_listen::{Limits, Listeners, PageListener, listener_table};
use fairmesh_traces::{TraceLimits, TraceLink, Traces};
use fairmesh_wire::transport::Transport;
use tokio_util::sync::CancellationToken;

use crate::{
    ControlError,
    access::{Access, guard_spans},
    http::secure,
};

/// Configuration of the traces that a control plane keeps.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    /// Address on which the control plane receives spans by OTLP over HTTP.
    pub address: SocketAddr,
    /// Link to the same traces in another tracing system.
    pub link: Option<TraceLink>,
}

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
        config: Option<&TraceConfig>,
        listeners: &Listeners,
    ) -> Result<Option<Self>, ControlError> {
        let Some(TraceConfig { address, link }) = config.cloned() else { return Ok(None) };
        let acceptor = listeners.acceptor(&listener_table::CONTROL_TRACES, Limits::pages());
        let bound = PageListener::bind(address, acceptor).await;
        let listener = bound.map_err(|source| ControlError::Traces { address, source })?;
        Ok(Some(Self { listener, traces: Traces::new(TraceLimits::CONTROL_PLANE, link) }))
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
