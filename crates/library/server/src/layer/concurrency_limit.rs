//! The concurrency limit decides which calls are admitted and which are rejected at once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_balancer::{AdaptiveConcurrency, CompletedRequest, ConcurrencyConfig};
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use super::{LayerState, server_load::Outstanding};
use fairmesh_headers::GRPC_STATUS;
use fairmesh_headers::is_server_error;

/// Limit of concurrent calls.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimit {
    /// Maximum number of calls and streams, counted until their responses are complete.
    max: u32,
    /// Additional limit for calls without response headers, which adapts to their latency.
    adaptive: Option<AdaptiveLimit>,
}

#[derive(Debug)]
struct AdaptiveLimit {
    limit: AtomicU32,
    /// Number of calls without response headers. Responses that are read slowly occupy no capacity.
    in_flight: AtomicU32,
    /// Number of calls rejected since the last update.
    refused: AtomicU32,
    began: Instant,
    /// Locked only with `try_lock`. If two calls end at the same time, one of them skips the update instead of
    /// waiting.
    controller: Mutex<AdaptiveConcurrency>,
}

impl Default for ConcurrencyLimit {
    fn default() -> Self {
        Self { max: u32::MAX, adaptive: None }
    }
}

impl ConcurrencyLimit {
    /// Limits concurrency to `max`. If `adaptive`, a random seed, is given, lowers the limit further while latency
    /// rises.
    pub(crate) fn new(max: Option<u32>, adaptive: Option<u64>) -> Self {
        let adaptive = adaptive.map(|seed| {
            let config = ConcurrencyConfig::default();
            let config = ConcurrencyConfig { max_limit: max.unwrap_or(config.max_limit), ..config };
            let controller = AdaptiveConcurrency::new(config, seed);
            AdaptiveLimit {
                limit: controller.limit().into(),
                in_flight: AtomicU32::default(),
                refused: AtomicU32::default(),
                began: Instant::now(),
                controller: controller.into(),
            }
        });
        Self { max: max.unwrap_or(u32::MAX), adaptive }
    }

    /// Whether there is no fixed limit.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.max == u32::MAX
    }

    /// The current limit; `None` without one.
    pub(crate) fn limit(&self) -> Option<u32> {
        let adaptive = self.adaptive.as_ref().map(|adaptive| adaptive.limit.load(Relaxed));
        adaptive.or(Some(self.max).filter(|max| *max < u32::MAX))
    }

    /// Whether the fixed limit admits another call.
    pub(crate) fn admits(&self, Outstanding { calls, streams }: Outstanding) -> bool {
        calls.saturating_add(streams) < self.max
    }

    /// Records a rejected call.
    pub(crate) fn record_rejection(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.refused.fetch_add(1, Relaxed);
        }
    }
}

/// A permit that a call holds until its response headers. It occupies capacity of the adaptive limit, and its duration
/// adjusts the limit. Slow readers of responses are not load.
#[derive(Debug)]
pub(crate) struct ConcurrencyPermit {
    shared: Arc<LayerState>,
    began: Instant,
    is_success: bool,
}

/// Error: the adaptive limit is reached.
#[derive(Debug)]
pub(crate) struct LimitReached;

impl ConcurrencyPermit {
    /// Acquires capacity, if the limit is adaptive.
    pub(crate) fn begin(shared: &Arc<LayerState>) -> Result<Option<Self>, LimitReached> {
        let Some(adaptive) = &shared.concurrency_limit.adaptive else { return Ok(None) };
        let fits = |in_flight| (in_flight < adaptive.limit.load(Relaxed)).then_some(in_flight + 1);
        if adaptive.in_flight.fetch_update(Relaxed, Relaxed, fits).is_err() {
            shared.concurrency_limit.record_rejection();
            return Err(LimitReached);
        }
        Ok(Some(Self { shared: Arc::clone(shared), began: Instant::now(), is_success: false }))
    }

    /// Records the outcome at the response headers. A failure may have taken less time than the work does.
    pub(crate) fn set_outcome(mut self, status: StatusCode, headers: &HeaderMap) {
        let erred = headers.get(GRPC_STATUS).is_some_and(|status| is_server_error(status.as_bytes()));
        self.is_success = !status.is_server_error() && !erred;
    }
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        let Some(adaptive) = &self.shared.concurrency_limit.adaptive else { return };
        let in_flight = adaptive.in_flight.fetch_sub(1, Relaxed);
        let Ok(mut controller) = adaptive.controller.try_lock() else { return };
        let completed = CompletedRequest {
            latency: nanos(self.began.elapsed()),
            in_flight,
            refused: adaptive.refused.swap(0, Relaxed),
            now: nanos(adaptive.began.elapsed()),
        };
        match self.is_success {
            true => controller.record_success(completed),
            false => controller.record_failure(completed),
        }
        adaptive.limit.store(controller.limit(), Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use tokio::sync::Semaphore;
    use tower::{Layer as _, Service as _, service_fn};

    use super::*;
    use crate::ServerLayer;

    #[tokio::test]
    async fn unread_responses_hold_no_concurrency_permit() {
        let concurrency_limit = ConcurrencyLimit { max: u32::MAX, ..ConcurrencyLimit::new(Some(4), Some(7)) };
        let layer =
            ServerLayer { shared: Arc::new(LayerState { concurrency_limit, ..LayerState::default() }) };
        let go_on = Arc::new(Semaphore::new(0));
        let mut service = layer.layer(service_fn(|_: Request<()>| {
            let go_on = Arc::clone(&go_on);
            async move {
                go_on.acquire().await.unwrap().forget();
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("unread"))))
            }
        }));
        let four = [(); 4].map(|()| service.call(Request::new(())));
        assert_eq!(service.call(Request::new(())).await.unwrap().status(), 503);
        go_on.add_permits(5);
        let mut unread = Vec::new();
        for call in four {
            unread.push(call.await.unwrap());
        }
        assert_eq!((layer.admission().limit, layer.outstanding().calls), (Some(4), 4));
        assert_eq!(service.call(Request::new(())).await.unwrap().status(), 200);
        let given_up = [(); 4].map(|()| service.call(Request::new(())));
        drop(given_up);
        go_on.add_permits(1);
        assert_eq!(
            service.call(Request::new(())).await.unwrap().status(),
            200,
            "a dropped call returns its permit"
        );
    }
}
