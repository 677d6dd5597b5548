//! The connection on which a request arrives.

use std::{net::SocketAddr, sync::Arc};

use fairmesh_client::ServiceName;

use crate::{
    forward::last_target::LastTarget, listen::connection_permit::ConnectionPermit,
    passthrough::http2::CapturedConnection,
};

/// Where a request came in.
#[derive(Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) caller: SocketAddr,
    /// Whom the listener is for.
    pub(crate) service: Option<ServiceName>,
    /// What the connection holds.
    pub(crate) permit: Arc<ConnectionPermit>,
    /// Whether its program speaks TLS.
    pub(crate) over_tls: bool,
    /// Whether its program may ask for tunnels where no route says so.
    pub(crate) allows_connect: bool,
    /// How it came to be here, where its program knows nothing of that.
    pub(crate) captured: Option<CapturedConnection>,
    pub(crate) last_target: LastTarget,
}

impl ConnectionInfo {
    pub(crate) fn new(
        caller: SocketAddr,
        service: Option<ServiceName>,
        permit: Arc<ConnectionPermit>,
    ) -> Self {
        let last_target = LastTarget::default();
        Self { caller, service, permit, over_tls: false, allows_connect: false, captured: None, last_target }
    }

    /// The same, over TLS or not.
    pub(crate) fn over_tls(self, over_tls: bool) -> Self {
        Self { over_tls, ..self }
    }

    /// The same, with leave to ask for tunnels or without.
    pub(crate) fn allow_connect(self, allows_connect: bool) -> Self {
        Self { allows_connect, ..self }
    }

    /// One whose program meant somebody else.
    pub(crate) fn captured(
        caller: SocketAddr,
        permit: Arc<ConnectionPermit>,
        captured: CapturedConnection,
    ) -> Self {
        Self { captured: Some(captured), ..Self::new(caller, None, permit) }
    }
}
