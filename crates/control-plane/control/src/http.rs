//! The HTTP server: the registry as JSON, health, and metrics.

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

/// The state behind the pages that every process has.
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

    /// Returns ready if load balancers should send new callers here.
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

/// Serves until `closing` is cancelled, then gives requests in flight up to `drain` to finish.
pub(crate) async fn serve(
    pages: ProcessRouter,
    (listener, transport): (AdminListener, Transport),
    closing: CancellationToken,
    drain: Duration,
) {
    listener.serve_secured(pages, |stream| secure(stream, transport.clone()), closing, drain).await;
}

/// Accepts TLS if the client starts it and the mesh has a trust domain. Clients such as monitoring may stay in
/// plaintext.
pub(crate) fn secure(stream: GuardedStream<TcpStream>, transport: Transport) -> Securing<Stream> {
    Box::pin(async move {
        let stream = transport.accept_pages(stream).await?;
        let mut peer = Extensions::new();
        if let Stream::Tls(secured) = stream.get_ref() {
            match secured.peer() {
                // Only this process reads a token on a TLS connection, so tokens are allowed without a
                // certificate.
                Identity::Anonymous => drop(peer.insert(WithoutCertificate { takes_tokens: true })),
                identity => drop(peer.insert(identity)),
            }
        }
        Ok((stream, peer))
    })
}
