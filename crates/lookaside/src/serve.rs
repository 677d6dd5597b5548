//! Connections of callers: bounded, and told to go when the lookaside stops.

use std::{pin::pin, sync::Arc, time::Duration};

use fairmesh_wire::transport::{Listener, Socket};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::service::Routes;
use tower::ServiceExt as _;

use crate::{Limits, metrics::add, picker::Picker};

/// Calls under way on one connection.
const MAX_STREAMS: u32 = 256;
/// Streams that a peer may open and reset before they are looked at (CVE-2023-44487).
const MAX_RESETS: usize = 64;
/// How often a quiet connection is probed, and how long the answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// The most bytes of the headers of a call.
const MAX_HEADERS: u32 = 16 * 1024;

/// Serves `calls` until `stopping`; returns once every connection has ended or was cut.
pub(crate) async fn serve(
    listener: Listener,
    calls: Routes,
    picker: &Arc<Picker>,
    limits: Limits,
    stopping: &CancellationToken,
) {
    let places = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
    let connections = TaskTracker::new();
    let next = async || {
        // The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok()?;
        Some((listener.accept().await, place))
    };
    while let Some(Some((socket, place))) = stopping.run_until_cancelled(next()).await {
        add(&picker.metrics.connections, 1);
        let (calls, picker, stopping) = (calls.clone(), Arc::clone(picker), stopping.clone());
        connections.spawn(connection((socket, place), calls, limits.drain, picker, stopping));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn connection(
    (socket, _place): (Socket, OwnedSemaphorePermit),
    calls: Routes,
    drain: Duration,
    picker: Arc<Picker>,
    stopping: CancellationToken,
) {
    let (interval, patience) = KEEP_ALIVE;
    let mut builder = auto::Builder::new(TokioExecutor::new()).http2_only();
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(interval)
        .keep_alive_timeout(patience)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS)
        .max_pending_accept_reset_streams(MAX_RESETS);
    let service = calls
        .map_request(|request: http::Request<hyper::body::Incoming>| request.map(tonic::body::Body::new));
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
