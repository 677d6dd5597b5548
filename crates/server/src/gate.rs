//! Which calls are let in, and which are answered at once since there are too many.

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

use super::{layer::Shared, load::Outstanding};
use fairmesh_headers::GRPC_STATUS;
use fairmesh_headers::has_erred;

/// How many calls may be under way at one time.
#[derive(Debug)]
pub(super) struct Gate {
    /// Calls and streams, until their answers are complete.
    most: u32,
    /// A limit for calls whose answer has not begun, which follows how long that takes.
    adaptive: Option<Adaptive>,
}

#[derive(Debug)]
struct Adaptive {
    limit: AtomicU32,
    /// Calls whose answer has not begun: what readers that take theirs slowly hold costs nobody else a place.
    working: AtomicU32,
    /// How many were refused since it last learnt.
    refused: AtomicU32,
    began: Instant,
    /// Only tried: whoever finds another call just ending here learns nothing from its own, so that none waits.
    learning: Mutex<AdaptiveConcurrency>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { most: u32::MAX, adaptive: None }
    }
}

impl Gate {
    /// Lets `most` in at one time; fewer where `adaptive`, a seed, is given and calls take too long.
    pub(super) fn new(most: Option<u32>, adaptive: Option<u64>) -> Self {
        let adaptive = adaptive.map(|seed| {
            let config = ConcurrencyConfig::default();
            let config = ConcurrencyConfig { max_limit: most.unwrap_or(config.max_limit), ..config };
            let learning = AdaptiveConcurrency::new(config, seed);
            Adaptive {
                limit: learning.limit().into(),
                working: AtomicU32::default(),
                refused: AtomicU32::default(),
                began: Instant::now(),
                learning: learning.into(),
            }
        });
        Self { most: most.unwrap_or(u32::MAX), adaptive }
    }

    /// Whether there is no fixed bound.
    pub(super) fn is_open(&self) -> bool {
        self.most == u32::MAX
    }

    /// How many calls may be under way now; `None` without a bound.
    pub(super) fn limit(&self) -> Option<u32> {
        let adaptive = self.adaptive.as_ref().map(|adaptive| adaptive.limit.load(Relaxed));
        adaptive.or(Some(self.most).filter(|most| *most < u32::MAX))
    }

    /// Whether the fixed bound lets another call begin beside what is under way.
    pub(super) fn admits(&self, Outstanding { calls, streams }: Outstanding) -> bool {
        calls.saturating_add(streams) < self.most
    }

    /// A call was refused.
    pub(super) fn refused(&self) {
        if let Some(adaptive) = &self.adaptive {
            adaptive.refused.fetch_add(1, Relaxed);
        }
    }
}

/// A call until the head of its answer, which has its place by the adaptive bound and from whose time that is learnt. Readers
/// who take an answer slowly are no load.
#[derive(Debug)]
pub(super) struct Timed {
    shared: Arc<Shared>,
    began: Instant,
    is_good: bool,
}

/// The adaptive bound is met.
#[derive(Debug)]
pub(super) struct NoPlace;

impl Timed {
    /// Takes a place, where the bound is adaptive.
    pub(super) fn begin(shared: &Arc<Shared>) -> Result<Option<Self>, NoPlace> {
        let Some(adaptive) = &shared.gate.adaptive else { return Ok(None) };
        let fits = |working| (working < adaptive.limit.load(Relaxed)).then_some(working + 1);
        if adaptive.working.fetch_update(Relaxed, Relaxed, fits).is_err() {
            shared.gate.refused();
            return Err(NoPlace);
        }
        Ok(Some(Self { shared: Arc::clone(shared), began: Instant::now(), is_good: false }))
    }

    /// The call is answered. A failure may have taken less than the work does.
    pub(super) fn answered(mut self, status: StatusCode, headers: &HeaderMap) {
        let erred = headers.get(GRPC_STATUS).is_some_and(|status| has_erred(status.as_bytes()));
        self.is_good = !status.is_server_error() && !erred;
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some(adaptive) = &self.shared.gate.adaptive else { return };
        let working = adaptive.working.fetch_sub(1, Relaxed);
        let Ok(mut learning) = adaptive.learning.try_lock() else { return };
        let completed = CompletedRequest {
            latency: nanos(self.began.elapsed()),
            in_flight: working,
            refused: adaptive.refused.swap(0, Relaxed),
            now: nanos(adaptive.began.elapsed()),
        };
        match self.is_good {
            true => learning.record_success(completed),
            false => learning.record_failure(completed),
        }
        adaptive.limit.store(learning.limit(), Relaxed);
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
    async fn answers_that_nobody_reads_take_no_place_by_the_adaptive_bound() {
        let gate = Gate { most: u32::MAX, ..Gate::new(Some(4), Some(7)) };
        let layer = ServerLayer { shared: Arc::new(Shared { gate, ..Shared::default() }) };
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
            "whoever went left its place"
        );
    }
}
