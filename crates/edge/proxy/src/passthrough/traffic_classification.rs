//! Classifies captured connections, and passes those that are not for a service through to their original
//! destination.

use std::{io, net::SocketAddr, sync::Arc};

use fairmesh_edge::{counter::increment, listen::socket_options, server::ConnectionServer};
use tokio::net::TcpStream;

use crate::passthrough::{
    metrics::CaptureMetrics,
    original_dst::{Destination, PassthroughConnection, PassthroughConnector},
    protocol_detect::{self, DetectedProtocol},
};

/// Passes captured traffic through to its original destination.
#[derive(Debug)]
pub(crate) struct Passthrough {
    pub(crate) server: Arc<ConnectionServer>,
    pub(crate) metrics: Arc<CaptureMetrics>,
    pub(crate) connector: PassthroughConnector,
}

/// What a captured connection carries.
#[derive(Debug)]
pub(crate) enum CapturedTraffic {
    /// HTTP to a service, or HTTP/2, whose requests are classified individually.
    Service,
    /// Other traffic. Contains the connection to the original destination if the server spoke first.
    Other(Option<PassthroughConnection>),
    /// Other traffic where only services are allowed, or a connection of the proxy itself.
    Refused,
    /// No traffic: the connection failed, or the proxy stops.
    Ended,
}

impl Passthrough {
    pub(crate) fn new(server: Arc<ConnectionServer>, metrics: Arc<CaptureMetrics>) -> Self {
        Self { server, metrics, connector: PassthroughConnector::default() }
    }

    /// Determines what a captured connection carries, and counts it. Consumes no bytes.
    pub(crate) async fn detect(
        &self,
        stream: &TcpStream,
        caller: SocketAddr,
        Destination { address, only_services }: Destination,
    ) -> CapturedTraffic {
        let Self { server, metrics, connector } = self;
        let idle_timeout = server.limits.idle_timeout;
        let seen = tokio::select! {
            seen = protocol_detect::detect(stream, caller, address, connector, idle_timeout) => seen,
            () = server.shutdown.idle_grace_over().cancelled() => return CapturedTraffic::Ended,
        };
        // Checked after detection: a connection of the proxy itself is registered before it sends data.
        if connector.is_own(caller) {
            increment(&metrics.loops);
            let problem = "the proxy's own connection was redirected to it; except the proxy from capture";
            tracing::warn!(original = %address, "{problem}");
            return CapturedTraffic::Refused;
        }
        let (is_service, to) = match seen {
            Ok(DetectedProtocol::Http1(host)) => {
                (only_services || server.forwarder.services.is_declared(&host).await, None)
            }
            Ok(DetectedProtocol::Http2) => (true, None),
            Ok(DetectedProtocol::Other(to)) => (false, to),
            Err(_) => {
                increment(&server.forwarder.metrics.connections.failed);
                return CapturedTraffic::Ended;
            }
        };
        if is_service {
            increment(&metrics.served);
            CapturedTraffic::Service
        } else if only_services {
            increment(&metrics.refused);
            CapturedTraffic::Refused
        } else {
            increment(&metrics.passed_through);
            CapturedTraffic::Other(to)
        }
    }

    /// Carries a connection to its original destination, over the open connection `to` if given.
    pub(crate) async fn pass_through(
        &self,
        stream: TcpStream,
        original: SocketAddr,
        to: Option<PassthroughConnection>,
    ) {
        let forwarder = &self.server.forwarder;
        let server = async {
            match to {
                Some(server) => Ok(server),
                None => self.connector.connect(original).await,
            }
        };
        let server = tokio::select! {
            server = server => server,
            () = self.server.shutdown.deadline_passed() => {
                return increment(&forwarder.metrics.connections.drain_timeouts);
            }
        };
        match (server, reregister(stream)) {
            (Ok(server), Ok(stream)) => drop(forwarder.tunnels.carry(stream, server).await),
            (Err(error), Ok(stream)) => {
                increment(&self.metrics.failed);
                tracing::debug!(%error, %original, "cannot connect to the original destination");
                socket_options::reset(stream);
            }
            (_, Err(_)) => increment(&forwarder.metrics.connections.failed),
        }
    }
}

/// Registers the connection with the runtime again, to renew its readiness.
fn reregister(stream: TcpStream) -> io::Result<TcpStream> {
    TcpStream::from_std(stream.into_std()?)
}
