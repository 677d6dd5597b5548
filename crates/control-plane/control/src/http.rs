//! The HTTP server: the registry as JSON, health, metrics.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{Extensions, HeaderMap, StatusCode},
    response::IntoResponse,
    routing::get,
};
use fairmesh_listen::{Acceptor, GuardedStream, PageListener, Securing};
use fairmesh_model::{Identity, Probe};
use fairmesh_wire::transport::{Stream, Transport, WithoutCertificate};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::{
    ControlError,
    metrics::{MetricSources, Metrics},
    readiness::Readiness,
};

/// State of the handlers.
pub(crate) struct HttpState {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sources: MetricSources,
    pub(crate) readiness: Readiness,
    pub(crate) closing: CancellationToken,
}

/// Listens on `address`.
pub(crate) async fn bind(address: SocketAddr, acceptor: Acceptor) -> Result<PageListener, ControlError> {
    PageListener::bind(address, acceptor).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ControlError::HttpInUse { address },
        _ => ControlError::Http { address, source },
    })
}

/// All routes.
pub(crate) fn router(shared: Arc<HttpState>, registry: Router) -> Router {
    let own = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(shared);
    own.merge(registry)
}

/// Serves until `closing` is cancelled, then lets requests in flight finish within `drain`.
pub(crate) async fn serve(
    router: Router,
    (listener, transport): (PageListener, Transport),
    closing: CancellationToken,
    drain: Duration,
) {
    let overdue = async {
        closing.cancelled().await;
        tokio::time::sleep(drain).await;
    };
    let listener = listener.refusing(Probe::USER_AGENT);
    tokio::select! {
        () = listener.serve_secured(router, |stream| secure(stream, transport.clone()), closing.clone()) => {}
        () = overdue => {}
    }
}

/// Uses TLS if the client begins it and the mesh has a trust domain. Monitoring continues in plaintext.
fn secure(stream: GuardedStream<TcpStream>, transport: Transport) -> Securing<Stream> {
    Box::pin(async move {
        let stream = transport.accept_pages(stream).await?;
        let mut peer = Extensions::new();
        if let Stream::Tls(secured) = stream.get_ref() {
            match secured.peer() {
                // Only this process reads a token on this connection.
                Identity::Anonymous => drop(peer.insert(WithoutCertificate { takes_tokens: true })),
                identity => drop(peer.insert(identity)),
            }
        }
        Ok((stream, peer))
    })
}

/// Whether load balancers should send new callers here.
async fn ready(State(shared): State<Arc<HttpState>>) -> (StatusCode, String) {
    let problem = shared.readiness.problem(&*shared.sources.store).await;
    match (problem, shared.closing.is_cancelled()) {
        (Some(problem), _) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
        (None, true) => (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".into()),
        (None, false) => match shared.readiness.integrity.damage() {
            None => (StatusCode::OK, "ready\n".into()),
            Some(damage) => (
                StatusCode::OK,
                format!("ready, serving from memory; the store's file is damaged: {damage}\n"),
            ),
        },
    }
}

async fn metrics(State(shared): State<Arc<HttpState>>, headers: HeaderMap) -> impl IntoResponse {
    // Some of its parts have names of their own, such as `fairmesh_traffic_`.
    fairmesh_exposition::page_of_mesh("control", &headers, |registry| {
        shared.metrics.register(&shared.sources, registry);
    })
}
