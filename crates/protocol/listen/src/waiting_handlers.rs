//! Handlers that wait for another event after their request is complete, such as a new revision or callers that move.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Poll,
};

use crate::{Connection, RequestGuard};

/// A request's place in a queue for a resource that all connections share. Dropping it leaves the queue.
#[derive(Debug)]
pub struct QueuePlace(Arc<Connection>);

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.queued().fetch_sub(1, Relaxed);
    }
}

/// Error: the request may no longer wait, because other requests need its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitRefused;

impl fmt::Display for WaitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many requests wait here; send it again later, or elsewhere")
    }
}

impl std::error::Error for WaitRefused {}

impl RequestGuard {
    /// Counts the request among the queued requests of its connection.
    ///
    /// # Errors
    /// `max` requests of the connection are queued already.
    pub fn queue(&self, max: u32) -> Result<QueuePlace, WaitRefused> {
        let connection = self.connection();
        let others = connection.queued().fetch_add(1, Relaxed);
        let place = QueuePlace(Arc::clone(connection));
        if others < max {
            return Ok(place);
        }
        connection.shared().counts.wait_refusals.fetch_add(1, Relaxed);
        Err(WaitRefused)
    }

    /// Waits until the peer has read enough of earlier responses to receive another.
    pub async fn room(&self) {
        if self.connection().bounds_responses() {
            self.connection().room().await;
        }
    }

    /// Runs the rest of a handler that may have to wait, and may be dropped at any await. When it waits, the memory
    /// that the request claimed is released. From then on the request holds `bytes`, which may be revoked like the
    /// memory of an incomplete request. This bounds the number of waiting requests.
    ///
    /// # Errors
    /// No memory is available, or it was revoked for others. The handler has then been dropped.
    pub async fn wait<T>(&self, bytes: usize, handler: impl Future<Output = T>) -> Result<T, WaitRefused> {
        let mut handler = pin!(handler);
        let mut claim = None;
        let waited = poll_fn(|cx| {
            if let Poll::Ready(done) = handler.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            if claim.is_none() {
                self.release();
                claim = self.memory().claim_wait(self.connection().holder(), bytes);
            }
            match claim.as_ref().is_none_or(|claim| claim.poll_revoked(cx)) {
                true => Poll::Ready(Err(WaitRefused)),
                false => Poll::Pending,
            }
        });
        let waited = waited.await;
        if waited.is_err() {
            self.connection().shared().counts.wait_refusals.fetch_add(1, Relaxed);
        }
        waited
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::io::duplex;

    use super::*;
    use crate::{Acceptor, Limits, Memory};

    /// Returns a request on a connection of its own.
    async fn request(acceptor: &Acceptor) -> RequestGuard {
        let stream = acceptor.accept(|_| Poll::Ready(Ok(duplex(1).0))).await;
        RequestGuard::new(stream.connection().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn memory_of_waiting_handler_is_small_and_revocable() {
        let memory = Memory::default();
        let acceptor = Acceptor::new("test", Limits::calls(), memory.clone());
        let (first, second) = (request(&acceptor).await, request(&acceptor).await);
        first.hold(memory.claim_wait(first.connection().holder(), 16 << 20).unwrap());
        first.complete();
        assert_eq!(first.wait(0, ready(7)).await, Ok(7));
        assert_eq!(memory.used(), 16 << 20, "it did not wait");

        let mut waiting = pin!(first.wait(1 << 20, pending::<()>()));
        let polled = poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx))).await;
        assert_eq!((polled, memory.used()), (Poll::Pending, 1 << 20));
        let mut others = Vec::new();
        for _ in 0..4 {
            let other = request(&acceptor).await;
            let claim = memory.claim_wait(other.connection().holder(), 15 << 20).unwrap();
            claim.complete();
            others.push((other, claim));
        }
        // The second request claims almost all of the rest; the first one holds more than that.
        assert_eq!(second.wait((3 << 20) + 1, ready(())).await, Ok(()));
        let claim = memory.claim_wait(second.connection().holder(), (3 << 20) + 1);
        assert!(claim.is_none(), "the first one holds less");
        let claim = memory.claim_wait(second.connection().holder(), 3 << 20);
        assert!(claim.is_some());
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        drop(claim);
        let _claim = memory.claim_wait(second.connection().holder(), (3 << 20) + 1).unwrap();
        assert_eq!(waiting.await, Err(WaitRefused));
        assert_eq!(acceptor.shared().counts.wait_refusals.load(Relaxed), 1);
    }
}
