//! The HTTP server: the registry as JSON, health, metrics.

use std::{sync::Arc, time::Duration};

use axum::http::Extensions;
use fairmesh_listen::{GuardedStream, Securing};
use fairmesh_model::Identity;
use fairmesh_pages::{AdminListener, Process, ProcessRouter, Readiness};
use fairmesh_wire::transport::{Stream, Transport, WithoutCertificate};
use prometheus_client::registry::Registry;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::{
    metrics::{MetricSources, Metrics},
    readiness::Readiness as StoreReadiness,
};

/// What the pages of every process show of this one.
pub(crate) struct HttpState {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) sources: MetricSources,
    pub(crate) store_readiness: StoreReadiness,
    pub(crate) closing: CancellationToken,
}

impl Process for HttpState {
    const KIND: &'static str = "control";

    fn register(&self, metrics: &mut Registry) {
        self.metrics.register(&self.sources, metrics);
    }

    /// Whether load balancers should send new callers here.
    async fn readiness(&self) -> Readiness {
        let problem = self.store_readiness.problem(&*self.sources.store).await;
        match (problem, self.closing.is_cancelled()) {
            (Some(problem), _) => Readiness::Unready(problem),
            (None, true) => Readiness::Unready("shutting down".into()),
            (None, false) => match self.store_readiness.integrity.damage() {
                None => Readiness::ready(),
                Some(damage) => Readiness::Ready(format!(
                    "ready, serving from memory; the store's file is damaged: {damage}"
                )),
            },
        }
    }
}

/// Serves until `closing` is cancelled, then lets requests in flight finish within `drain`.
pub(crate) async fn serve(
    pages: ProcessRouter,
    (listener, transport): (AdminListener, Transport),
    closing: CancellationToken,
    drain: Duration,
) {
    listener.serve_secured(pages, |stream| secure(stream, transport.clone()), closing, drain).await;
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
