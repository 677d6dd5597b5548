//! Serves an HTTP/2 connection.

use std::{
    error::Error,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::BytesMut;
use fairmesh_http::h2::{ConnectionError, RequestBody, ServerConnection, Shared, Violation, lock};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Request, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    forward::connection_info::ConnectionInfo,
    http1::date::Date,
    http2::{
        future_pool::PooledFuture,
        rapid_reset::RapidResetGuard,
        response_stall::StallMonitor,
        stream_drain::{DrainNotice, DrainableBody},
    },
    lifecycle::shutdown::Shutdown,
    listen::server::ConnectionServer,
    observe::counter::increment,
};

/// Interval of keepalive pings on a quiet connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Shared by the requests of a connection.
struct ConnectionState {
    client_info: ConnectionInfo,
    /// Whether any request has arrived.
    has_requests: AtomicBool,
    drain_notice: Arc<DrainNotice>,
    rapid_reset: Arc<RapidResetGuard>,
    responses: StallMonitor<DrainableBody>,
}

/// Why the proxy closes a connection.
enum CloseReason {
    /// No request within the idle timeout.
    NoRequest,
    /// No response to a keepalive ping.
    Unresponsive,
    /// The client reset most of its requests.
    RapidReset,
    /// The drain deadline has passed.
    DrainDeadline,
}

impl ConnectionServer {
    pub(crate) async fn http2<I>(&self, stream: I, read: BytesMut, client_info: ConnectionInfo)
    where
        I: AsyncRead + AsyncWrite + Unpin,
    {
        let (metrics, caller) = (&self.forwarder.metrics, client_info.caller);
        let state = Arc::new(ConnectionState {
            client_info,
            has_requests: AtomicBool::new(false),
            drain_notice: Arc::default(),
            rapid_reset: Arc::default(),
            responses: StallMonitor::default(),
        });
        let mut connection = ServerConnection::new(stream, read, self.request_service(&state));
        let session = connection.session();
        // Polled only when woken, which is rare.
        let mut close_reason = FuturesUnordered::from_iter([Box::pin(self.close_reason(&state, &session))]);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            Some(close_reason) = close_reason.next() => match close_reason {
                CloseReason::NoRequest | CloseReason::Unresponsive => {
                    return increment(&metrics.connections.failed);
                }
                CloseReason::DrainDeadline => return increment(&metrics.connections.drain_timeouts),
                CloseReason::RapidReset => {
                    increment(&metrics.connections.rapid_resets);
                    // A client that does not read GOAWAY is disconnected.
                    let _ = timeout(GOAWAY_TIMEOUT, connection.refuse(Violation::RAPID_RESET)).await;
                    return;
                }
            },
        };
        let Err(error) = ended else { return };
        match error {
            ConnectionError::Violation(Violation::FLOOD) => increment(&metrics.connections.frame_floods),
            _ => increment(&metrics.connections.failed),
        }
        tracing::debug!(error = &error as &dyn Error, %caller, "connection failed");
    }

    /// Waits until the connection must be closed.
    async fn close_reason(&self, state: &ConnectionState, session: &Shared) -> CloseReason {
        let (idle_timeout, metrics) = (self.limits.idle_timeout, &self.forwarder.metrics.connections);
        tokio::select! {
            () = no_request(state, idle_timeout) => CloseReason::NoRequest,
            never = state.responses.close_stalled(idle_timeout, metrics) => match never {},
            () = state.rapid_reset.tripped() => CloseReason::RapidReset,
            () = unresponsive(session) => CloseReason::Unresponsive,
            () = self.close_at_drain_deadline(state, session) => CloseReason::DrainDeadline,
        }
    }

    /// Announces the shutdown to the client, and completes at the drain deadline.
    async fn close_at_drain_deadline(&self, state: &ConnectionState, session: &Shared) {
        let deadline = self.shutdown.deadline().await;
        lock(session).go_away();
        sleep_until(Shutdown::stream_drain_at(deadline)).await;
        state.drain_notice.send();
        sleep_until(deadline).await;
    }

    /// The service that handles the requests of a connection.
    fn request_service(
        &self,
        state: &Arc<ConnectionState>,
    ) -> impl FnMut(Request<RequestBody>) -> PooledFuture + use<> {
        let (forwarder, state) = (Arc::clone(&self.forwarder), Arc::clone(state));
        move |request| {
            state.has_requests.store(true, Relaxed);
            let (forwarder, state) = (Arc::clone(&forwarder), Arc::clone(&state));
            let pending = state.rapid_reset.start_request();
            PooledFuture::new(async move {
                let mut response = forwarder.handle(request, &state.client_info).await;
                pending.responded();
                response.headers_mut().entry(header::DATE).or_insert_with(Date::value);
                state.responses.monitor(DrainableBody::wrap(response, &state.drain_notice))
            })
        }
    }
}

/// Completes if no request arrives in time, and otherwise never.
async fn no_request(state: &ConnectionState, idle_timeout: Duration) {
    sleep(idle_timeout).await;
    if state.has_requests.load(Relaxed) {
        pending::<()>().await;
    }
}

/// Completes when the client does not respond to a keepalive ping.
async fn unresponsive(session: &Shared) {
    loop {
        sleep(KEEPALIVE_INTERVAL).await;
        if lock(session).take_activity() {
            continue;
        }
        lock(session).send_ping();
        sleep(KEEPALIVE_TIMEOUT).await;
        if !lock(session).take_activity() {
            return;
        }
    }
}
