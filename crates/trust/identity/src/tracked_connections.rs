//! The open connections of a process, and the revocations that end them.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
    time::Duration,
};

use fairmesh_model::{FederatedDomains, MeshRole, Revocations, SpiffeId, SpiffePath, TrustDomain};
use futures_util::task::AtomicWaker;
use tokio_rustls::rustls::pki_types::CertificateDer;

use crate::{
    CLOCK_SKEW, Credentials, Refused, Trust, Usage,
    chain_verification::{self, RootDigest},
    federation::Federation,
};

/// The revocations that a process knows. Shared by all parts of the process that verify certificates.
#[derive(Clone, Debug, Default)]
pub struct RevocationList(Arc<RwLock<KnownRevocations>>);

/// The last record of revocations.
#[derive(Clone, Debug, Default)]
enum KnownRevocations {
    /// No record was received yet.
    #[default]
    None,
    /// A record exists, and none was understood since the start. Peers are refused, since any of them may be revoked,
    /// except for [those that pass the record on](passes_records_on).
    Unreadable,
    Some(Arc<Revocations>),
}

/// The fields of a certificate that decide whether it is revoked.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFacts {
    id: SpiffeId,
    /// Whether the certificate belongs to another trust domain than this process.
    is_foreign: bool,
    serial: Vec<u8>,
    /// Time at which the certificate was issued, in seconds since 1970.
    issued: u64,
    /// Time since 1970 at which the certificate expires.
    expires: Duration,
    /// Root of the certificate. Recorded for peers of other trust domains, and for all peers if `notes_roots` is set.
    root: Option<RootDigest>,
}

/// The open connections whose peers sent a certificate.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    pub(crate) revocations: RevocationList,
    pub(crate) federation: Federation,
    /// Whether the roots of peers of this trust domain are recorded.
    notes_roots: AtomicBool,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next: u64,
    by_number: HashMap<u64, Arc<OpenConnection>>,
}

/// A connection that another task can end.
#[derive(Debug)]
struct OpenConnection {
    peer: CertificateFacts,
    is_revoked: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

/// Lists a connection as open until dropped.
#[derive(Debug)]
pub(crate) struct TrackedConnection {
    open: Arc<OpenConnection>,
    number: u64,
    connections: Arc<Connections>,
}

/// The half of a connection that is waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamHalf {
    Read,
    Write,
}

impl RevocationList {
    /// Returns the current revocations.
    pub fn current(&self) -> Arc<Revocations> {
        match self.known() {
            KnownRevocations::Some(revocations) => revocations,
            KnownRevocations::None | KnownRevocations::Unreadable => Arc::default(),
        }
    }

    fn known(&self) -> KnownRevocations {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set(&self, revocations: Revocations) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) =
            KnownRevocations::Some(Arc::new(revocations));
    }

    /// Notes that the record cannot be read. Earlier revocations stay in force. Returns whether there are none.
    pub(crate) fn set_unreadable(&self) -> bool {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*known, KnownRevocations::None) {
            *known = KnownRevocations::Unreadable;
        }
        matches!(*known, KnownRevocations::Unreadable)
    }

    /// Whether peers refuse this certificate as revoked.
    pub fn revokes(&self, credentials: &Credentials) -> bool {
        let known = KnownRevocations::Some(self.current());
        known.check(&credentials.chain[0], Usage::Client).is_err()
    }

    /// Checks that the certificate of a peer is not revoked.
    pub(crate) fn check(&self, certificate: &CertificateDer<'_>, usage: Usage) -> Result<(), Refused> {
        self.known().check(certificate, usage)
    }

    /// Checks that a token of an identity of this trust domain is not revoked, given its time of issue in seconds since
    /// 1970. Tokens have no serial number.
    ///
    /// # Errors
    /// When the token is revoked, or may be because the record of revocations cannot be read.
    pub fn check_token(&self, path: &SpiffePath, issued: u64) -> Result<(), Refused> {
        self.known().check_issued(path, &[], issued)
    }
}

impl KnownRevocations {
    fn check(&self, certificate: &CertificateDer<'_>, usage: Usage) -> Result<(), Refused> {
        match self {
            // If there are no revocations, the certificate need not be parsed.
            Self::None => Ok(()),
            Self::Some(revocations) if revocations.entries.is_empty() => Ok(()),
            _ => CertificateFacts::of(certificate, usage)?.check(self),
        }
    }

    /// Checks what was issued to an identity of this trust domain.
    fn check_issued(&self, path: &SpiffePath, serial: &[u8], issued: u64) -> Result<(), Refused> {
        match self {
            Self::Some(all) if all.revokes(path, serial, issued) => Err(Refused::Revoked(path.clone())),
            Self::Unreadable if !passes_records_on(path) => Err(Refused::RevocationsUnreadable(path.clone())),
            _ => Ok(()),
        }
    }
}

impl CertificateFacts {
    /// Reads the facts of a certificate of this trust domain.
    pub(crate) fn of(certificate: &CertificateDer<'_>, usage: Usage) -> Result<Self, Refused> {
        let (issued, expires) = chain_verification::validity(certificate)?;
        Ok(Self {
            id: chain_verification::id_of(certificate, usage)?,
            is_foreign: false,
            serial: chain_verification::serial(certificate)?,
            issued: issued.as_secs(),
            expires,
            root: None,
        })
    }

    /// Marks the certificate as foreign if its trust domain is not `domain`.
    pub(crate) fn at(self, domain: &TrustDomain) -> Self {
        Self { is_foreign: self.id.domain != *domain, ..self }
    }

    pub(crate) fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Refuses a foreign certificate unless `accepts` returns true for its id.
    pub(crate) fn check_named(self, accepts: impl FnOnce(&SpiffeId) -> bool) -> Result<Self, Refused> {
        if self.is_foreign && !accepts(&self.id) { Err(Refused::NotNamed(self.id)) } else { Ok(self) }
    }

    /// Verifies a foreign chain with the current roots of its domain. The handshake may have used roots that have
    /// been removed since, and a resumed session verified nothing.
    pub(crate) fn check_root(
        self,
        federation: &Federation,
        (chain, usage, now): (&[CertificateDer<'_>], Usage, Duration),
    ) -> Result<Self, Refused> {
        if !self.is_foreign {
            return Ok(self);
        }
        let domain = &self.id.domain;
        let trust = federation.find(domain).ok_or_else(|| Refused::NotFederated(domain.clone()))?;
        let (_, root) = trust.verify_to_root(chain, usage, now)?;
        Ok(Self { root: Some(root), ..self })
    }

    /// Records the root of a peer of this trust domain, so that operators can see which roots are in use. Chains are
    /// verified a second time for this purpose.
    pub(crate) fn note_root(
        self,
        connections: &Connections,
        (own, chain): (&Trust, &[CertificateDer<'_>]),
        (usage, now): (Usage, Duration),
    ) -> Self {
        if self.is_foreign || !connections.notes_roots.load(Ordering::Relaxed) {
            return self;
        }
        Self { root: own.verify_to_root(chain, usage, now).ok().map(|(_, root)| root), ..self }
    }

    /// Refuses a certificate that has expired. A session may be resumed after its certificate expired.
    pub(crate) fn check_time(self, now: Duration) -> Result<Self, Refused> {
        if self.expires + CLOCK_SKEW < now { Err(Refused::Expired) } else { Ok(self) }
    }

    fn check(&self, revocations: &KnownRevocations) -> Result<(), Refused> {
        // Revocations name ids of this domain; another domain may use the same names.
        match self.is_foreign {
            true => Ok(()),
            false => revocations.check_issued(&self.id.path, &self.serial, self.issued),
        }
    }

    fn check_all(&self, revocations: &KnownRevocations, federation: &Federation) -> Result<(), Refused> {
        if self.is_foreign {
            federation.check(&self.id.domain, self.root.as_ref())?;
        }
        self.check(revocations)
    }
}

/// Whether a peer is a process through which records reach others: a readable record could not arrive without it.
fn passes_records_on(path: &SpiffePath) -> bool {
    match path {
        SpiffePath::Service(_) => false,
        SpiffePath::Mesh(role, _) => match role {
            MeshRole::Agent | MeshRole::Control | MeshRole::Replica => true,
            MeshRole::Proxy | MeshRole::KeyServer | MeshRole::Gateway | MeshRole::Operator => false,
        },
    }
}

impl Connections {
    /// Ends the connections of revoked peers, and refuses these peers from now on.
    pub(crate) fn revoke(&self, revocations: Revocations) {
        self.revocations.set(revocations);
        self.end_refused();
    }

    /// Notes that the record of revocations cannot be read. If no earlier one is known, all peers but those that pass
    /// the record on are refused, and their connections end. Returns whether that is so.
    pub(crate) fn set_unreadable(&self) -> bool {
        let is_closed = self.revocations.set_unreadable();
        if is_closed {
            self.end_refused();
        }
        is_closed
    }

    /// Ends the connections of peers whose domain is no longer federated or whose root was removed, and refuses these
    /// peers from now on. Returns whether domains or roots changed.
    pub(crate) fn federate(&self, domains: FederatedDomains) -> bool {
        let changed = self.federation.set(domains);
        self.end_refused();
        changed
    }

    /// Records the roots of peers on new connections from now on.
    pub(crate) fn note_roots(&self) {
        self.notes_roots.store(true, Ordering::Relaxed);
    }

    /// Returns the connected peers of this trust domain with an unexpired certificate under a root, if roots are
    /// recorded.
    pub(crate) fn peers_beneath(&self, root: &RootDigest, now: Duration) -> BTreeSet<SpiffeId> {
        let open = self.open();
        let beneath = open.by_number.values().map(|open| &open.peer).filter(|peer| {
            !peer.is_foreign && peer.root.as_ref() == Some(root) && peer.expires + CLOCK_SKEW >= now
        });
        beneath.map(|peer| peer.id.clone()).collect()
    }

    fn end_refused(&self) {
        let revocations = self.revocations.known();
        let mut ended = 0_usize;
        for open in self.open().by_number.values() {
            let is_refused = open.peer.check_all(&revocations, &self.federation).is_err();
            if is_refused && !open.is_revoked.swap(true, Ordering::AcqRel) {
                open.reader.wake();
                open.writer.wake();
                ended += 1;
            }
        }
        if ended > 0 {
            tracing::warn!(
                connections = ended,
                "connections were closed: their peers are revoked or may be, or no root of a federated trust domain vouches for them"
            );
        }
    }

    /// Adds a connection after its handshake. The handshake of a resumed session verified nothing, so the peer is
    /// checked here.
    pub(crate) fn track(self: &Arc<Self>, peer: CertificateFacts) -> Result<TrackedConnection, Refused> {
        let (reader, writer) = (AtomicWaker::new(), AtomicWaker::new());
        let open = Arc::new(OpenConnection { peer, is_revoked: AtomicBool::new(false), reader, writer });
        let mut all = self.open();
        let number = all.next;
        all.next += 1;
        all.by_number.insert(number, Arc::clone(&open));
        drop(all);
        let tracked = TrackedConnection { open, number, connections: Arc::clone(self) };
        // Checked after the insertion, so that a later revocation finds the connection.
        tracked.open.peer.check_all(&self.revocations.known(), &self.federation)?;
        Ok(tracked)
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrackedConnection {
    /// Returns an error if the peer is revoked.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.open.is_revoked.load(Ordering::Acquire) {
            false => Ok(()),
            true => {
                let peer = &self.open.peer;
                let CertificateFacts { id, .. } = peer;
                let Connections { revocations, federation, .. } = &*self.connections;
                let refused = peer.check_all(&revocations.known(), federation).err();
                // The peer was revoked when the connection was ended, but may have been restored since.
                let refused = refused.unwrap_or_else(|| Refused::Revoked(id.path.clone()));
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, refused))
            }
        }
    }

    /// Registers the task of a waiting half. A revocation of the peer wakes the task.
    pub(crate) fn wait(&self, half: StreamHalf, cx: &Context<'_>) -> io::Result<()> {
        match half {
            StreamHalf::Read => self.open.reader.register(cx.waker()),
            StreamHalf::Write => self.open.writer.register(cx.waker()),
        }
        self.check()
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        self.connections.open().by_number.remove(&self.number);
    }
}
