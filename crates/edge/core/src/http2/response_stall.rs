//! Detects HTTP/2 responses that their clients do not read.
//!
//! A stream without flow-control window is invisible to the operating system, since the connection still
//! responds to pings; yet its response occupies a connection to a server. A body is polled only when there is
//! window, so a timer inside the body would never fire. The connection therefore checks all of its responses
//! periodically.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_calls::{Fault, FaultKind};
use http::Response;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, interval_at};

use crate::{counter::increment, metrics::connections::ConnectionMetrics};

/// Number of entries at which dropped responses are pruned. It equals the maximum number of streams, so the
/// cost of pruning is amortized.
const PRUNE_AT: usize = 512;

/// The responses of one connection.
#[derive(Debug)]
pub(crate) struct StallMonitor<B> {
    open: Mutex<Vec<Weak<MonitoredResponse<B>>>>,
}

/// A response whose body the monitor can drop while its reader still holds it.
#[derive(Debug)]
struct MonitoredResponse<B> {
    body: Mutex<Option<B>>,
    waits_for: AtomicU8,
}

/// The body waits for the server.
const SERVER: u8 = 0;
/// The body waits for the client.
const CLIENT: u8 = 1;
/// The body waits for the client, as it did at the previous check.
const CLIENT_STILL: u8 = 2;

/// The body of a response.
#[derive(Debug)]
pub(crate) enum ResponseBody<B> {
    /// A body that ended with the headers. It is not monitored.
    Ended(B),
    /// A body that is checked periodically.
    Monitored(MonitoredBody<B>),
}

/// A body that fails if its reader has not polled it for too long.
#[derive(Debug)]
pub(crate) struct MonitoredBody<B>(Arc<MonitoredResponse<B>>);

impl<B> Default for StallMonitor<B> {
    fn default() -> Self {
        Self { open: Mutex::default() }
    }
}

impl<B: Body> StallMonitor<B> {
    /// Monitors a response until its body is dropped.
    pub(crate) fn monitor(&self, response: Response<B>) -> Response<ResponseBody<B>> {
        response.map(|body| {
            if body.is_end_stream() {
                return ResponseBody::Ended(body);
            }
            let response = Arc::new(MonitoredResponse {
                body: Mutex::new(Some(body)),
                waits_for: AtomicU8::new(CLIENT),
            });
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if open.len() >= PRUNE_AT {
                open.retain(|response| response.strong_count() > 0);
            }
            open.push(Arc::downgrade(&response));
            ResponseBody::Monitored(MonitoredBody(response))
        })
    }

    /// Drops bodies that were not polled during two checks in a row, that is for half of `idle_timeout` to
    /// all of it. Never returns.
    pub(crate) async fn close_stalled(
        &self,
        idle_timeout: Duration,
        metrics: &ConnectionMetrics,
    ) -> Infallible {
        let period = (idle_timeout / 2).max(Duration::from_millis(1));
        let mut ticks = interval_at(Instant::now() + period, period);
        loop {
            ticks.tick().await;
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            open.retain(|response| {
                response.upgrade().is_some_and(|response| !response.drop_if_stalled(metrics))
            });
        }
    }
}

impl<B> MonitoredResponse<B> {
    fn drop_if_stalled(&self, metrics: &ConnectionMetrics) -> bool {
        match self.waits_for.load(Relaxed) {
            CLIENT_STILL => {
                let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
                // The body may have been polled meanwhile.
                let stalled = self.waits_for.load(Relaxed) == CLIENT_STILL;
                if stalled {
                    increment(&metrics.stalled_responses);
                    *body = None;
                }
                stalled
            }
            CLIENT => {
                // If the body was polled in between, the mark is too early; the next poll corrects it.
                let _ = self.waits_for.compare_exchange(CLIENT, CLIENT_STILL, Relaxed, Relaxed);
                false
            }
            _ => false,
        }
    }
}

impl<B> MonitoredBody<B> {
    fn with_body<T>(&self, apply: impl FnOnce(Option<&mut B>) -> T) -> T {
        apply(self.0.body.lock().unwrap_or_else(PoisonError::into_inner).as_mut())
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes, Error = Fault> + Unpin,
{
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let monitored = match &mut *self {
            Self::Ended(body) => return Pin::new(body).poll_frame(context),
            Self::Monitored(monitored) => monitored,
        };
        monitored.with_body(|body| {
            let Some(body) = body else {
                let late = Fault::new(FaultKind::Deadline, "the client did not read the response");
                return Poll::Ready(Some(Err(late)));
            };
            let polled = Pin::new(body).poll_frame(context);
            monitored.0.waits_for.store(if polled.is_pending() { SERVER } else { CLIENT }, Relaxed);
            polled
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ended(body) => body.is_end_stream(),
            Self::Monitored(monitored) => {
                monitored.with_body(|body| body.is_some_and(|body| body.is_end_stream()))
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Ended(body) => body.size_hint(),
            Self::Monitored(monitored) => {
                monitored.with_body(|body| body.map_or_else(SizeHint::new, |body| body.size_hint()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Waker};

    use fairmesh_calls::Body;
    use http_body::Body as _;

    use super::*;

    fn check_once(responses: &StallMonitor<Body>, metrics: &ConnectionMetrics) {
        let mut open = responses.open.lock().unwrap();
        open.retain(|response| response.upgrade().is_some_and(|response| !response.drop_if_stalled(metrics)));
    }

    fn stalled_responses(metrics: &ConnectionMetrics) -> u64 {
        metrics.stalled_responses.load(Relaxed)
    }

    #[tokio::test]
    async fn response_body_not_polled_between_two_stall_checks_is_dropped() {
        let (responses, metrics) = (StallMonitor::default(), ConnectionMetrics::default());
        let mut taken = responses.monitor(Response::new(Body::from("tea"))).into_body();
        let mut left = responses.monitor(Response::new(Body::from("tea"))).into_body();
        assert_eq!(left.size_hint().exact(), taken.size_hint().exact());
        check_once(&responses, &metrics);
        let frame = poll_fn(|context| Pin::new(&mut taken).poll_frame(context)).await;
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "tea");
        check_once(&responses, &metrics);
        assert_eq!(stalled_responses(&metrics), 1);
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut left).poll_frame(&mut context), Poll::Ready(Some(Err(_)))));
        assert!(matches!(Pin::new(&mut taken).poll_frame(&mut context), Poll::Ready(None)));
        drop((taken, left));
        check_once(&responses, &metrics);
        assert!(responses.open.lock().unwrap().is_empty());
    }

    #[test]
    fn stall_monitor_skips_complete_responses_and_prunes_dropped_ones() {
        let responses = StallMonitor::default();
        assert!(matches!(responses.monitor(Response::new(Body::empty())).body(), ResponseBody::Ended(_)));
        for _ in 0..4 * PRUNE_AT {
            drop(responses.monitor(Response::new(Body::from("tea"))));
        }
        assert!(responses.open.lock().unwrap().len() <= PRUNE_AT);
    }
}
