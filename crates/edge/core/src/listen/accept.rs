//! Accepts connections within a limit.

use std::{
    convert::Infallible,
    future::{Future, pending, poll_fn},
    io,
    net::SocketAddr,
    os::fd::AsFd as _,
    pin::Pin,
    sync::{Arc, atomic::AtomicU64},
    task::{Poll, ready},
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};
use tokio_util::sync::PollSemaphore;

use crate::{
    counter::increment,
    listen::{silent_connections::SilentConnections, socket_options},
};

/// Delay after a failed accept, for instance when file descriptors run out.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A semaphore with this many permits, at least one.
pub fn connection_limit(connections: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)))
}

/// Accepts the next connection once a permit is free. Returns `None` after a failure, which is logged, and
/// counted in `delayed` like a wait for a permit. Connections beyond the limit stay in the accept queue, so
/// clients see a slow connect instead of an error. Waiting listeners get permits in order, and a listener
/// without clients holds none. While a client waits, connections in `silent` are closed to make room.
pub async fn next_connection(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
    delayed: &AtomicU64,
    silent: Option<&SilentConnections>,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    if permits.available_permits() == 0 {
        increment(delayed);
    }
    let mut permits = PollSemaphore::new(Arc::clone(permits));
    let mut room: Option<Pin<Box<dyn Future<Output = Infallible> + Send>>> = None;
    let accepted = poll_fn(|context| {
        let Poll::Ready(permit) = permits.poll_acquire(context) else {
            if let Some(silent) = silent {
                let room = room.get_or_insert_with(|| Box::pin(make_room(listener, silent)));
                let _: Poll<Infallible> = room.as_mut().poll(context);
            }
            return Poll::Pending;
        };
        // The semaphore is never closed.
        let Some(permit) = permit else { return Poll::Ready(None) };
        let accepted = ready!(listener.poll_accept(context));
        Poll::Ready(Some(
            accepted.map(|(stream, caller)| (stream, socket_options::canonical(caller), permit)),
        ))
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

/// Closes silent connections one by one as long as a client waits to be accepted.
async fn make_room(listener: &TcpListener, silent: &SilentConnections) -> Infallible {
    let Ok(clients) = waiting_clients(listener) else { return pending().await };
    loop {
        // An error of the descriptor must not cause a busy loop.
        if clients.readable().await.is_ok() {
            silent.displace(Instant::now());
        }
        // The displaced connection closes meanwhile. If all were too young, the oldest is soon old enough.
        sleep(ACCEPT_RETRY).await;
    }
}

/// Returns a second descriptor of the listener, which is readable while a client waits. Nothing is read from it.
/// Polling the listener itself would accept the client. The client must stay in the accept queue: if this process
/// hands over its listeners, the successor serves that client.
fn waiting_clients(listener: &TcpListener) -> io::Result<TcpStream> {
    TcpStream::from_std(listener.as_fd().try_clone_to_owned()?.into())
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use futures_util::FutureExt as _;
    use tokio::time::timeout;

    use super::*;
    use crate::listen::silent_connections::MIN_AGE;

    #[tokio::test]
    async fn listener_without_waiting_clients_holds_no_connection_permit() {
        let (permits, delayed) = (connection_limit(1), AtomicU64::new(0));
        let quiet = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let busy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut waiting = Box::pin(next_connection(&quiet, &permits, &delayed, None));
        assert!(waiting.as_mut().now_or_never().is_none());
        let _client = TcpStream::connect(busy.local_addr().unwrap()).await.unwrap();
        assert!(next_connection(&busy, &permits, &delayed, None).await.is_some());
    }
    #[tokio::test(start_paused = true)]
    async fn silent_connection_is_closed_only_while_new_client_waits() {
        let (permits, delayed) = (connection_limit(1), AtomicU64::new(0));
        let silent = Arc::<SilentConnections>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _place = Arc::clone(&permits).acquire_owned().await.unwrap();
        let entered = silent.enter([192, 0, 2, 1].into(), Instant::now());
        let has_left = || entered.poll_displaced(&Context::from_waker(Waker::noop()));
        let mut waiting = Box::pin(next_connection(&listener, &permits, &delayed, Some(&*silent)));
        assert!(timeout(10 * MIN_AGE, &mut waiting).await.is_err());
        assert!(!has_left(), "no client waits");
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(timeout(MIN_AGE, &mut waiting).await.is_err());
        assert!(has_left());
    }
}
