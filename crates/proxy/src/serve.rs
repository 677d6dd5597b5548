//! Listeners, connections, and how they end.

use std::{
    convert::Infallible,
    error::Error,
    future::pending,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Limits, Listen, ProxyError,
    forward::{Forwarder, Origin},
    lean::{self, Ended},
    metrics::{Held, count},
    rewound::Rewound,
};

/// How long to wait before accepting again when the system refuses, as it does when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often a quiet HTTP/2 connection is probed, and how long the answer may take.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));
/// The most headers of a request, and the most bytes of its head.
const MAX_HEADERS: usize = 128;
const MAX_HEAD: usize = 64 * 1024;
/// Requests under way on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Streams that a peer may open and reset before they are looked at (CVE-2023-44487).
const MAX_RESETS: usize = 64;

/// A listener that is bound.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Bound {
    pub(crate) async fn all(listen: &[Listen]) -> Result<Vec<Self>, ProxyError> {
        let mut all = Vec::with_capacity(listen.len());
        for Listen { address, .. } in listen {
            let bound = async {
                let listener = TcpListener::bind(address).await?;
                let address = listener.local_addr()?;
                io::Result::Ok(Self { listener, address })
            };
            all.push(bound.await.map_err(|source| ProxyError::Listen { address: *address, source })?);
        }
        Ok(all)
    }
}

/// What all listeners share.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    forwarder: Arc<Forwarder>,
    places: Arc<Semaphore>,
    limits: Limits,
}

impl Serving {
    pub(crate) fn new(forwarder: Arc<Forwarder>, limits: Limits) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { forwarder, places, limits }
    }

    /// Connections of programs that are open.
    pub(crate) fn open(&self) -> u64 {
        self.forwarder.metrics.open.load(Relaxed)
    }

    /// Accepts until `stopping`.
    pub(crate) async fn accept(
        self,
        bound: Bound,
        listen: Listen,
        stopping: CancellationToken,
        connections: TaskTracker,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = self.next(&bound.listener) => accepted,
                () = stopping.cancelled() => return,
            };
            let Some((stream, caller, place)) = accepted else { continue };
            let origin = Origin { caller, service: listen.service.clone() };
            connections.spawn(self.clone().serve(stream, origin, stopping.clone(), place));
        }
    }

    /// The next connection, once there is a place for it: those beyond the bound wait unaccepted, which their programs see as
    /// a slow connect, where a refusal would be an error.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let metrics = &self.forwarder.metrics;
        let place = match Arc::clone(&self.places).try_acquire_owned() {
            Ok(place) => place,
            Err(_) => {
                count(&metrics.accepts_delayed);
                // The semaphore is never closed.
                Arc::clone(&self.places).acquire_owned().await.ok()?
            }
        };
        match listener.accept().await {
            Ok((stream, caller)) => {
                count(&metrics.accepted);
                Some((stream, caller, place))
            }
            Err(error) => {
                count(&metrics.accepts_delayed);
                tracing::warn!(%error, "cannot accept; check the limit of open files");
                sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }

    async fn serve(
        self,
        stream: TcpStream,
        origin: Origin,
        stopping: CancellationToken,
        _place: OwnedSemaphorePermit,
    ) {
        let metrics = &self.forwarder.metrics;
        let _open = Held::new(&metrics.open);
        // Fails only on a socket that is already broken, which the first read will say better.
        let _ = stream.set_nodelay(true);
        let caller = origin.caller;
        let halves = stream.into_split();
        let answer = |request| self.forwarder.answer(request, &origin);
        let ended = tokio::select! {
            biased;
            ended = lean::serve(halves, self.limits.head, &stopping, answer) => ended,
            () = cut_off(&stopping, self.limits.drain) => {
                count(&metrics.cut);
                return;
            }
        };
        match ended {
            Ended::Done => {}
            Ended::Broken(error) => {
                count(&metrics.broken);
                tracing::debug!(error = &error as &dyn Error, %caller, "a connection ended early");
            }
            Ended::Beyond(reader, writer, read) => {
                // Both are halves of one.
                let Ok(stream) = reader.reunite(writer) else { return };
                self.left_to_hyper(Rewound::new(read, stream), origin, stopping).await;
            }
        }
    }

    /// HTTP/2, and HTTP/1.1 from a request on that asks for another protocol.
    async fn left_to_hyper(&self, stream: Rewound<TcpStream>, origin: Origin, stopping: CancellationToken) {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let (forwarder, origin) = (Arc::clone(&self.forwarder), Arc::new(origin));
        let heard = Arc::new(AtomicBool::new(false));
        let silent = silence(Arc::clone(&heard), self.limits.head);
        let service = service_fn(move |request| {
            heard.store(true, Relaxed);
            let (forwarder, origin) = (Arc::clone(&forwarder), Arc::clone(&origin));
            async move { Ok::<_, Infallible>(forwarder.answer(request, &origin).await) }
        });
        let builder = self.builder();
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = silent => {
                count(&metrics.broken);
                return;
            }
            () = stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match timeout(self.limits.drain, connection).await {
                    Ok(ended) => ended,
                    Err(_) => {
                        count(&metrics.cut);
                        return;
                    }
                }
            }
        };
        if let Err(error) = ended {
            count(&metrics.broken);
            tracing::debug!(error, %caller, "a connection ended early");
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let (interval, patience) = KEEP_ALIVE;
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(interval)
            .keep_alive_timeout(patience)
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD as u32)
            .max_pending_accept_reset_streams(MAX_RESETS);
        builder
    }
}

/// Ends when what is under way has had its time after a stop.
async fn cut_off(stopping: &CancellationToken, drain: Duration) {
    stopping.cancelled().await;
    sleep(drain).await;
}

/// Ends where no request was heard in time, and never otherwise: hyper bounds how long heads may take only once it has seen
/// which protocol they are of.
async fn silence(heard: Arc<AtomicBool>, patience: Duration) {
    sleep(patience).await;
    if heard.load(Relaxed) {
        pending::<()>().await;
    }
}
