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

use super::{Line, SendError, Shared, last_words::LastWords};
use fairmesh_http::h2::{self, ClientConnection, lock};

/// How often a connection with calls on it is probed. gRPC servers tolerate a probe in 5 min on streams that stay quiet,
/// and end the connection of whoever probes more often (gRFC A8). Hosts that vanish are found by the socket, and much
/// sooner; this finds processes that hang while their host is well.
const PROBE: Duration = Duration::from_secs(6 * 60);
/// How long anything may take to come after a probe.
const PROBE_ANSWER: Duration = Duration::from_secs(10);

/// Connects, and drives the connection until it ends.
pub(super) async fn open(line: &Line, freed: &Arc<Notify>) -> Result<Arc<Shared>, SendError> {
    let stream = line.connect().await?;
    Ok(start(stream, line.counters.open_connection(), Arc::clone(freed)))
}

/// Drives a connection, which counts as open meanwhile, until it ends.
pub(super) fn start<I, O>(stream: I, open: O, freed: Arc<Notify>) -> Arc<Shared>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    O: Send + 'static,
{
    let connection = ClientConnection::new(LastWords(stream));
    let session = connection.session();
    let shared = Arc::new(Shared::new(Arc::clone(&session), freed));
    // Weak, since a connection ends when the last who knows of `shared` is gone.
    let weak = Arc::downgrade(&shared);
    tokio::spawn(async move {
        drive(connection, &session, &weak).await;
        if let Some(shared) = weak.upgrade() {
            shared.gone.store(true, Relaxed);
        }
        drop(open);
    });
    shared
}

async fn drive(connection: impl Future, session: &h2::Shared, shared: &Weak<Shared>) {
    let mut connection = pin!(connection);
    loop {
        tokio::select! {
            biased;
            // What became of it, the calls that are on it know.
            _ = &mut connection => return,
            () = sleep(PROBE) => {}
        }
        // Nor is one kept whose server does not even take the last word.
        let in_use = shared.upgrade().is_some_and(|shared| shared.streams.load(Relaxed) > 0)
            || !lock(session).is_flushed();
        if in_use && !probe(connection.as_mut(), session).await {
            // Dropping the connection ends the calls that are on it.
            return;
        }
    }
}

/// Whether the server is there while the connection is driven.
async fn probe<C: Future>(connection: Pin<&mut C>, session: &h2::Shared) -> bool {
    lock(session).take_activity();
    lock(session).send_ping();
    tokio::select! {
        biased;
        _ = connection => false,
        () = sleep(PROBE_ANSWER) => lock(session).take_activity(),
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
        let shared = start(near, open, Arc::default());
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
