use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, extract, response::IntoResponse, routing::get};
use fairmesh_listen::{Limits, Listeners, PageListener, table};
use fairmesh_model::Probe;
use http::{HeaderMap, StatusCode};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{LookasideError, picker::Picker};

/// How long pages may take after the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The state behind the pages.
#[derive(Clone, Debug)]
pub(crate) struct PageState {
    pub(crate) picker: Arc<Picker>,
    pub(crate) ready: Arc<AtomicBool>,
    pub(crate) listeners: Listeners,
}

/// The admin pages, served until they are stopped.
#[derive(Debug)]
pub(crate) struct AdminServer {
    served: JoinHandle<()>,
    stopping: CancellationToken,
}

impl AdminServer {
    pub(crate) async fn start(address: SocketAddr, state: PageState) -> Result<Self, LookasideError> {
        let acceptor = state.listeners.acceptor(&table::LOOKASIDE_HTTP, Limits::pages());
        let listener = PageListener::bind(address, acceptor)
            .await
            .map_err(|source| LookasideError::Pages { address, source })?;
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readiness))
            .with_state(state);
        let stopping = CancellationToken::new();
        let served = tokio::spawn(listener.refusing(Probe::USER_AGENT).serve(router, stopping.clone()));
        Ok(Self { served, stopping })
    }

    /// Stops serving; slow readers are cut off.
    pub(crate) async fn stop(mut self) {
        self.stopping.cancel();
        let _ = timeout(STOP_TIMEOUT, &mut self.served).await;
        self.served.abort();
    }
}

async fn metrics(extract::State(state): extract::State<PageState>, headers: HeaderMap) -> impl IntoResponse {
    fairmesh_exposition::page("lookaside", &headers, |registry| {
        state.picker.register_metrics(registry);
        state.listeners.register(registry);
    })
}

async fn readiness(extract::State(state): extract::State<PageState>) -> (StatusCode, &'static str) {
    match state.ready.load(Relaxed) {
        true => (StatusCode::OK, "ready\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "starting, or draining\n"),
    }
}
