//! Connections of callers, limited in number and closed by GOAWAY when the lookaside stops.

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_listen::Http2Settings;
use fairmesh_wire::transport::{Accepted, CallGuard, Listener};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{service::Routes, transport::server::Connected as _};
use tower::{Layer as _, ServiceExt as _};

use crate::{metrics::add, picker::Picker};

/// Maximum number of concurrent calls per connection.
const MAX_CONCURRENT_STREAMS: u32 = 256;

/// Serves `calls` until `stopping`. Returns once every connection has ended, or was closed after `drain`.
pub(crate) async fn serve(
    listener: Listener,
    calls: Routes,
    picker: &Arc<Picker>,
    drain: Duration,
    stopping: &CancellationToken,
) {
    let connections = TaskTracker::new();
    while let Some(accepted) = stopping.run_until_cancelled(listener.accept()).await {
        add(&picker.metrics.connections, 1);
        let (calls, picker, stopping) = (calls.clone(), Arc::clone(picker), stopping.clone());
        connections.spawn(connection(accepted, calls, drain, picker, stopping));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(
    accepted: Accepted,
    calls: Routes,
    drain: Duration,
    picker: Arc<Picker>,
    stopping: CancellationToken,
) {
    // A connection in the handshake ends with the lookaside, like a connection without calls.
    let socket = match stopping.run_until_cancelled(accepted.handshake()).await {
        Some(Ok(socket)) => socket,
        Some(Err(error)) => return tracing::debug!(%error, "a connection ended before it began"),
        None => return,
    };
    let peer = socket.connect_info();
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    Http2Settings { streams: MAX_CONCURRENT_STREAMS }.apply(&mut builder);
    let service =
        CallGuard.layer(calls).map_request(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(peer.clone());
            request.map(tonic::body::Body::new)
        });
    let mut served = pin!(builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(service)));
    tokio::select! {
        ended = served.as_mut() => {
            if let Err(error) = ended {
                tracing::debug!(error, "a connection ended early");
            }
            return;
        }
        () = stopping.cancelled() => served.as_mut().graceful_shutdown(),
    }
    if timeout(drain, served).await.is_err() {
        add(&picker.metrics.cut, 1);
    }
}
