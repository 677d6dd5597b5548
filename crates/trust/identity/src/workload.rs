use std::{
    collections::{BTreeSet, HashMap},
    fmt, io,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use fairmesh_model::{FederatedDomains, Revocations, SpiffeId, TrustBundle};
use fairmesh_wire::transport::{
    ExpectedPeer, FederatedCallers, Handshake, NoIdentity, StatedCall, TlsIdentity,
};
use tokio::{net::TcpStream, sync::watch};
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

use crate::{
    Clock, Credentials, IdentityError, RevocationList, SystemClock, call_statement,
    chain_verification::RootDigest,
    federation::Federation,
    tls_config::{self, AcceptedClients, Expected},
    tls_stream::TlsStream,
    tracked_connections::Connections,
};

/// Maximum number of services with resumable sessions. Beyond it, all sessions start with a full handshake.
const MAX_EXPECTED: usize = 1024;

/// Maximum number of server configurations, one for each set of callers from federated trust domains. Beyond it, all
/// sessions start with a full handshake.
const MAX_CALLER_SETS: usize = 16;

/// The identity of a process. It may be empty at first, and each renewal replaces it.
pub struct Workload {
    clock: Arc<dyn Clock>,
    installed: RwLock<Option<Arc<InstalledIdentity>>>,
    ready: watch::Sender<bool>,
    connections: Arc<Connections>,
    /// Number of times that the record of revocations was read.
    revoked: watch::Sender<u64>,
    /// Number of changes to the record of roots.
    roots: watch::Sender<u64>,
    /// Number of changes to the recorded keys for JWT-SVIDs.
    jwt_keys: watch::Sender<u64>,
}

/// A certificate, and the TLS configurations that use it.
struct InstalledIdentity {
    credentials: Arc<Credentials>,
    server: Arc<ServerConfig>,
    /// Also accepts clients without a certificate, which join here.
    joining_server: Arc<ServerConfig>,
    /// Also accept the given clients of federated trust domains. Rebuilt when roots change, because their sessions
    /// can be resumed.
    federated_servers: Mutex<Vec<FederatedServer>>,
    clients: Mutex<HashMap<Expected, Arc<ClientConfig>>>,
}

/// Accepted clients of federated trust domains, and the server configuration for them.
type FederatedServer = (Arc<BTreeSet<SpiffeId>>, Arc<ServerConfig>);

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
    /// Creates a workload without a certificate.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            installed: RwLock::default(),
            ready: watch::Sender::new(false),
            connections: Arc::default(),
            revoked: watch::Sender::new(0),
            roots: watch::Sender::new(0),
            jwt_keys: watch::Sender::new(0),
        }
    }

    /// Replaces the certificate for new connections.
    ///
    /// # Errors
    /// When the certificate cannot be used; the previous one stays in use.
    pub fn install(&self, mut credentials: Credentials) -> Result<(), IdentityError> {
        credentials.trust.revocations = self.connections.revocations.clone();
        let server = |clients| tls_config::server(&credentials, &self.clock, clients);
        let (joining_server, server) =
            (server(AcceptedClients::DomainAndJoining)?, server(AcceptedClients::Domain)?);
        let (federated_servers, clients) = (Mutex::default(), Mutex::default());
        let credentials = Arc::new(credentials);
        let installed = InstalledIdentity { credentials, server, joining_server, federated_servers, clients };
        *self.installed.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(installed));
        self.ready.send_replace(true);
        Ok(())
    }

    /// Trusts only these roots from now on. Returns false if nothing changed or there is no certificate.
    ///
    /// # Errors
    /// When peers with these roots would refuse this process's certificate; the previous roots stay in use.
    pub fn trust_roots(&self, roots: &[Vec<u8>]) -> Result<bool, IdentityError> {
        let Some(own) = self.credentials().filter(|own| own.trust.bundle().roots != roots) else {
            return Ok(false);
        };
        let renewed = own.with_roots(roots, self.now())?;
        // A concurrent renewal installed other roots.
        if !self.credentials().is_some_and(|current| Arc::ptr_eq(&current, &own)) {
            return Ok(false);
        }
        self.install(renewed).map(|()| true)
    }

    /// Replaces the revocations. Revoked peers are refused from now on, and their open connections end.
    pub fn revoke(&self, revocations: Revocations) {
        self.connections.revoke(revocations);
        self.note_revocations();
    }

    /// Notes that the record of revocations cannot be read. The last revocations stay in force. Where none were ever
    /// read, any peer may be revoked: all but control planes, replicas and agents, which pass the record on, are
    /// refused, and their connections end. Returns whether that is so.
    pub fn revocations_unreadable(&self) -> bool {
        let is_closed = self.connections.set_unreadable();
        self.note_revocations();
        is_closed
    }

    /// Replaces the federated trust domains. Connections of peers whose domain or root was removed end.
    pub fn federate(&self, domains: FederatedDomains) {
        if self.connections.federate(domains)
            && let Some(installed) = self.installed()
        {
            installed.forget_foreign_sessions();
        }
    }

    /// Returns the list of revocations, which also reflects later changes.
    pub fn revocations(&self) -> &RevocationList {
        &self.connections.revocations
    }

    /// Counts a read of the record of revocations.
    pub(crate) fn note_revocations(&self) {
        self.revoked.send_modify(|reads| *reads += 1);
    }

    /// Counts a change of the record of roots.
    pub(crate) fn note_roots(&self) {
        self.roots.send_modify(|changes| *changes += 1);
    }

    /// Counts a change of the recorded keys for JWT-SVIDs.
    pub(crate) fn note_jwt_keys(&self) {
        self.jwt_keys.send_modify(|changes| *changes += 1);
    }

    /// Returns a receiver that is notified when the recorded keys for JWT-SVIDs change, if the record is followed. As
    /// with [roots](Self::root_changes), the keys themselves come from a control plane.
    pub fn jwt_key_changes(&self) -> watch::Receiver<u64> {
        self.jwt_keys.subscribe()
    }

    /// Returns the bundles of the federated trust domains. [`revocation_changes`](Self::revocation_changes) notifies of
    /// their changes too.
    pub fn federated_bundles(&self) -> Vec<TrustBundle> {
        self.connections.federation.bundles()
    }

    /// Records the roots of peers on new connections from now on.
    pub fn note_roots_of_peers(&self) {
        self.connections.note_roots();
    }

    /// Returns the connected peers with an unexpired certificate under a root, if [roots are
    /// recorded](Self::note_roots_of_peers).
    ///
    /// # Errors
    /// When the root is not a certificate.
    pub fn peers_beneath(&self, root: &[u8]) -> Result<BTreeSet<SpiffeId>, IdentityError> {
        Ok(self.connections.peers_beneath(&RootDigest::of_certificate(root)?, self.now()))
    }

    /// Returns a receiver that is notified when the record of roots changes, if the record is followed. The record
    /// itself is not trusted: a control plane must sign the roots.
    pub fn root_changes(&self) -> watch::Receiver<u64> {
        self.roots.subscribe()
    }

    /// Waits until the record of revocations was read at least once.
    pub(crate) async fn revocations_known(&self) {
        // The sender lives as long as this borrow.
        let _ = self.revoked.subscribe().wait_for(|reads| *reads > 0).await;
    }

    /// Returns a receiver that is notified each time the record of revocations was read.
    pub fn revocation_changes(&self) -> watch::Receiver<u64> {
        self.revoked.subscribe()
    }

    /// Whether this process's own certificate is revoked.
    pub fn is_revoked(&self) -> bool {
        self.installed().is_some_and(|installed| self.revocations().revokes(&installed.credentials))
    }

    /// Returns the identity; `None` until there is a certificate.
    pub fn id(&self) -> Option<SpiffeId> {
        self.installed().map(|installed| installed.credentials.id().clone())
    }

    /// Returns the certificate and its key; `None` until there is a certificate.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        self.installed().map(|installed| Arc::clone(&installed.credentials))
    }

    /// Returns the clock with which certificates are verified.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Signs a statement of a call.
    pub(crate) fn state_call(&self, call: StatedCall<'_>) -> Option<Vec<u8>> {
        let own = self.credentials()?;
        // Without a statement, the call counts as a call of the process that forwards it.
        call_statement::state(&own, call, self.now())
            .inspect_err(|error| tracing::warn!(%error, "a call was not signed"))
            .ok()
    }

    /// Returns the time since 1970.
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Whether there is a certificate that peers accept.
    pub(crate) fn is_valid(&self) -> bool {
        self.installed().is_some_and(|installed| installed.credentials.validity().1 > self.now())
    }

    /// Returns a receiver that is notified when a certificate is installed or the trusted roots change.
    pub fn installations(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Waits for the first certificate.
    pub async fn ready(&self) {
        // The sender lives as long as this borrow.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    fn installed(&self) -> Option<Arc<InstalledIdentity>> {
        self.installed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn client(&self, peer: ExpectedPeer<'_>) -> io::Result<(Arc<ClientConfig>, Arc<Credentials>)> {
        let installed = self.installed().ok_or_else(no_identity)?;
        let own = Arc::clone(&installed.credentials);
        let mut clients = installed.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let expected = Expected::from(peer);
        if let Some(config) = clients.get(&expected) {
            return Ok((Arc::clone(config), own));
        }
        if clients.len() >= MAX_EXPECTED {
            clients.clear();
        }
        let config = tls_config::client(
            &installed.credentials,
            expected.clone(),
            (&self.clock, &self.connections.federation),
        )
        .map_err(io::Error::other)?;
        clients.insert(expected, Arc::clone(&config));
        Ok((config, own))
    }
}

impl Workload {
    fn accept_with(
        &self,
        config: impl FnOnce(&InstalledIdentity) -> Arc<ServerConfig>,
        stream: TcpStream,
        federated: Option<Arc<FederatedCallers>>,
    ) -> Handshake {
        let config = self.installed().map(|installed| config(&installed));
        self.accept_over(config, stream, federated)
    }

    /// Performs the handshake as a server with a given configuration, possibly with another certificate than this
    /// identity's.
    pub(crate) fn accept_over(
        &self,
        config: Option<Arc<ServerConfig>>,
        stream: TcpStream,
        federated: Option<Arc<FederatedCallers>>,
    ) -> Handshake {
        let (connections, clock) = (Arc::clone(&self.connections), Arc::clone(&self.clock));
        let config = config.zip(self.credentials());
        Box::pin(async move {
            let (config, own) = config.ok_or_else(no_identity)?;
            let stream = TlsStream::accept(config, stream).await?;
            let accepts = |id: &SpiffeId| federated.is_some_and(|callers| callers.accepts(id));
            let stream = stream.within(&connections, (own.trust(), clock.now()), accepts)?;
            Ok(Box::new(stream) as Box<_>)
        })
    }
}

fn no_identity() -> io::Error {
    io::Error::other(NoIdentity)
}

impl InstalledIdentity {
    /// Returns the server configuration for a set of callers from federated trust domains. A process has few such
    /// sets.
    fn federated_server(
        &self,
        (federation, callers): (&Federation, &FederatedCallers),
        clock: &Arc<dyn Clock>,
    ) -> Result<Arc<ServerConfig>, IdentityError> {
        let named = callers.current();
        let mut servers = self.federated_servers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, config)) = servers.iter().find(|(of, _)| Arc::ptr_eq(of, &named) || *of == named) {
            return Ok(Arc::clone(config));
        }
        if servers.len() >= MAX_CALLER_SETS {
            servers.clear();
        }
        let config = tls_config::server(
            &self.credentials,
            clock,
            AcceptedClients::DomainAndFederated(federation, &named),
        )?;
        servers.push((named, Arc::clone(&config)));
        Ok(config)
    }

    /// Makes all foreign sessions start with a full handshake. A resumed session of a peer whose old root was removed
    /// would be refused, even if the peer has a new certificate meanwhile.
    fn forget_foreign_sessions(&self) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|expected, _| !matches!(expected, Expected::Id(_)));
        self.federated_servers.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl TlsIdentity for Workload {
    fn is_ready(&self) -> bool {
        self.installed().is_some()
    }

    fn id(&self) -> Option<SpiffeId> {
        Workload::id(self)
    }

    fn verify_call(&self, statement: &[u8], call: StatedCall<'_>) -> Result<SpiffeId, String> {
        let own = self.credentials().ok_or_else(|| NoIdentity.to_string())?;
        call_statement::verify(own.trust(), statement, call, self.now())
            .map_err(|refused| refused.to_string())
    }

    fn revocation_changes(&self) -> Option<watch::Receiver<u64>> {
        Some(Workload::revocation_changes(self))
    }

    fn connect(&self, peer: ExpectedPeer<'_>, stream: TcpStream) -> Handshake {
        let config = self.client(peer);
        let is_named = matches!(peer, ExpectedPeer::Id(_));
        let is_host = matches!(peer, ExpectedPeer::Host(_));
        let (connections, clock) = (Arc::clone(&self.connections), Arc::clone(&self.clock));
        Box::pin(async move {
            let (config, own) = config?;
            let stream = TlsStream::connect(config, stream).await?;
            if is_host {
                // Revocations name identities, which such a certificate has not.
                return Ok(Box::new(stream) as Box<_>);
            }
            // The handshake, or that of the resumed session, verified the expected server.
            let stream = stream.within(&connections, (own.trust(), clock.now()), |_| is_named)?;
            Ok(Box::new(stream) as Box<_>)
        })
    }

    fn accept(&self, stream: TcpStream) -> Handshake {
        self.accept_with(|installed| Arc::clone(&installed.server), stream, None)
    }

    fn accept_federated(&self, stream: TcpStream, callers: &Arc<FederatedCallers>) -> Handshake {
        let made = self.installed().map(|installed| {
            installed.federated_server((&self.connections.federation, callers), &self.clock)
        });
        match made.transpose() {
            Ok(config) => self.accept_over(config, stream, Some(Arc::clone(callers))),
            Err(error) => Box::pin(std::future::ready(Err(io::Error::other(error)))),
        }
    }

    fn accept_joining(&self, stream: TcpStream) -> Handshake {
        self.accept_with(|installed| Arc::clone(&installed.joining_server), stream, None)
    }
}
