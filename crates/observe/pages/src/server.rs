//! Serves admin pages.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_listen::{
    GuardedStream, Limits, Listeners, PageListener, Securing, listener_table::ListenerInfo,
};
use fairmesh_model::Probe;
use fairmesh_otlp::MetricsExporter;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::ProcessRouter;

/// Time limit for requests in flight and for the last push when the process stops. Neither a slow client nor a slow
/// collector may delay the stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The process cannot listen on the address of its admin pages.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens on the address.
    #[error(
        "admin pages: another process already listens on {0}; stop it, or choose another address with --admin"
    )]
    InUse(SocketAddr),
    /// The operating system refused the address.
    #[error(
        "admin pages: cannot listen on {address}: {source}; choose an address of this machine and a port open to this user with \
         --admin"
    )]
    Refused {
        /// The address.
        address: SocketAddr,
        /// Error from the operating system.
        source: io::Error,
    },
}

/// Listener for the admin pages.
#[derive(Debug)]
pub struct AdminListener(PageListener);

impl AdminListener {
    /// Listens on `address`, as the row `info` in the table of listeners.
    ///
    /// # Errors
    /// [`BindError`] with the address and a remedy.
    pub async fn bind(
        address: SocketAddr,
        listeners: &Listeners,
        info: &'static ListenerInfo,
    ) -> Result<Self, BindError> {
        let acceptor = listeners.acceptor(info, Limits::pages());
        let bound = PageListener::bind(address, acceptor).await.map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse(address),
            _ => BindError::Refused { address, source },
        })?;
        Ok(Self::refusing_probes(bound))
    }

    /// Like [`AdminListener::bind`], but returns `None` if there is no address.
    ///
    /// # Errors
    /// As for [`AdminListener::bind`].
    pub async fn bind_optional(
        address: Option<SocketAddr>,
        listeners: &Listeners,
        info: &'static ListenerInfo,
    ) -> Result<Option<Self>, BindError> {
        match address {
            Some(address) => Self::bind(address, listeners, info).await.map(Some),
            None => Ok(None),
        }
    }

    /// Creates a listener from a bound TCP listener.
    pub fn of(bound: TcpListener, listeners: &Listeners, info: &'static ListenerInfo) -> Self {
        Self::refusing_probes(PageListener::new(bound, listeners.acceptor(info, Limits::pages())))
    }

    /// Refuses requests of health checks, so that no verdict can reveal the content of these pages.
    fn refusing_probes(listener: PageListener) -> Self {
        Self(listener.refusing(Probe::USER_AGENT))
    }

    /// The listening address.
    ///
    /// # Errors
    /// When the operating system does not report the address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves the pages in plaintext, in a separate task.
    pub fn start(self, pages: ProcessRouter) -> AdminServer {
        let stopping = CancellationToken::new();
        let (routes, push) = pages.guarded();
        let served = tokio::spawn(self.0.serve(routes, stopping.clone()));
        AdminServer { served, stopping, push }
    }

    /// Serves the pages over connections that `secure` establishes, until `stopping`. Afterwards, requests in flight
    /// may take at most `drain`.
    pub async fn serve_secured<T, F>(
        self,
        pages: ProcessRouter,
        secure: F,
        stopping: CancellationToken,
        drain: Duration,
    ) where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Fn(GuardedStream<TcpStream>) -> Securing<T>,
    {
        let (routes, push) = pages.guarded();
        let overdue = async {
            stopping.cancelled().await;
            sleep(drain).await;
        };
        tokio::select! {
            () = self.0.serve_secured(routes, secure, stopping.clone()) => {}
            () = overdue => {}
        }
        if let Some(push) = push {
            push.stop(Instant::now() + STOP_TIMEOUT).await;
        }
    }
}

/// Running admin pages.
#[derive(Debug)]
pub struct AdminServer {
    served: JoinHandle<()>,
    stopping: CancellationToken,
    push: Option<Arc<MetricsExporter>>,
}

impl AdminServer {
    /// Stops serving, and pushes the last values of metrics to the collector. Each of the two may take a second.
    pub async fn stop(mut self) {
        self.stopping.cancel();
        // The runtime has reported a panic of the task.
        let _ = timeout(STOP_TIMEOUT, &mut self.served).await;
        self.served.abort();
        if let Some(push) = self.push {
            push.stop(Instant::now() + STOP_TIMEOUT).await;
        }
    }
}
