use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, extract, http::header, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, Listeners, PageListener};
use http::StatusCode;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{LookasideError, picker::Picker};

/// What OpenMetrics text is called on the wire.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long pages may take at the end.
const LAST_PAGES: Duration = Duration::from_secs(1);

/// What the pages are about.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) picker: Arc<Picker>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) listeners: Listeners,
}

/// The pages for operators, served until they are stopped.
#[derive(Debug)]
pub(crate) struct Pages {
    served: JoinHandle<()>,
    stopping: CancellationToken,
}

impl Pages {
    pub(crate) async fn start(address: SocketAddr, about: About) -> Result<Self, LookasideError> {
        let acceptor = about.listeners.acceptor("http", Limits::pages());
        let listener = PageListener::bind(address, acceptor)
            .await
            .map_err(|source| LookasideError::Pages { address, source })?;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readiness))
            .with_state(about);
        let stopping = CancellationToken::new();
        let served = tokio::spawn(listener.serve(router, stopping.clone()));
        Ok(Self { served, stopping })
    }

    /// Serves no more; whoever reads slowly holds nobody up.
    pub(crate) async fn stop(mut self) {
        self.stopping.cancel();
        let _ = timeout(LAST_PAGES, &mut self.served).await;
        self.served.abort();
    }
}

async fn metrics(extract::State(about): extract::State<About>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], about.picker.page(&about.listeners))
}

async fn readiness(extract::State(about): extract::State<About>) -> (StatusCode, &'static str) {
    match about.ready.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "starting, or draining\n"),
    }
}
