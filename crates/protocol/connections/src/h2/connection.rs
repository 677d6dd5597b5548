use std::{
    pin::{Pin, pin},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::sleep,
};

use super::shared_connection::SharedConnection;
use crate::{connector::Connector, error::SendError};
use fairmesh_http::h2::{self, ClientConnection, DrainRead, lock};

/// Interval of PINGs on a connection with calls. gRPC servers tolerate one PING in 5 min on quiet streams, and close
/// the connection of a client that sends more (gRFC A8). The socket detects lost hosts, and much sooner; the PING
/// detects processes that hang on a healthy host.
const PING_INTERVAL: Duration = Duration::from_secs(6 * 60);
/// Time within which the server must acknowledge a PING.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects, and drives the connection until it ends.
pub(super) async fn open(
    connector: &Connector,
    stream_freed: &Arc<Notify>,
) -> Result<Arc<SharedConnection>, SendError> {
    let stream = connector.connect().await?;
    Ok(start(stream, connector.counters.open_connection(), Arc::clone(stream_freed)))
}

/// Drives a connection that belongs to no pool and is not counted.
pub fn start_uncounted<I>(stream: I) -> Arc<SharedConnection>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    start(stream, (), Arc::default())
}

/// Drives a connection until it ends; `open` counts it as open meanwhile.
pub(super) fn start<I, O>(stream: I, open: O, stream_freed: Arc<Notify>) -> Arc<SharedConnection>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Send + 'static,
{
    let connection = ClientConnection::new(DrainRead(stream));
    let session = connection.session();
    let shared = Arc::new(SharedConnection::new(Arc::clone(&session), stream_freed));
    // A weak reference, since the connection ends when the last reference to `shared` is dropped.
    let weak = Arc::downgrade(&shared);
    tokio::spawn(async move {
        drive(connection, &session, &weak).await;
        if let Some(shared) = weak.upgrade() {
            shared.closing.store(true, Relaxed);
        }
        drop(open);
    });
    shared
}

async fn drive(connection: impl Future, session: &h2::Shared, shared: &Weak<SharedConnection>) {
    let mut connection = pin!(connection);
    loop {
        tokio::select! {
            biased;
            // The connection's calls report how it ended.
            _ = &mut connection => return,
            () = sleep(PING_INTERVAL) => {}
        }
        // A closing connection is also probed until its GOAWAY is sent.
        let in_use = shared.upgrade().is_some_and(|shared| shared.streams.load(Relaxed) > 0)
            || !lock(session).is_flushed();
        if in_use && !probe(connection.as_mut(), session).await {
            // Dropping the connection ends its calls.
            return;
        }
    }
}

/// Sends a PING, and drives the connection meanwhile. Returns whether the server responds in time.
async fn probe<C: Future>(connection: Pin<&mut C>, session: &h2::Shared) -> bool {
    lock(session).take_activity();
    lock(session).send_ping();
    tokio::select! {
        biased;
        _ = connection => false,
        () = sleep(PING_TIMEOUT) => lock(session).take_activity(),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream},
        sync::mpsc,
        time::Instant,
    };

    use super::*;

    const PREFACE: usize = 24;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const ACK: u8 = 1;

    /// A server that reports every PING, and acknowledges the first `acks` of them.
    async fn serve(mut stream: DuplexStream, pings: mpsc::UnboundedSender<Instant>, mut acks: u32) {
        stream.read_exact(&mut [0; PREFACE]).await.unwrap();
        stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let mut frame = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut frame).await.unwrap();
            if head[3] == PING && head[4] & ACK == 0 {
                pings.send(Instant::now()).unwrap();
                if acks > 0 {
                    acks -= 1;
                    head[4] = ACK;
                    stream.write_all(&[&head[..], &frame].concat()).await.unwrap();
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn http2_ping_is_rare_on_quiet_streams_and_detects_hung_server() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (pings, mut received) = mpsc::unbounded_channel();
        tokio::spawn(serve(far, pings, 3));
        let (open, closed) = tokio::sync::oneshot::channel::<()>();
        let begun = Instant::now();
        let shared = start(near, open, Arc::default());
        assert_eq!(shared.limit.load(Relaxed), 100, "before the SETTINGS of the server");
        shared.streams.store(1, Relaxed);
        let mut last = begun;
        for _ in 0..4 {
            let ping = received.recv().await.unwrap();
            assert!(ping - last > Duration::from_secs(5 * 60), "{:?}", ping - last);
            last = ping;
        }
        assert!(closed.await.is_err() && shared.is_closing(), "the fourth was not acknowledged");
        assert_eq!(last.elapsed(), PING_TIMEOUT);
    }
}
