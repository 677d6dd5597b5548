//! Listeners, connections, and how they end.

mod captured;
mod http2;

use std::{
    error::Error,
    future::{poll_fn, ready},
    io, mem,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use futures_util::{FutureExt as _, future::BoxFuture};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, sleep_until},
};
use tokio_rustls::server::TlsStream;
use tokio_util::{sync::PollSemaphore, task::TaskTracker};

use crate::{
    Limits, Listen, ProxyError, Traffic,
    cores::Cores,
    forward::{Answering, Forwarder, Origin},
    handover::Inherited,
    lean::{self, Ended, Left},
    link::Link,
    metrics::count,
    place::Place,
    proxy_protocol::Ends,
    rewound::Rewound,
    stopping::Stopping,
    tcp,
    tls::Tls,
};

/// How long to wait before accepting again when the system refuses, as it does when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A listener that is bound.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: TcpListener,
    pub(crate) address: SocketAddr,
}

impl Bound {
    pub(crate) async fn all(listen: &[Listen], inherited: &mut Inherited) -> Result<Vec<Self>, ProxyError> {
        let mut all = Vec::with_capacity(listen.len());
        for Listen { address, traffic, .. } in listen {
            let bound = Self::at(*address, inherited).await?;
            if matches!(traffic, Traffic::Captured { transparent: true, .. }) {
                let opened = open_to_all(&bound.listener);
                opened.map_err(|source| ProxyError::Transparent { address: *address, source })?;
            }
            all.push(bound);
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

/// Lets it take connections that were meant for other machines. One that was inherited does so already, whatever its heir may do.
fn open_to_all(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    // Of IPv6 as well: the system has one flag for both.
    if socket.ip_transparent_v4()? { Ok(()) } else { socket.set_ip_transparent_v4(true) }
}

/// A connection, and what was read of it and not used. There always is one: the halves are of one connection.
fn whole<L: Link>(left: Left<L::Reader, L::Writer>) -> Option<(L, BytesMut)> {
    Some((L::whole((left.reader, left.writer))?, left.read))
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

    /// Connections that were cut off at the deadline of a stop.
    pub(crate) fn cut(&self) -> u64 {
        self.forwarder.metrics.cut.load(Relaxed)
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
        let serving = Arc::new(self);
        loop {
            let accepted = tokio::select! {
                accepted = serving.next(&bound.listener) => accepted,
                () = serving.stopping.told().cancelled() => return,
            };
            let Some((stream, caller, permit)) = accepted else { continue };
            let (own, listen) = (Arc::clone(&serving), Arc::clone(&listen));
            let serve = move |stream, on_core| {
                let place = Arc::new(Place::new(&own.forwarder.metrics, permit, on_core));
                own.begin((stream, caller), listen, place)
            };
            serving.cores.spawn(&connections, stream, serve);
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

    /// Finds out who connected, and serves what is spoken here. Each of what may take a while is boxed: unboxed, every connection
    /// would keep room for the largest of them for as long as it lasts.
    async fn begin(
        self: Arc<Self>,
        (mut stream, caller): (TcpStream, SocketAddr),
        listen: Arc<Listen>,
        place: Arc<Place>,
    ) {
        // Fails only on a socket that is already broken, which the first read will say better.
        let _ = stream.set_nodelay(true);
        let mut ends = tcp::ends_of(&stream, caller);
        if listen.accept_proxy {
            match tcp::read_proxy_head(&mut stream, self.limits.head).boxed().await {
                Ok(told) => ends = told.unwrap_or(ends),
                Err(error) => {
                    count(&self.forwarder.metrics.proxy_heads_refused);
                    tracing::debug!(%error, %caller, "a connection was refused");
                    return tcp::reset(stream);
                }
            }
        }
        let served = if let Traffic::Captured { .. } = listen.traffic {
            self.captured(stream, caller, &listen, place).boxed()
        } else if listen.tls {
            // Nothing else is awaited in here, or every connection would keep room for what TLS needs.
            match self.secured(stream, &listen, ends.source).boxed().await {
                Some(stream) => self.take(stream, ends, &listen, place),
                None => return,
            }
        } else {
            self.take(stream, ends, &listen, place)
        };
        served.await;
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
    fn take<'a, L: Link>(
        &'a self,
        stream: L,
        ends: Ends,
        listen: &'a Listen,
        place: Arc<Place>,
    ) -> BoxFuture<'a, ()> {
        match &listen.traffic {
            Traffic::Http { service } => {
                tcp::limit_silence(stream.socket(), self.limits.head);
                let origin = Origin::new(ends.source, service.clone(), place)
                    .over_tls(listen.tls)
                    .connecting(listen.connect);
                self.serve(stream, origin).boxed()
            }
            Traffic::Tcp { service, send_proxy } => {
                let send_proxy = send_proxy.map(|version| (version, ends));
                tcp::serve(&self.forwarder, stream, service, send_proxy).boxed()
            }
            // Has begun already: the socket itself knows where it was meant to go.
            Traffic::Captured { .. } => ready(()).boxed(),
        }
    }

    /// Serves HTTP, and whatever a connection goes on with.
    fn serve<L: Link>(&self, stream: L, origin: Origin) -> impl Future<Output = ()> + Send {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let halves = stream.halves();
        // An `async fn` keeps room for what it is given twice.
        async move {
            let ended = {
                let answering = Answering::new(&self.forwarder, &origin);
                let served = pin!(lean::serve(halves, self.limits.head, &self.stopping, &answering));
                self.unless_cut_off(served).await
            };
            let Some(ended) = ended else { return count(&metrics.cut) };
            match ended {
                Ended::Done => {}
                Ended::Broken(error) => {
                    count(&metrics.broken);
                    tracing::debug!(error = &error as &dyn Error, %caller, "a connection ended early");
                }
                Ended::Http2(left) => {
                    let Some((stream, read)) = whole::<L>(left) else { return };
                    self.http2(stream, read, origin).boxed().await;
                }
                Ended::Switched(left, begins) => {
                    let Some((stream, read)) = whole::<L>(left) else { return };
                    begins.begin(Rewound::new(read, stream));
                }
            }
        }
    }

    /// What comes of serving a connection, unless the deadline of a stop comes first.
    async fn unless_cut_off<T>(&self, mut served: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        let mut cut_off = pin!(self.cut_off());
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
}
