use std::{
    fmt,
    future::{Future, pending},
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use fairmesh_listen::Http2Settings;
use futures_util::future::{join, try_join};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    service::Routes,
    transport::{Error, Server},
};

use super::{Accepted, Listener, Socket, call_guard::CallGuard, join_check::JoinCheck};
use crate::{handshake::VersionCheck, watch};

/// Maximum number of accepted connections that wait for the gRPC server.
const ACCEPT_QUEUE: usize = 64;
/// Maximum concurrent calls per connection. A replica uses one connection for all long calls of its agents, such as
/// elections of health checkers.
const MAX_STREAMS: u32 = 16_384;

/// Maximum concurrent calls on a connection whose peer has sent no certificate. Such a peer joins, or is a user who
/// runs commands.
const MAX_UNKNOWN_STREAMS: u32 = 32;
/// Maximum number of streams that HTTP/2 resets for a peer without a certificate before it closes the connection.
const MAX_UNKNOWN_RESETS: usize = 32;
/// Flow-control window of a connection whose peer has sent no certificate, in bytes.
const UNKNOWN_WINDOW: u32 = 128 * 1024;

/// Handler that serves one watch from the end of its preamble until the watch ends.
type WatchHandler = dyn Fn(Socket) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// The services at one address.
#[derive(Clone)]
pub struct Services {
    calls: Routes,
    watch_handler: Option<Arc<WatchHandler>>,
}

impl Services {
    /// Serves calls, and passes each connection that is a [watch](crate::watch) to `watch`. `watch` serves it from
    /// the hello to its end, and must end by itself once the process stops.
    pub fn new<F>(calls: Routes, watch: impl Fn(Socket) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { calls, watch_handler: Some(Arc::new(move |socket| Box::pin(watch(socket)))) }
    }
}

impl Services {
    /// The call services, for use within the process.
    pub fn calls(&self) -> Routes {
        self.calls.clone()
    }

    /// Replaces the call services, for example to wrap them in a check.
    #[must_use]
    pub fn map_calls(self, change: impl FnOnce(Routes) -> Routes) -> Self {
        Self { calls: change(self.calls), ..self }
    }
}

impl From<Routes> for Services {
    /// Serves only calls. Watches are closed.
    fn from(calls: Routes) -> Self {
        Self { calls, watch_handler: None }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services")
            .field("watch_handler", &self.watch_handler.is_some())
            .finish_non_exhaustive()
    }
}

/// Serves calls and watches on `listener` until `shutdown` completes. Then lets calls in flight finish for at most
/// `drain`, and aborts the rest.
///
/// Every call passes [`VersionCheck`] and carries its caller's identity ([`super::identity_of`]). Idle connections
/// are probed, and closed if the peer is gone. The listener bounds connections and the cost of calls ([`CallGuard`]).
/// The listener is closed as soon as `shutdown` completes.
pub async fn serve(
    services: impl Into<Services>,
    listener: Listener,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> Result<(), Error> {
    let Services { calls, watch_handler } = services.into();
    let (abort, closing) = (CancellationToken::new(), CancellationToken::new());
    let (began, drain_began) = oneshot::channel();
    let closed = closing.clone();
    let close = async {
        shutdown.await;
        closed.cancel();
        // Fails only if serving has already ended.
        let _ = began.send(());
        pending::<()>().await
    };
    let (known, known_peers) = mpsc::channel(ACCEPT_QUEUE);
    let (unknown, unknown_peers) = mpsc::channel(ACCEPT_QUEUE);
    let queues = CallQueues { known, unknown };
    let sorting = dispatch(listener, watch_handler, queues, closing.clone(), abort.clone());
    let serving = async {
        let served = try_join(
            serve_calls(calls.clone(), server(), known_peers, &closing),
            serve_calls(calls, server_of_unknown_peers(), unknown_peers, &closing),
        );
        let served = served.await;
        closing.cancel();
        served.map(drop)
    };
    let mut serving = pin!(join(serving, sorting));
    let overdue = async {
        if drain_began.await.is_err() {
            return pending().await;
        }
        tokio::time::sleep(drain).await;
    };
    tokio::select! {
        (served, ()) = &mut serving => return served,
        () = overdue => abort.cancel(),
        () = close => {}
    }
    serving.await.0
}

/// The HTTP/2 server for known peers.
fn server() -> Server {
    let (interval, timeout) = Http2Settings::KEEP_ALIVE;
    Server::builder()
        .http2_keepalive_interval(Some(interval))
        .http2_keepalive_timeout(Some(timeout))
        .initial_stream_window_size(Http2Settings::STREAM_WINDOW)
        .initial_connection_window_size(Http2Settings::CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(Http2Settings::HEADERS)
        .http2_max_pending_accept_reset_streams(Some(Http2Settings::RESETS))
}

/// The HTTP/2 server for peers that have not sent a required certificate. Anyone who reaches the port is such a peer,
/// so a connection gets few resources before its peer joins or sends a token.
fn server_of_unknown_peers() -> Server {
    server()
        .initial_connection_window_size(UNKNOWN_WINDOW)
        .max_concurrent_streams(MAX_UNKNOWN_STREAMS)
        .http2_max_local_error_reset_streams(Some(MAX_UNKNOWN_RESETS))
}

/// Serves calls on the connections that arrive.
async fn serve_calls(
    calls: Routes,
    server: Server,
    incoming: mpsc::Receiver<io::Result<Socket>>,
    closing: &CancellationToken,
) -> Result<(), Error> {
    server
        .layer(CallGuard)
        .layer(JoinCheck)
        .layer(VersionCheck)
        .add_routes(calls)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), closing.cancelled())
        .await
}

/// Queues of connections for calls, one for each server.
#[derive(Clone)]
struct CallQueues {
    known: mpsc::Sender<io::Result<Socket>>,
    unknown: mpsc::Sender<io::Result<Socket>>,
}

impl CallQueues {
    async fn send(&self, socket: Socket) {
        let queue = match socket.without_certificate() {
            Some(_) => &self.unknown,
            None => &self.known,
        };
        // Fails only if the server has ended.
        drop(queue.send(Ok(socket)).await);
    }
}

/// Dispatches connections to calls or watches. Returns once `closing` has fired and no watch is left, or once `abort`
/// has fired.
async fn dispatch(
    listener: Listener,
    watch_handler: Option<Arc<WatchHandler>>,
    calls: CallQueues,
    closing: CancellationToken,
    abort: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (watch_handler, calls) = (watch_handler.clone(), calls.clone());
                let (closing, abort) = (closing.clone(), abort.clone());
                connections.spawn(async move {
                    let sorted = closing.run_until_cancelled(classify(accepted, calls, abort)).await;
                    if let (Some(Some(socket)), Some(watch)) = (sorted, watch_handler) {
                        watch(socket).await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
            () = closing.cancelled() => break,
        }
    }
    drop((listener, calls));
    let left = async { while connections.join_next().await.is_some() {} };
    // Dropping the set drops the aborted connections.
    abort.run_until_cancelled(left).await;
}

/// Passes a connection for calls to its server. Returns the connection if it is a watch.
async fn classify(accepted: Accepted, calls: CallQueues, abort: CancellationToken) -> Option<Socket> {
    let mut socket = match accepted.handshake().await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::debug!(%error, "a connection ended before it began");
            return None;
        }
    };
    if let Some(connection) = socket.connection().filter(|_| socket.without_certificate().is_some()) {
        connection.set_unknown();
    }
    match socket.strip_preamble(&watch::PREAMBLE).await {
        Ok(true) if socket.without_certificate().is_some_and(|without| !without.takes_tokens) => {
            tracing::debug!("a watch without a certificate was refused");
            return None;
        }
        Ok(true) => {
            if let Some(connection) = socket.connection() {
                connection.exempt();
            }
            return Some(socket);
        }
        Ok(false) => calls.send(socket.with_calls().abort_on(abort)).await,
        Err(error) => tracing::debug!(%error, "a connection ended before it began"),
    }
    None
}
