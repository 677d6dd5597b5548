//! Serves an HTTP/2 connection.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use bytes::BytesMut;
use fairmesh_calls::Body;
use fairmesh_http::h2::{ConnectionError, RequestBody, ServerConnection, Shared, Violation, lock};
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Request, Response, header};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, sleep_until, timeout},
};

use crate::{
    counter::increment,
    http1::date::Date,
    http2::{
        future_pool::PooledFuture,
        rapid_reset::RapidResetGuard,
        response_stall::StallMonitor,
        stream_drain::{DrainNotice, DrainableBody},
    },
    metrics::connections::ConnectionMetrics,
    shutdown::Shutdown,
};

/// Interval of keepalive pings on a quiet connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of idle checks per idle timeout. An idle connection ends at most one check interval late.
const IDLE_CHECKS: u32 = 5;

/// Time limit for sending GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(5);

/// Handles the requests of a connection.
pub(crate) trait StreamHandler: Send + Sync + 'static {
    fn handle(&self, request: Request<RequestBody>) -> impl Future<Output = Response<Body>> + Send;
}

/// Serves HTTP/2 connections with these limits and counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http2Server<'a> {
    pub(crate) idle_timeout: Duration,
    pub(crate) metrics: &'a ConnectionMetrics,
    pub(crate) shutdown: &'a Shutdown,
}

/// State that the requests of a connection share.
struct ConnectionState<H> {
    handler: H,
    drain_notice: Arc<DrainNotice>,
    rapid_reset: Arc<RapidResetGuard>,
    responses: StallMonitor<DrainableBody>,
}

/// Why the proxy closes a connection.
enum CloseReason {
    /// No stream was open, or a header block was incomplete, for the idle timeout.
    NoRequest,
    /// The connection had requests, and its client did not close it after GOAWAY.
    Idle,
    /// The client did not respond to a keepalive ping.
    Unresponsive,
    /// The client reset most of its requests.
    RapidReset,
    /// The drain deadline has passed.
    DrainDeadline,
}

impl Http2Server<'_> {
    /// Serves a connection of `caller` until it ends. `read` are the bytes already read from it.
    pub(crate) async fn serve<I, H>(self, stream: I, read: BytesMut, caller: SocketAddr, handler: H)
    where
        I: AsyncRead + AsyncWrite + Unpin,
        H: StreamHandler,
    {
        let metrics = self.metrics;
        let state = Arc::new(ConnectionState {
            handler,
            drain_notice: Arc::default(),
            rapid_reset: Arc::default(),
            responses: StallMonitor::default(),
        });
        let mut connection = ServerConnection::new(stream, read, request_service(&state));
        let session = connection.session();
        // In a `FuturesUnordered`, since that polls the future only when it was woken, which is rare.
        let mut close_reason = FuturesUnordered::from_iter([Box::pin(self.close_reason(&state, &session))]);
        let ended = tokio::select! {
            biased;
            ended = &mut connection => ended,
            Some(close_reason) = close_reason.next() => match close_reason {
                CloseReason::NoRequest | CloseReason::Unresponsive => return increment(&metrics.failed),
                CloseReason::Idle => return,
                CloseReason::DrainDeadline => return increment(&metrics.drain_timeouts),
                CloseReason::RapidReset => {
                    increment(&metrics.rapid_resets);
                    // A client that does not read GOAWAY is disconnected after the time limit.
                    let _ = timeout(GOAWAY_TIMEOUT, connection.refuse(Violation::RAPID_RESET)).await;
                    return;
                }
            },
        };
        let Err(error) = ended else { return };
        match error {
            ConnectionError::Violation(Violation::FLOOD) => increment(&metrics.frame_floods),
            _ => increment(&metrics.failed),
        }
        tracing::debug!(error = &error as &dyn Error, %caller, "connection failed");
    }

    /// Waits until the connection must be closed, and returns why.
    async fn close_reason<H>(self, state: &ConnectionState<H>, session: &Shared) -> CloseReason {
        let Self { idle_timeout, metrics, .. } = self;
        tokio::select! {
            reason = close_idle(session, idle_timeout) => reason,
            never = state.responses.close_stalled(idle_timeout, metrics) => match never {},
            () = state.rapid_reset.tripped() => CloseReason::RapidReset,
            () = unresponsive(session) => CloseReason::Unresponsive,
            () = self.close_at_drain_deadline(state, session) => CloseReason::DrainDeadline,
        }
    }

    /// Announces the shutdown to the client, and completes at the drain deadline.
    async fn close_at_drain_deadline<H>(self, state: &ConnectionState<H>, session: &Shared) {
        let deadline = self.shutdown.deadline().await;
        lock(session).go_away();
        sleep_until(Shutdown::stream_drain_at(deadline)).await;
        state.drain_notice.send();
        sleep_until(deadline).await;
    }
}

/// The service that handles the requests of a connection.
fn request_service<H: StreamHandler>(
    state: &Arc<ConnectionState<H>>,
) -> impl FnMut(Request<RequestBody>) -> PooledFuture + use<H> {
    let state = Arc::clone(state);
    move |request| {
        let state = Arc::clone(&state);
        let pending = state.rapid_reset.start_request();
        PooledFuture::new(async move {
            let mut response = state.handler.handle(request).await;
            pending.responded();
            response.headers_mut().entry(header::DATE).or_insert_with(Date::value);
            state.responses.monitor(DrainableBody::wrap(response, &state.drain_notice))
        })
    }
}

/// Completes when an idle connection must be closed. A connection that had requests ends by GOAWAY, so that a request
/// sent at the same moment is not lost.
async fn close_idle(session: &Shared, idle_timeout: Duration) -> CloseReason {
    idle(session, idle_timeout).await;
    let had_requests = {
        let session = lock(session);
        session.header_blocks() > 0 && !session.is_in_header_block()
    };
    if !had_requests {
        return CloseReason::NoRequest;
    }
    lock(session).go_away();
    idle(session, GOAWAY_TIMEOUT).await;
    CloseReason::Idle
}

/// Completes when the connection made no progress in any check for `period`: no stream was open, or a header
/// block was incomplete, which blocks all streams.
async fn idle(session: &Shared, period: Duration) {
    let (mut checks, mut before) = (0, lock(session).header_blocks());
    while checks < IDLE_CHECKS {
        sleep(period / IDLE_CHECKS).await;
        let session = lock(session);
        let blocks = session.header_blocks();
        let is_idle = blocks == before && (session.has_no_streams() || session.is_in_header_block());
        checks = if is_idle { checks + 1 } else { 0 };
        before = blocks;
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use fairmesh_http::h2::Session;
    use tokio::time::Instant;

    use super::*;

    const IDLE: Duration = Duration::from_secs(75);
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// Header block of `GET /` for host `a`: static table entries and one literal.
    const BLOCK: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];

    /// A frame of this type.
    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    fn session(frames: &[u8]) -> Shared {
        let session = Arc::new(Mutex::new(Session::server(Instant::now())));
        receive(&session, SETTINGS);
        receive(&session, frames);
        session
    }

    fn receive(session: &Shared, frames: &[u8]) {
        lock(session).receive(&mut BytesMut::from(frames), Instant::now).unwrap();
    }

    /// Why and after what time the connection closes; `None` if not within 100 idle timeouts.
    async fn closed(session: &Shared) -> Option<(CloseReason, Duration)> {
        let begun = Instant::now();
        let reason = timeout(100 * IDLE, close_idle(session, IDLE)).await.ok()?;
        Some((reason, begun.elapsed()))
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_open_streams_ends_after_idle_timeout() {
        let session = session(&frame(1, 0x5, 1, BLOCK));
        assert!(closed(&session).await.is_none(), "a stream is open");
        // RST_STREAM by the client.
        receive(&session, &frame(3, 0, 1, &[0, 0, 0, 8]));
        let Some((CloseReason::Idle, after)) = closed(&session).await else { panic!("it stays open") };
        let most = IDLE + IDLE / IDLE_CHECKS + GOAWAY_TIMEOUT + Duration::from_secs(1);
        assert!((IDLE..most).contains(&after), "{after:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_header_block_ends_connection_despite_open_streams() {
        let open = frame(1, 0x5, 1, BLOCK);
        // HEADERS without END_HEADERS, and empty CONTINUATION frames at intervals.
        let session = session(&[open, frame(1, 0x1, 3, &BLOCK[..2])].concat());
        let trickle = async {
            loop {
                sleep(Duration::from_secs(20)).await;
                receive(&session, &frame(9, 0, 3, &[]));
            }
        };
        tokio::select! {
            () = trickle => unreachable!(),
            closed = closed(&session) => match closed {
                Some((CloseReason::NoRequest, after)) => assert!(after <= 2 * IDLE, "{after:?}"),
                _ => panic!("it stays open"),
            },
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_with_occasional_requests_stays_open() {
        let session = session(&[]);
        let requests = async {
            for stream in (1..100).step_by(2) {
                sleep(IDLE / 2).await;
                receive(
                    &session,
                    &[frame(1, 0x5, stream, BLOCK), frame(3, 0, stream, &[0, 0, 0, 8])].concat(),
                );
            }
        };
        tokio::select! {
            () = requests => {}
            _ = closed(&session) => panic!("it was closed"),
        }
    }
}
