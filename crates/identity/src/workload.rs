use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_model::{Revocations, SpiffeId};
use fairmesh_wire::transport::{ExpectedPeer, Handshake, NoIdentity, TlsIdentity};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use crate::{
    Clock, Credentials, IdentityError, RevocationList, SystemClock, Usage,
    connections::Connections,
    tls_config::{self, Expected},
    tls_stream::TlsStream,
};

/// Upper bound of the services whose sessions can be resumed. With more, all begin anew.
const MAX_EXPECTED: usize = 1024;

/// The identity of a process, which may come later and changes with each renewal.
pub struct Workload {
    clock: Arc<dyn Clock>,
    held: RwLock<Option<Arc<Held>>>,
    ready: watch::Sender<bool>,
    connections: Arc<Connections>,
    /// How often the record of revocations was read.
    revoked: watch::Sender<u64>,
}

/// One certificate, and configurations with it.
struct Held {
    credentials: Arc<Credentials>,
    server: Arc<ServerConfig>,
    /// For clients without a certificate too, which join.
    joining_server: Arc<ServerConfig>,
    clients: Mutex<HashMap<Expected, Arc<ClientConfig>>>,
}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Default for Workload {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl Workload {
    /// Without a certificate yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            held: RwLock::default(),
            ready: watch::Sender::new(false),
            connections: Arc::default(),
            revoked: watch::Sender::new(0),
        }
    }

    /// Replaces the certificate, for connections from now on.
    ///
    /// # Errors
    /// When it cannot be used; the one before remains.
    pub fn install(&self, mut credentials: Credentials) -> Result<(), IdentityError> {
        credentials.trust.revocations = self.connections.revocations.clone();
        let server = tls_config::server(&credentials, &self.clock, false)?;
        let joining_server = tls_config::server(&credentials, &self.clock, true)?;
        let credentials = Arc::new(credentials);
        let held = Held { credentials, server, joining_server, clients: Mutex::default() };
        *self.held.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(held));
        self.ready.send_replace(true);
        Ok(())
    }

    /// Trusts these roots from now on, and no others. False if they are trusted already, or there is no certificate.
    ///
    /// # Errors
    /// When peers with these roots would refuse the certificate of this process; the ones before remain.
    pub(crate) fn trust_roots(&self, roots: &[Vec<u8>]) -> Result<bool, IdentityError> {
        let Some(own) = self.credentials().filter(|own| own.trust.bundle().roots != roots) else {
            return Ok(false);
        };
        let renewed = own.with_roots(roots, self.now())?;
        // A certificate that was installed meanwhile brought its own roots.
        if !self.credentials().is_some_and(|current| Arc::ptr_eq(&current, &own)) {
            return Ok(false);
        }
        self.install(renewed).map(|()| true)
    }

    /// Replaces the revocations: peers with such a certificate are refused, and their open connections end.
    pub fn revoke(&self, revocations: Revocations) {
        self.connections.revoke(revocations);
        self.note_revocations();
    }

    /// The revocations, as they are at each time.
    pub fn revocations(&self) -> &RevocationList {
        &self.connections.revocations
    }

    /// The record of revocations was read.
    pub(crate) fn note_revocations(&self) {
        self.revoked.send_modify(|reads| *reads += 1);
    }

    /// Waits until the record of revocations was read once.
    pub(crate) async fn revocations_known(&self) {
        // The sender lives as long as this borrow.
        let _ = self.revoked.subscribe().wait_for(|reads| *reads > 0).await;
    }

    /// Changes when the record of revocations is read.
    pub(crate) fn revocation_changes(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }

    /// Whether the certificate of this process itself is revoked.
    pub fn is_revoked(&self) -> bool {
        self.held()
            .is_some_and(|held| self.revocations().check(&held.credentials.chain[0], Usage::Client).is_err())
    }

    /// The identity; `None` before there is a certificate.
    pub fn id(&self) -> Option<SpiffeId> {
        self.held().map(|held| held.credentials.id().clone())
    }

    /// The certificate and its key.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.held().map(|held| Arc::clone(&held.credentials))
    }

    /// What certificates are verified by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Time since 1970.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether there is a certificate that peers accept.
    pub(crate) fn is_valid(&self) -> bool {
        self.held().is_some_and(|held| held.credentials.validity().1 > self.now())
    }

    /// Waits for the first certificate.
    pub async fn ready(&self) {
        // The sender lives as long as this borrow.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    fn held(&self) -> Option<Arc<Held>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn client(&self, peer: ExpectedPeer<'_>) -> io::Result<Arc<ClientConfig>> {
        let held = self.held().ok_or_else(no_identity)?;
        let mut clients = held.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = Expected::from(peer);
        if let Some(config) = clients.get(&expected) {
            return Ok(Arc::clone(config));
        }
        if clients.len() >= MAX_EXPECTED {
            clients.clear();
        }
        let config =
            tls_config::client(&held.credentials, expected.clone(), &self.clock).map_err(io::Error::other)?;
        clients.insert(expected, Arc::clone(&config));
        Ok(config)
    }
}

impl Workload {
    fn accept_with(&self, config: Option<Arc<ServerConfig>>, stream: TcpStream) -> Handshake {
        let (connections, clock) = (Arc::clone(&self.connections), Arc::clone(&self.clock));
        Box::pin(async move {
            let stream = TlsStream::accept(config.ok_or_else(no_identity)?, stream).await?;
            Ok(Box::new(stream.within(&connections, clock.now())?) as Box<_>)
        })
    }
}

fn no_identity() -> io::Error {
    io::Error::other(NoIdentity)
}

impl TlsIdentity for Workload {
    fn is_ready(&self) -> bool {
        self.held().is_some()
    }

    fn id(&self) -> Option<SpiffeId> {
        Workload::id(self)
    }

    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(Workload::revocation_changes(self))
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        let config = self.client(peer);
        let (connections, clock) = (Arc::clone(&self.connections), Arc::clone(&self.clock));
        Box::pin(async move {
            let stream = TlsStream::connect(config?, stream).await?;
            Ok(Box::new(stream.within(&connections, clock.now())?) as Box<_>)
        })
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.accept_with(self.held().map(|held| Arc::clone(&held.server)), stream)
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.accept_with(self.held().map(|held| Arc::clone(&held.joining_server)), stream)
    }
}
