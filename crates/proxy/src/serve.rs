//! Listeners, connections, and how they end.

mod captured;

use std::{
    convert::Infallible,
    error::Error,
    future::{pending, poll_fn},
    mem,
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Poll, ready},
    time::Duration,
};

use fairmesh_client::gathered::gathered;
use http::{Request, Response, Version};
use hyper::{
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, sleep_until, timeout_at},
};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::PollSemaphore, task::TaskTracker};

use crate::{
    Limits, Listen, ProxyError, Traffic,
    cores::Cores,
    flood::{Counted, Flood},
    forward::{Answering, Forwarder, Origin},
    handover::Inherited,
    lean::{self, Ended},
    link::Link,
    metrics::count,
    place::Place,
    proxy_protocol::Ends,
    recycled::Recycled,
    restless::Restless,
    rewound::Rewound,
    stopping::{Heard, Stopping},
    streams::{LastWord, Streamed},
    tcp,
    tls::Tls,
    unread::Unread,
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
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Bound {
    pub(crate) async fn all(listen: &[Listen], inherited: &mut Inherited) -> Result<Vec<Self>, ProxyError> {
        let mut all = Vec::with_capacity(listen.len());
        for Listen { address, .. } in listen {
            all.push(Self::at(*address, inherited).await?);
        }
        Ok(all)
    }

    /// One that was inherited, or else one of its own.
    pub(crate) async fn at(address: SocketAddr, inherited: &mut Inherited) -> Result<Self, ProxyError> {
        let bound = async {
            let listener = match inherited.take(address) {
                Some(listener) => TcpListener::from_std(listener),
                None => TcpListener::bind(address).await,
            }?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        bound.await.map_err(|source| ProxyError::Listen { address, source })
    }
}

/// What all listeners share.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    forwarder: Arc<Forwarder>,
    places: Arc<Semaphore>,
    stopping: Arc<Stopping>,
    cores: Cores,
    limits: Limits,
    tls: Option<Arc<Tls>>,
}

/// One connection, as its requests need to know it.
struct Talk {
    origin: Origin,
    heard: Heard,
    stopping: Arc<Stopping>,
    last_word: Arc<LastWord>,
    restless: Arc<Restless>,
    answers: Answers<Streamed>,
}

impl Talk {
    fn new(origin: Origin, stopping: Arc<Stopping>) -> Self {
        let (heard, last_word) = (Heard::default(), Arc::default());
        Self { origin, heard, stopping, last_word, restless: Arc::default(), answers: Answers::default() }
    }
}

impl Serving {
    pub(crate) fn new(
        forwarder: Arc<Forwarder>,
        stopping: Arc<Stopping>,
        cores: Cores,
        limits: Limits,
    ) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { forwarder, places, stopping, cores, limits, tls: None }
    }

    /// With a certificate for the listeners that show one.
    pub(crate) fn with_tls(self, tls: Option<Arc<Tls>>) -> Self {
        Self { tls, ..self }
    }

    /// How long one that takes over may wait for what it has to know.
    pub(crate) fn first_contact(&self) -> Duration {
        self.limits.first_contact
    }

    /// Connections of programs that are open.
    pub(crate) fn open(&self) -> u64 {
        self.forwarder.metrics.open.load(Relaxed)
    }

    /// Accepts from when it is `known` what to do with what comes until the proxy stops.
    pub(crate) async fn accept(
        self,
        bound: Bound,
        listen: Arc<Listen>,
        known: impl Future<Output = ()>,
        connections: TaskTracker,
    ) {
        tokio::select! {
            () = known => {}
            () = self.stopping.told().cancelled() => return,
        }
        tracing::info!(address = %bound.address, service = %listen.words(), "listening");
        loop {
            let accepted = tokio::select! {
                accepted = self.next(&bound.listener) => accepted,
                () = self.stopping.told().cancelled() => return,
            };
            let Some((stream, caller, permit)) = accepted else { continue };
            let (own, listen) = (self.clone(), Arc::clone(&listen));
            let serve = move |stream, on_core| {
                let place = Arc::new(Place::new(&own.forwarder.metrics, permit, on_core));
                own.begin((stream, caller), listen, place)
            };
            self.cores.spawn(&connections, stream, serve);
        }
    }

    /// The next connection, once there is a place for it: those beyond the bound wait unaccepted, which their programs see as
    /// a slow connect, where a refusal would be an error. Of several listeners the one that has waited longest takes a place,
    /// and one to which nobody comes holds none.
    async fn next(&self, listener: &TcpListener) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
        let metrics = &self.forwarder.metrics;
        if self.places.available_permits() == 0 {
            count(&metrics.accepts_delayed);
        }
        let mut places = PollSemaphore::new(Arc::clone(&self.places));
        let accepted = poll_fn(|context| {
            // The semaphore is never closed.
            let Some(place) = ready!(places.poll_acquire(context)) else { return Poll::Ready(None) };
            let accepted = ready!(listener.poll_accept(context));
            Poll::Ready(Some(accepted.map(|(stream, caller)| (stream, caller, place))))
        });
        match accepted.await? {
            Ok(accepted) => {
                count(&metrics.accepted);
                Some(accepted)
            }
            Err(error) => {
                count(&metrics.accepts_delayed);
                tracing::warn!(%error, "cannot accept; check the limit of open files");
                sleep(ACCEPT_PAUSE).await;
                None
            }
        }
    }

    /// Finds out who connected, and agrees on TLS where that is spoken here.
    async fn begin(
        self,
        (mut stream, caller): (TcpStream, SocketAddr),
        listen: Arc<Listen>,
        place: Arc<Place>,
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
        if let Traffic::Captured { only_services } = listen.traffic {
            return self.captured(stream, caller, only_services, place).await;
        }
        if listen.tls {
            let Some(stream) = self.secured(stream, &listen, ends.source).await else { return };
            self.take(stream, ends, &listen, place).await;
        } else {
            self.take(stream, ends, &listen, place).await;
        }
    }

    /// The connection within TLS, once both sides have agreed on it.
    async fn secured(
        &self,
        stream: TcpStream,
        listen: &Listen,
        caller: SocketAddr,
    ) -> Option<TlsStream<TcpStream>> {
        let (tls, counts) = (self.tls.as_ref()?, &self.forwarder.metrics.tls);
        let shaken = tokio::select! {
            shaken = tls.accept(stream, &listen.traffic, self.limits.head, counts) => shaken,
            () = self.cut_off() => {
                count(&self.forwarder.metrics.cut);
                return None;
            }
        };
        let log = |error| tracing::debug!(%error, %caller, "a connection was not secured");
        shaken.map_err(log).ok()
    }

    /// Serves what is spoken here.
    async fn take<L: Link>(self, stream: L, ends: Ends, listen: &Listen, place: Arc<Place>) {
        match &listen.traffic {
            Traffic::Http { service } => {
                tcp::limit_silence(stream.socket(), self.limits.head);
                let origin = Origin::new(ends.source, service.clone(), place).over_tls(listen.tls);
                self.serve(stream, origin).await;
            }
            Traffic::Tcp { service, send_proxy } => {
                let send_proxy = send_proxy.map(|version| (version, ends));
                tcp::serve(&self.forwarder, stream, service, send_proxy).await;
            }
            // Has begun already: the socket itself knows where it was meant to go.
            Traffic::Captured { .. } => {}
        }
    }

    async fn serve<L: Link>(self, stream: L, origin: Origin) {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let halves = stream.halves();
        let answering = Answering::new(&self.forwarder, &origin);
        let served = lean::serve(halves, self.limits.head, &self.stopping, &answering);
        let Some(ended) = self.unless_cut_off(served).await else { return count(&metrics.cut) };
        match ended {
            Ended::Done => {}
            Ended::Broken(error) => {
                count(&metrics.broken);
                tracing::debug!(error = &error as &dyn Error, %caller, "a connection ended early");
            }
            Ended::Beyond(reader, writer, read) => {
                // Both are halves of one.
                let Some(stream) = L::whole((reader, writer)) else { return };
                self.left_to_hyper(Rewound::new(read, stream), origin).await;
            }
        }
    }

    /// What comes of serving a connection, unless the deadline of a stop comes first.
    async fn unless_cut_off<T>(&self, served: impl Future<Output = T>) -> Option<T> {
        let (mut served, mut cut_off) = (pin!(served), pin!(self.cut_off()));
        let mut listens = false;
        poll_fn(|context| {
            if let Poll::Ready(ended) = served.as_mut().poll(context) {
                return Poll::Ready(Some(ended));
            }
            // Polled once it wakes this task, which is always the same; there is nothing to hear before it has.
            let listened = mem::replace(&mut listens, true);
            let hears = !listened || self.stopping.is_told();
            if hears && cut_off.as_mut().poll(context).is_ready() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }

    /// Ends at the deadline of a stop, and before that wakes who polls it whenever there is something to know of it.
    async fn cut_off(&self) {
        let deadline = self.stopping.begun().await;
        self.stopping.quiet().cancelled().await;
        sleep_until(deadline).await;
    }

    /// HTTP/2, and HTTP/1.1 from a request on that asks for another protocol.
    async fn left_to_hyper<I>(&self, stream: Rewound<I>, origin: Origin)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let talk = Arc::new(Talk::new(origin, Arc::clone(&self.stopping)));
        let flood = Arc::<Flood>::default();
        let (stream, outlet) = gathered(Counted::new(stream, Arc::clone(&flood)));
        let service = self.answers(Arc::clone(&talk));
        let builder = builder(self.limits.head);
        let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let served = async {
            let deadline = tokio::select! {
                ended = outlet.drive(connection.as_mut()) => return Some(ended),
                deadline = self.stopping.begun() => deadline,
            };
            // What speaks HTTP/1.1 is told with its next answer, and else when it was given the time for one.
            let told = async {
                if !talk.heard.is_http2() {
                    self.stopping.quiet().cancelled().await;
                }
            };
            tokio::select! {
                ended = outlet.drive(connection.as_mut()) => return Some(ended),
                () = told => connection.as_mut().graceful_shutdown(),
            }
            if let Ok(ended) =
                timeout_at(Stopping::last_word(deadline), outlet.drive(connection.as_mut())).await
            {
                return Some(ended);
            }
            talk.last_word.say();
            timeout_at(deadline, outlet.drive(connection.as_mut())).await.ok()
        };
        let ended = tokio::select! {
            ended = served => ended,
            () = self.has_enough(&talk, &flood) => return,
        };
        let Some(ended) = ended else { return count(&metrics.cut) };
        if let Err(error) = ended {
            count(&metrics.broken);
            tracing::debug!(error, %caller, "a connection ended early");
        }
    }

    /// Ends where a connection is to be cut off for what its program does, and counts why.
    async fn has_enough(&self, talk: &Arc<Talk>, flood: &Flood) {
        let metrics = &self.forwarder.metrics;
        tokio::select! {
            () = silence(Arc::clone(talk), self.limits.head) => count(&metrics.broken),
            () = talk.answers.look(self.limits.head, metrics) => {}
            () = talk.restless.enough() => count(&metrics.restless),
            () = flood.enough() => count(&metrics.flooding),
        }
    }

    /// Answers the requests of one connection.
    fn answers(
        &self,
        talk: Arc<Talk>,
    ) -> impl Service<
        Request<Incoming>,
        Response = Response<AnswerBody<Streamed>>,
        Error = Infallible,
        Future: Send + 'static,
    > + 'static {
        let forwarder = Arc::clone(&self.forwarder);
        service_fn(move |request: Request<Incoming>| {
            let version = request.version();
            talk.heard.request(version);
            let (forwarder, talk) = (Arc::clone(&forwarder), Arc::clone(&talk));
            let waiting = talk.restless.begin();
            let request = request.map(|body| Unread::new(body, version == Version::HTTP_2));
            Recycled::new(async move {
                let mut answer = forwarder.answer(request, &talk.origin).await;
                waiting.answered();
                talk.stopping.mark(version, answer.headers_mut());
                let answer = Streamed::answer(answer, version, &talk.last_word);
                match version {
                    Version::HTTP_2 => talk.answers.watch(answer),
                    _ => answer.map(AnswerBody::Plain),
                }
            })
        })
    }
}

/// How hyper serves, where a head may take so long.
pub(crate) fn builder(head: Duration) -> auto::Builder<TokioExecutor> {
    let (interval, patience) = KEEP_ALIVE;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
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

/// Ends where no request was heard in time, and never otherwise: hyper bounds how long heads may take only once it has seen
/// which protocol they are of.
async fn silence(talk: Arc<Talk>, patience: Duration) {
    sleep(patience).await;
    if !talk.heard.nothing() {
        pending::<()>().await;
    }
}
