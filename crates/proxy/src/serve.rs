//! Listeners, connections, and how they end.

use std::{
    convert::Infallible,
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

use http::Version;
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
    Limits, Listen, ProxyError, Traffic,
    forward::{Forwarder, Origin},
    metrics::count,
    place::Place,
    restless::Restless,
    tcp,
    untaken::{AnswerBody, Answers},
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
        listen: Arc<Listen>,
        stopping: CancellationToken,
        connections: TaskTracker,
    ) {
        loop {
            let accepted = tokio::select! {
                accepted = self.next(&bound.listener) => accepted,
                () = stopping.cancelled() => return,
            };
            let Some((stream, caller, permit)) = accepted else { continue };
            let place = Arc::new(Place::new(&self.forwarder.metrics, permit));
            let begun = self.clone().begin((stream, caller), Arc::clone(&listen), place, stopping.clone());
            connections.spawn(begun);
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

    /// Finds out who connected, and serves what is spoken here.
    async fn begin(
        self,
        (mut stream, caller): (TcpStream, SocketAddr),
        listen: Arc<Listen>,
        place: Arc<Place>,
        stopping: CancellationToken,
    ) {
        // Fails only on a socket that is already broken, which the first read will say better.
        let _ = stream.set_nodelay(true);
        let mut ends = tcp::ends_of(&stream, caller);
        if listen.accept_proxy {
            match tcp::read_proxy_head(&mut stream, self.limits.head).await {
                Ok(told) => ends = told.unwrap_or(ends),
                Err(error) => {
                    count(&self.forwarder.metrics.proxy_heads_refused);
                    tracing::debug!(%error, %caller, "a connection was refused");
                    return tcp::reset(stream);
                }
            }
        }
        match &listen.traffic {
            Traffic::Http { service } => {
                tcp::limit_silence(&stream, self.limits.head);
                let origin = Origin { caller: ends.source, service: service.clone(), place };
                self.serve(stream, origin, stopping).await;
            }
            Traffic::Tcp { service, send_proxy } => {
                let send_proxy = send_proxy.map(|version| (version, ends));
                tcp::serve(&self.forwarder, stream, service, send_proxy).await;
            }
        }
    }

    async fn serve(self, stream: TcpStream, origin: Origin, stopping: CancellationToken) {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let (forwarder, origin) = (Arc::clone(&self.forwarder), Arc::new(origin));
        let heard = Arc::new(AtomicBool::new(false));
        let silent = silence(Arc::clone(&heard), self.limits.head);
        let restless = Arc::<Restless>::default();
        let requests = Arc::clone(&restless);
        let answers = Arc::<Answers<_>>::default();
        let watched = Arc::clone(&answers);
        let service = service_fn(move |request| {
            heard.store(true, Relaxed);
            let (forwarder, origin) = (Arc::clone(&forwarder), Arc::clone(&origin));
            let (waiting, answers) = (requests.begin(), Arc::clone(&watched));
            async move {
                let version = request.version();
                let answer = forwarder.answer(request, &origin).await;
                waiting.answered();
                Ok::<_, Infallible>(match version {
                    Version::HTTP_2 => answers.watch(answer),
                    _ => answer.map(AnswerBody::Plain),
                })
            }
        });
        let builder = self.builder();
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = silent => return count(&metrics.broken),
            () = answers.look(self.limits.head, metrics) => return,
            () = restless.enough() => return count(&metrics.restless),
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

/// Ends where no request was heard in time, and never otherwise: hyper bounds how long heads may take only once it has seen
/// which protocol they are of.
async fn silence(heard: Arc<AtomicBool>, patience: Duration) {
    sleep(patience).await;
    if heard.load(Relaxed) {
        pending::<()>().await;
    }
}
