//! Serves admin pages.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use fairmesh_listen::{GuardedStream, Limits, Listeners, PageListener, Securing, table::ListenerInfo};
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

/// Time limit of requests in flight at a stop, and of the last push: neither a slow reader nor a slow collector delays the end of a process.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The address of the admin pages cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process has it.
    #[error(
        "admin pages: another process already listens on {0}; stop it, or choose another address with --admin"
    )]
    InUse(SocketAddr),
    /// The system refuses it.
    #[error(
        "admin pages: cannot listen on {address}: {source}; choose an address of this machine and a port open to this user with \
         --admin"
    )]
    Refused {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
}

/// Accepts the connections of admin pages.
#[derive(Debug)]
pub struct AdminListener(PageListener);

impl AdminListener {
    /// Listens on `address`, as the row `info` of the table of listeners.
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

    /// The same where there may be no address.
    ///
    /// # Errors
    /// As [`AdminListener::bind`].
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

    /// Accepts from a bound listener.
    pub fn of(bound: TcpListener, listeners: &Listeners, info: &'static ListenerInfo) -> Self {
        Self::refusing_probes(PageListener::new(bound, listeners.acceptor(info, Limits::pages())))
    }

    /// A verdict of a health check never carries the content of these pages.
    fn refusing_probes(listener: PageListener) -> Self {
        Self(listener.refusing(Probe::USER_AGENT))
    }

    /// The listening address.
    ///
    /// # Errors
    /// When the system does not report it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves the pages in plaintext, in a task.
    pub fn start(self, pages: ProcessRouter) -> AdminServer {
        let stopping = CancellationToken::new();
        let ProcessRouter { routes, push } = pages;
        let served = tokio::spawn(self.0.serve(routes, stopping.clone()));
        AdminServer { served, stopping, push }
    }

    /// Serves the pages over connections that `secure` establishes, until `stopping`, and lets requests in flight finish for at
    /// most `drain`.
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
        let ProcessRouter { routes, push } = pages;
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

/// Admin pages that are served until they are stopped.
#[derive(Debug)]
pub struct AdminServer {
    served: JoinHandle<()>,
    stopping: CancellationToken,
    push: Option<Arc<MetricsExporter>>,
}

impl AdminServer {
    /// Stops, and pushes the last values of metrics to a collector. Each may take a second.
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
