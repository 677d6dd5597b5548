//! Accepts connections within a limit.

use std::{
    future::poll_fn,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64},
    task::{Poll, ready},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};
use tokio_util::sync::PollSemaphore;

use crate::{counter::increment, listen::socket};

/// Delay after a failed accept, as when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A semaphore for this many connections, at least one.
pub fn connection_limit(connections: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)))
}

/// Accepts the next connection once a permit is free; `None` after a failure, which is logged and counted in `delayed` as a wait for a permit
/// is. Connections beyond the limit stay in the accept queue, so that clients see a slow connect and no error. Permits are granted to
/// listeners in the order of waiting, and a listener without clients holds none.
pub async fn next_connection(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    delayed: &AtomicU64,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    if permits.available_permits() == 0 {
        increment(delayed);
    }
    let mut permits = PollSemaphore::new(Arc::clone(permits));
    let accepted = poll_fn(|context| {
        // The semaphore is never closed.
        let Some(permit) = ready!(permits.poll_acquire(context)) else { return Poll::Ready(None) };
        let accepted = ready!(listener.poll_accept(context));
        Poll::Ready(Some(accepted.map(|(stream, caller)| (stream, socket::canonical(caller), permit))))
    });
    match accepted.await? {
        Ok(accepted) => Some(accepted),
        Err(error) => {
            increment(delayed);
            tracing::warn!(%error, "cannot accept; check the limit of open files");
            sleep(ACCEPT_RETRY).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn waiting_listener_without_clients_holds_no_permit() {
        let (permits, delayed) = (connection_limit(1), AtomicU64::new(0));
        let quiet = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let busy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut waiting = Box::pin(next_connection(&quiet, &permits, &delayed));
        assert!(waiting.as_mut().now_or_never().is_none());
        let _client = TcpStream::connect(busy.local_addr().unwrap()).await.unwrap();
        assert!(next_connection(&busy, &permits, &delayed).await.is_some());
    }
}
