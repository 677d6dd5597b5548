//! Handshakes that a key server signs.
//!
//! rustls signs synchronously, so that the thread of such a handshake waits for the key server. The event loop of its connection must
//! not, since others share it: each step of the handshake is a task for a thread of a bounded pool, and the connection is
//! waited for on its loop, where it stays. So slow clients occupy no thread.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{
    sync::{Notify, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

use crate::observe::counter::increment;

/// Threads that may wait for the key server at a time.
const MAX_THREADS: usize = 64;

/// Runs handshakes on threads that may be blocked.
#[derive(Debug)]
pub(crate) struct HandshakePool {
    threads: Arc<Semaphore>,
    patience: Duration,
}

/// Wakes the task that waits for a connection.
#[derive(Debug, Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl HandshakePool {
    /// Handshakes wait for a thread at most for `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { threads: Arc::new(Semaphore::new(MAX_THREADS)), patience }
    }

    /// Completes a handshake.
    ///
    /// # Errors
    /// When it fails; or it got no thread in time, and is counted in `refused`.
    pub(crate) async fn complete<F, T>(&self, mut handshake: F, refused: &AtomicU64) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + Send + Unpin + 'static,
        T: Send + 'static,
    {
        let woken = Arc::new(Woken::default());
        loop {
            let thread = timeout(self.patience, Arc::clone(&self.threads).acquire_owned()).await;
            let Ok(Ok(thread)) = thread else {
                increment(refused);
                return Err(io::Error::new(
                    io::ErrorKind::WouldBlock,
                    "too many handshakes wait for the key server",
                ));
            };
            let waker = Waker::from(Arc::clone(&woken));
            let step = spawn_blocking(move || {
                let polled = Pin::new(&mut handshake).poll(&mut Context::from_waker(&waker));
                drop(thread);
                (handshake, polled)
            });
            let (unfinished, polled) = step.await.map_err(io::Error::other)?;
            if let Poll::Ready(completed) = polled {
                return completed;
            }
            handshake = unfinished;
            woken.0.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{atomic::Ordering::Relaxed, mpsc},
    };

    use super::*;

    #[tokio::test]
    async fn handshakes_block_only_threads_of_the_pool_and_are_refused_when_all_are_busy() {
        let (pool, refused) = (HandshakePool::new(Duration::from_millis(20)), AtomicU64::new(0));
        let (sign, signs) = mpsc::channel::<()>();
        let signs = std::sync::Mutex::new(signs);
        let signs = Arc::new(signs);
        let began = Arc::new(Semaphore::new(0));
        let blocked = || {
            let (signs, began) = (Arc::clone(&signs), Arc::clone(&began));
            poll_fn(move |_| {
                began.add_permits(1);
                let _ = signs.lock().unwrap().recv();
                Poll::Ready(Ok(1))
            })
        };
        let all =
            futures_util::future::join_all((0..MAX_THREADS).map(|_| pool.complete(blocked(), &refused)));
        let other = async {
            let _ = began.acquire_many(u32::try_from(MAX_THREADS).unwrap()).await.unwrap();
            let error = pool.complete(poll_fn(|_| Poll::Ready(Ok(2))), &refused).await.unwrap_err();
            assert_eq!((error.kind(), refused.load(Relaxed)), (io::ErrorKind::WouldBlock, 1));
            drop(sign);
        };
        let (all, ()) = tokio::join!(all, other);
        assert!(all.iter().all(Result::is_ok));
        let mut steps = 0;
        let in_steps = poll_fn(move |context| {
            steps += 1;
            if steps < 3 {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok(steps))
        });
        assert_eq!(pool.complete(in_steps, &refused).await.unwrap(), 3);
    }
}
