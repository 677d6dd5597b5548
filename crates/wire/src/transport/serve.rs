use std::{
    fmt,
    future::{Future, pending},
    io,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use fairmesh_listen::Http2Settings;
use futures_util::future::join;
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

use super::{Listener, Socket, calls::CallGuard};
use crate::{handshake::VersionCheck, watch};

/// Connections that wait to be taken by the server of calls.
const WAITING: usize = 64;
/// Calls at one time on one connection. A replica has one for all that agents behind it wait for, such as their turn as health
/// checkers.
const STREAMS: u32 = 16_384;

/// Serves one watch, whose preamble was read, until it ends.
type Watches = dyn Fn(Socket) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// What is served on one address.
#[derive(Clone)]
pub struct Services {
    calls: Routes,
    watches: Option<Arc<Watches>>,
}

impl Services {
    /// Calls, and `watch` for each connection that is a [watch](crate::watch): from its greeting to its end, which it comes to
    /// by itself once the process stops.
    pub fn new<F>(calls: Routes, watch: impl Fn(Socket) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self { calls, watches: Some(Arc::new(move |socket| Box::pin(watch(socket)))) }
    }
}

impl From<Routes> for Services {
    /// Calls only; watches are closed.
    fn from(calls: Routes) -> Self {
        Self { calls, watches: None }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").field("watches", &self.watches.is_some()).finish_non_exhaustive()
    }
}

/// Serves calls and watches on `listener` until `shutdown` completes, then lets what is under way finish for at most `drain` and
/// ends the rest.
///
/// Every call passes [`VersionCheck`] and carries its caller's identity ([`super::identity_of`]); quiet connections are
/// probed, and one whose peer is gone is closed. The listener bounds connections and what calls may cost ([`CallGuard`]). The listener is closed as soon as `shutdown` completes.
pub async fn serve(
    services: impl Into<Services>,
    listener: Listener,
    shutdown: impl Future<Output = ()>,
    drain: Duration,
) -> Result<(), Error> {
    let Services { calls, watches } = services.into();
    let (cut, closing) = (CancellationToken::new(), CancellationToken::new());
    let (began, drain_began) = oneshot::channel();
    let closed = closing.clone();
    let close = async {
        shutdown.await;
        closed.cancel();
        // Nobody listens only when serving has ended already.
        let _ = began.send(());
        pending::<()>().await
    };
    let (to_calls, incoming) = mpsc::channel(WAITING);
    let sorting = sort(listener, watches, to_calls, closing.clone(), cut.clone());
    let serving = async {
        let (interval, timeout) = Http2Settings::KEEP_ALIVE;
        let served = Server::builder()
            .layer(CallGuard)
            .layer(VersionCheck)
            .http2_keepalive_interval(Some(interval))
            .http2_keepalive_timeout(Some(timeout))
            .initial_stream_window_size(Http2Settings::STREAM_WINDOW)
            .initial_connection_window_size(Http2Settings::CONNECTION_WINDOW)
            .max_concurrent_streams(STREAMS)
            .http2_max_header_list_size(Http2Settings::HEADERS)
            .http2_max_pending_accept_reset_streams(Some(Http2Settings::RESETS))
            .add_routes(calls)
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), closing.cancelled())
            .await;
        closing.cancel();
        served
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
        () = overdue => cut.cancel(),
        () = close => {}
    }
    serving.await.0
}

/// Finds out what each connection is for. Returns once `closing` has fired and no watch is left, or `cut` has.
async fn sort(
    listener: Listener,
    watches: Option<Arc<Watches>>,
    calls: mpsc::Sender<io::Result<Socket>>,
    closing: CancellationToken,
    cut: CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            socket = listener.accept() => {
                let (watches, calls) = (watches.clone(), calls.clone());
                let (closing, cut) = (closing.clone(), cut.clone());
                connections.spawn(async move {
                    let sorted = closing.run_until_cancelled(sorted(socket, calls, cut)).await;
                    if let (Some(Some(socket)), Some(watch)) = (sorted, watches) {
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
    // What is cut is dropped with the set.
    cut.run_until_cancelled(left).await;
}

/// Passes a connection for calls on; returns one that is a watch.
async fn sorted(
    mut socket: Socket,
    calls: mpsc::Sender<io::Result<Socket>>,
    cut: CancellationToken,
) -> Option<Socket> {
    match socket.begins_with(&watch::PREAMBLE).await {
        Ok(true) => {
            if let Some(connection) = socket.connection() {
                connection.exempt();
            }
            return Some(socket);
        }
        // Closed only where nobody is served any more.
        Ok(false) => drop(calls.send(Ok(socket.cut_by(cut))).await),
        Err(error) => tracing::debug!(%error, "a connection ended before it began"),
    }
    None
}
