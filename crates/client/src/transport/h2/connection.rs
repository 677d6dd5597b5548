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
    net::TcpStream,
    time::{sleep, timeout},
};

use super::{Line, SendError, Shared};

/// What a server may send ahead on one call, in bytes: with HTTP/2's own 64 KB, one call over 100 ms gets 640 KB/s.
const STREAM_WINDOW: u32 = 1 << 20;
/// The same for all calls of a connection together.
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest data frame that a server may send: four times the default, for fewer of them.
const FRAME: u32 = 64 << 10;
/// How often a connection with calls on it is probed.
const PROBE: Duration = Duration::from_secs(30);
/// How long the answer to a probe may take.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// Connects, and drives the connection until it ends.
pub(super) async fn open(line: &Line) -> Result<Arc<Shared>, SendError> {
    let stream = line.connect().await?;
    let shaken = client::Builder::new()
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .enable_push(false)
        .handshake::<_, Bytes>(stream)
        .await;
    let (sender, mut connection) = shaken.map_err(|error| SendError::Stale(error.into()))?;
    let limit = u32::try_from(sender.current_max_send_streams()).unwrap_or(u32::MAX);
    let shared = Arc::new(Shared {
        sender: Mutex::new(sender),
        streams: AtomicU32::new(0),
        limit: AtomicU32::new(limit),
        gone: AtomicBool::new(false),
        used: AtomicBool::new(false),
        idle_rounds: AtomicU32::new(0),
    });
    let pings = connection.ping_pong();
    let open = line.counters.open_connection();
    // Weak, since a connection closes when the last handle to it, which `shared` holds, is dropped.
    let weak = Arc::downgrade(&shared);
    tokio::spawn(async move {
        drive(connection, pings, &weak).await;
        if let Some(shared) = weak.upgrade() {
            shared.gone.store(true, Relaxed);
        }
        drop(open);
    });
    Ok(shared)
}

async fn drive(
    connection: client::Connection<TcpStream, Bytes>,
    pings: Option<PingPong>,
    shared: &Weak<Shared>,
) {
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
