//! Handshakes that a key server signs.
//!
//! rustls signs synchronously, so the thread of such a handshake blocks until the key server responds. The
//! connection's event loop must not block, since other connections share it. The response to the ClientHello,
//! which is signed, therefore runs on a thread of a bounded pool. All other steps stay on the loop, so that
//! slow clients occupy no thread.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{Notify, Semaphore},
    task::spawn_blocking,
    time::timeout,
};
use tokio_rustls::{
    LazyConfigAcceptor,
    rustls::{HandshakeKind, ServerConfig, server::Acceptor},
    server::TlsStream,
};

use crate::counter::increment;

/// Maximum number of threads that wait for the key server.
const MAX_THREADS: usize = 64;

/// Runs handshakes on threads that may block.
#[derive(Debug)]
pub(crate) struct HandshakePool {
    threads: Arc<Semaphore>,
    patience: Duration,
}

/// Wakes the task that waits for a connection to become readable.
#[derive(Debug, Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl HandshakePool {
    /// Creates a pool. Handshakes wait at most `patience` for a thread.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { threads: Arc::new(Semaphore::new(MAX_THREADS)), patience }
    }

    /// Completes a handshake.
    ///
    /// # Errors
    /// The handshake fails, or gets no thread in time; the latter is counted in `refused`.
    pub(crate) async fn complete<S>(
        &self,
        stream: S,
        config: Arc<ServerConfig>,
        refused: &AtomicU64,
    ) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let respond = move || {
            let mut is_signed = true;
            let accept = hello.into_stream_with(config, |connection| {
                // A HelloRetryRequest (RFC 8446 4.1.4) is not signed, but the response to the second ClientHello is.
                is_signed = connection.handshake_kind() != Some(HandshakeKind::FullWithHelloRetryRequest);
            });
            (accept, is_signed)
        };
        match self.run(respond, refused).await? {
            (accept, true) => accept.await,
            (accept, false) => self.poll_on_threads(accept, refused).await,
        }
    }

    /// Runs a handshake of which any step may sign. Each step runs on a thread of the pool; the wait for the
    /// connection happens on its event loop.
    async fn poll_on_threads<F, T>(&self, mut handshake: F, refused: &AtomicU64) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + Send + Unpin + 'static,
        T: Send + 'static,
    {
        let woken = Arc::new(Woken::default());
        loop {
            let waker = Waker::from(Arc::clone(&woken));
            let step = move || {
                let polled = Pin::new(&mut handshake).poll(&mut Context::from_waker(&waker));
                (handshake, polled)
            };
            let (unfinished, polled) = self.run(step, refused).await?;
            if let Poll::Ready(completed) = polled {
                return completed;
            }
            handshake = unfinished;
            woken.0.notified().await;
        }
    }

    /// Runs a step on a thread.
    async fn run<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> T + Send + 'static,
        refused: &AtomicU64,
    ) -> io::Result<T> {
        let thread = timeout(self.patience, Arc::clone(&self.threads).acquire_owned()).await;
        let Ok(Ok(thread)) = thread else {
            increment(refused);
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "too many handshakes wait for the key server",
            ));
        };
        let step = spawn_blocking(move || {
            let done = step();
            drop(thread);
            done
        });
        step.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests;
