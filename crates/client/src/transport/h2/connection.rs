use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{Ping, PingPong, client};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};

use super::{Line, SendError, Shared, last_words::LastWords, limit_of};
use crate::gathered::gathered;

/// What a server may send ahead on one call, in bytes: with HTTP/2's own 64 KB, one call over 100 ms gets 640 KB/s.
const STREAM_WINDOW: u32 = 1 << 20;
/// The same for all calls of a connection together.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest data frame that a server may send: four times the default, for fewer of them.
const FRAME: u32 = 64 << 10;
/// The calls that a server allows before it has said how many: what RFC 9113 6.5.2 recommends as the least. Without it, the
/// calls of the first round trip would all be sent at once, and most be refused.
const FIRST_STREAMS: usize = 100;
/// How often a connection with calls on it is probed. gRPC servers tolerate a probe in 5 min on streams that stay quiet,
/// and end the connection of whoever probes more often (gRFC A8). Hosts that vanish are found by the socket, and much
/// sooner; this finds processes that hang while their host is well.
const PROBE: Duration = Duration::from_secs(6 * 60);
/// How long the answer to a probe may take.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// Connects, and drives the connection until it ends.
pub(super) async fn open(line: &Line) -> Result<Arc<Shared>, SendError> {
    let stream = line.connect().await?;
    start(stream, line.counters.open_connection()).await
}

/// Drives a connection, which counts as open meanwhile, until it ends.
pub(super) async fn start<I, O>(stream: I, open: O) -> Result<Arc<Shared>, SendError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Send + 'static,
{
    let (stream, outlet) = gathered(LastWords(stream));
    let shaken = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .initial_max_send_streams(FIRST_STREAMS)
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await;
    let (sender, mut connection) = shaken.map_err(|error| SendError::Refused(error.into()))?;
    let shared = Arc::new(Shared {
        limit: AtomicU32::new(limit_of(&sender)),
        sender: Mutex::new(sender),
        streams: AtomicU32::new(0),
        gone: AtomicBool::new(false),
        used: AtomicBool::new(false),
        proven: AtomicBool::new(false),
        idle_rounds: AtomicU32::new(0),
    });
    let pings = connection.ping_pong();
    // Weak, since a connection closes when the last handle to it, which `shared` holds, is dropped.
    let weak = Arc::downgrade(&shared);
    tokio::spawn(async move {
        let connection = pin!(connection);
        drive(outlet.drive(connection), pings, &weak).await;
        if let Some(shared) = weak.upgrade() {
            shared.gone.store(true, Relaxed);
        }
        drop(open);
    });
    Ok(shared)
}

async fn drive(connection: impl Future, pings: Option<PingPong>, shared: &Weak<Shared>) {
    let mut connection = pin!(connection);
    let Some(mut pings) = pings else {
        let _ = connection.await;
        return;
    };
    loop {
        tokio::select! {
            biased;
            // Its errors reach the calls that are on it.
            _ = &mut connection => return,
            () = sleep(PROBE) => {}
        }
        let in_use = shared.upgrade().is_some_and(|shared| shared.streams.load(Relaxed) > 0);
        if in_use && !probe(connection.as_mut(), &mut pings).await {
            // Dropping the connection ends the calls that are on it.
            return;
        }
    }
}

/// Whether the server answers while the connection is driven.
async fn probe<C: Future>(connection: Pin<&mut C>, pings: &mut PingPong) -> bool {
    tokio::select! {
        biased;
        _ = connection => false,
        answer = timeout(PROBE_ANSWER, pings.ping(Ping::opaque())) => matches!(answer, Ok(Ok(_))),
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

    /// A server that settles the connection, tells of every probe, and answers as many as it is allowed to.
    async fn serve(mut stream: DuplexStream, probes: mpsc::UnboundedSender<Instant>, mut answers: u32) {
        stream.read_exact(&mut [0; PREFACE]).await.unwrap();
        stream.write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]).await.unwrap();
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let mut frame = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            stream.read_exact(&mut frame).await.unwrap();
            if head[3] == PING && head[4] & ACK == 0 {
                probes.send(Instant::now()).unwrap();
                if answers > 0 {
                    answers -= 1;
                    head[4] = ACK;
                    stream.write_all(&[&head[..], &frame].concat()).await.unwrap();
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn quiet_streams_are_probed_as_seldom_as_grpc_servers_want_and_one_that_hangs_is_found() {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (told, mut probes) = mpsc::unbounded_channel();
        tokio::spawn(serve(far, told, 3));
        let (open, closed) = tokio::sync::oneshot::channel::<()>();
        let begun = Instant::now();
        let shared = start(near, open).await.unwrap();
        assert_eq!(shared.limit.load(Relaxed), 100, "before the server has said anything");
        shared.streams.store(1, Relaxed);
        let mut last = begun;
        for _ in 0..4 {
            let probe = probes.recv().await.unwrap();
            assert!(probe - last > Duration::from_secs(5 * 60), "{:?}", probe - last);
            last = probe;
        }
        assert!(closed.await.is_err() && shared.gone.load(Relaxed), "the fourth was not answered");
        assert_eq!(last.elapsed(), PROBE_ANSWER);
    }
}
