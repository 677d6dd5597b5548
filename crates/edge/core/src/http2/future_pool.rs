//! Reuses the memory of completed request futures.
//!
//! The future of a request is too large for the caches of allocators. It is boxed, so that the tables of
//! requests in flight stay small.

use std::{
    cell::RefCell,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::Response;
use tokio_util::sync::ReusableBoxFuture;

use crate::http2::{response_stall::ResponseBody, stream_drain::DrainableBody};

type PooledResponse = Response<ResponseBody<DrainableBody>>;

/// Maximum number of pooled allocations per thread, each a few KB: as many as one connection may have
/// requests in flight.
const MAX_POOLED: usize = 256;

thread_local! {
    static POOL: RefCell<Vec<ReusableBoxFuture<'static, PooledResponse>>> = const { RefCell::new(Vec::new()) };
}

/// The future of a response.
#[derive(Debug)]
pub(crate) struct PooledFuture(Option<ReusableBoxFuture<'static, PooledResponse>>);

impl PooledFuture {
    pub(crate) fn new(future: impl Future<Output = PooledResponse> + Send + 'static) -> Self {
        let slot = POOL.with_borrow_mut(Vec::pop);
        Self(Some(match slot {
            Some(mut slot) => {
                slot.set(future);
                slot
            }
            None => ReusableBoxFuture::new(future),
        }))
    }
}

impl Future for PooledFuture {
    type Output = PooledResponse;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PooledResponse> {
        // Not polled after completion.
        let Some(future) = &mut self.0 else { return Poll::Pending };
        let response = ready!(future.poll(context));
        if let Some(slot) = self.0.take() {
            POOL.with_borrow_mut(|pooled| {
                if pooled.len() < MAX_POOLED {
                    pooled.push(slot);
                }
            });
        }
        Poll::Ready(response)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, sync::Arc, task::Waker};

    use fairmesh_calls::Body;

    use super::*;

    async fn respond(_held: Arc<()>) -> PooledResponse {
        let response = DrainableBody::wrap(Response::new(Body::empty()), &Arc::default());
        response.map(ResponseBody::Ended)
    }

    fn poll(future: &mut PooledFuture) -> Poll<PooledResponse> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn pooled() -> usize {
        POOL.with_borrow(Vec::len)
    }

    #[test]
    fn completed_future_returns_its_memory_to_pool_and_drops_contents() {
        let held = Arc::new(());
        for _ in 0..3 {
            let mut made = PooledFuture::new(respond(Arc::clone(&held)));
            assert_eq!(pooled(), 0);
            assert!(poll(&mut made).is_ready());
            assert_eq!((pooled(), Arc::strong_count(&held)), (1, 1));
        }
    }

    #[test]
    fn cancelled_futures_are_dropped_and_future_pool_is_bounded() {
        let held = Arc::new(());
        let waits = Arc::clone(&held);
        let mut given_up = PooledFuture::new(async move {
            let _held = waits;
            pending().await
        });
        assert!(poll(&mut given_up).is_pending());
        drop(given_up);
        assert_eq!((pooled(), Arc::strong_count(&held)), (0, 1));
        let mut all: Vec<_> =
            (0..2 * MAX_POOLED).map(|_| PooledFuture::new(respond(Arc::clone(&held)))).collect();
        assert!(all.iter_mut().all(|made| poll(made).is_ready()));
        assert_eq!((pooled(), Arc::strong_count(&held)), (MAX_POOLED, 1));
    }
}
