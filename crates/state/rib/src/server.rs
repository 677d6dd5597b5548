//! Serves `fairmesh.v1.Rib` and watches from a node, in control planes, replicas and agents.

mod decode_batch;
mod delta_cache;
mod messages;
mod outbox;
mod session;

pub(crate) use crate::followed_prefixes::{FollowedPrefix, WatchPrefixes};
pub use crate::{
    followed_prefixes::{FollowedPrefixes, MAX_FOLLOWED_BYTES, MAX_PREFIXES},
    terminated_watches::TerminatedWatches,
};
pub use messages::encoded_len;

use std::{future::Future, sync::Arc, time::Duration};

use decode_batch::decode_batch;
use delta_cache::DeltaCache;

use fairmesh_model::{Cursor, Identity, Invalid, Location, Prefix, Revision};
use fairmesh_wire::{
    grpc_stubs,
    handshake::{self, Hello},
    identity_of, record_encoding, run_blocking,
    transport::{Services, Socket, UserPlace, UserPlaces, Waits, WithoutCertificate},
    v1,
    watch::WatchServer,
};
use session::Session;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};

use crate::{
    Batch, Conflict, Node,
    access::{Caller, is_own_user},
};

/// The part of the RIB that a process serves. The methods differ between control plane, replica and agent.
pub trait ServedRib: Clone + Send + Sync + 'static {
    /// Returns the served node.
    fn node(&self) -> &Node;

    /// Returns the name of the server for the handshake, shown to operators, such as `control plane 0.1.0`.
    fn software(&self) -> String;

    /// Returns the location of the process. Agents send theirs to their callers.
    fn location(&self) -> Option<Location>;

    /// Writes a well-formed batch within all limits, and returns once it is durable.
    fn write(
        &self,
        batch: Batch,
        identity: Identity,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// Returns the caller of a watch: the identity authenticated by its connection, and the user of its token, if
    /// any. A token is accepted only if others cannot read the connection.
    ///
    /// # Errors
    /// The problem with the token or the connection.
    fn watcher(
        &self,
        identity: Identity,
        token: &str,
        _is_secret: bool,
    ) -> impl Future<Output = Result<Caller, Status>> + Send {
        std::future::ready(match token.is_empty() {
            true => Ok(identity.into()),
            false => Err(Status::unauthenticated(
                "only control planes take tokens of users: give the address of one, or send no token",
            )),
        })
    }

    /// Whether a caller may read and watch a prefix.
    ///
    /// # Errors
    /// The text of the refusal. It is the same whether or not records exist below the prefix.
    fn permits(&self, _caller: &Caller, _prefix: &Prefix) -> Result<(), String> {
        Ok(())
    }

    /// Returns a receiver that is notified when the result of [`ServedRib::permits`] may have changed; `None` if it
    /// never does.
    fn permission_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }

    /// Acquires a prefix for a caller that already holds `held` others. Each success must be followed by one
    /// [`ServedRib::release`].
    ///
    /// # Errors
    /// The limit that is exceeded, as a text for the caller.
    fn acquire(&self, _prefix: &Prefix, _held: usize) -> Result<(), String> {
        Ok(())
    }

    /// Number of acquired prefixes by local user; `None` if users are not limited. Without a limit, a user could open
    /// many watches, each with the share of one caller.
    fn acquired_by_users(&self) -> Option<&UserPlaces> {
        None
    }

    /// Waits until the node has an acquired prefix. Returns at once if the node has everything.
    ///
    /// # Errors
    /// Why the prefix cannot be served, as a text for the caller.
    fn ready(&self, _prefix: &Prefix) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether reads here may wait for a revision. A partial node never advances past changes to other parts.
    ///
    /// # Errors
    /// Why reads cannot wait, and where to read instead.
    fn supports_at_least(&self) -> Result<(), String> {
        Ok(())
    }

    /// Waits until the node has every acknowledged write, so that the next read is linearizable. Nodes that follow
    /// another node return at once; readers there name a revision instead.
    ///
    /// # Errors
    /// Why this cannot be determined, and where to read instead.
    fn ensure_linearizable(&self) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Releases a prefix that the caller no longer uses.
    fn release(&self, _prefix: &Prefix) {}

    /// Returns the maximum age of the node's copy of a prefix; zero if the copy is current with the upstream.
    fn age(&self, _prefix: &Prefix) -> Duration {
        Duration::ZERO
    }

    /// Returns the greatest [`ServedRib::age`] of all prefixes. Watches check this first, and look up the age of each
    /// prefix only while any prefix ages.
    fn max_age(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns a receiver that is notified when the [`ServedRib::age`] of a prefix may have become zero or nonzero;
    /// `None` if it is always zero.
    fn age_changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A precondition failed.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The batch is malformed or exceeds a limit.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// This process accepts no writes. The text names a process that does.
    #[error("{0}")]
    NotWritable(String),
    /// The store failed. The text has the cause and the remedy.
    #[error("{0}")]
    Failed(String),
}

impl From<WriteError> for Status {
    fn from(error: WriteError) -> Self {
        let text = error.to_string();
        match error {
            WriteError::Conflict(_) => Self::aborted(text),
            WriteError::Invalid(_) => Self::invalid_argument(text),
            WriteError::NotWritable(_) => Self::failed_precondition(text),
            WriteError::Failed(_) => Self::unavailable(text),
        }
    }
}

/// Maximum number of prefixes in one read.
const MAX_READ_PREFIXES: usize = 4096;
/// Maximum number of concurrent watches. Each costs a task and its dirty keys.
const MAX_WATCHES: usize = 65_536;
/// Maximum time that a read waits for a revision, for callers without a deadline.
const MAX_READ_WAIT: Duration = Duration::from_secs(30);
/// Maximum size of a read's response, in bytes; below the limit of a message.
const MAX_READ_BYTES: usize = grpc_stubs::MAX_MESSAGE - 512 * 1024;

/// Serves the node of a backend over gRPC and watches.
#[derive(Clone, Debug)]
pub struct RibServer<B> {
    backend: B,
    watches: Arc<Semaphore>,
    delta_cache: Arc<DeltaCache>,
    closing: CancellationToken,
}

impl<B: ServedRib> RibServer<B> {
    /// Creates a server for a backend. Cancelling `closing` ends all watches, so that their callers reconnect.
    pub fn new(backend: B, closing: CancellationToken) -> Self {
        Self { backend, watches: Arc::new(Semaphore::new(MAX_WATCHES)), delta_cache: Arc::default(), closing }
    }

    /// Returns the gRPC services `fairmesh.v1.Rib` and `others`, and watches.
    pub fn with_services(self, others: Routes) -> Services {
        let calls = others.add_service(grpc_stubs::rib_server(self.clone()));
        Services::new(calls, move |socket| self.clone().watch(socket))
    }

    /// Serves one watch.
    async fn watch(self, socket: Socket) {
        let terminated = self.backend.node().terminated_watches().clone();
        let connection = socket.connection().cloned();
        let (mut watched, greeting) = match WatchServer::accept(socket, connection.clone()).await {
            Ok(accepted) => accepted,
            Err(error) => {
                terminated.count(&error);
                return tracing::debug!(%error, "a watch ended before it began");
            }
        };
        let peer = (watched.identity().clone(), watched.without_certificate());
        let (version, caller, _permit) = match self.greet(&greeting, peer).await {
            Ok(admitted) => admitted,
            Err(refused) => {
                terminated.count(&refused);
                return watched.end(&refused).await;
            }
        };
        if let Some(connection) = connection {
            connection.set_known();
        }
        watched.send_hello(self.hello(version));
        let watcher = self.backend.node().watch(greeting.software, watched.identity().clone());
        let session = Session::new(self.backend, (watcher, caller), watched, self.delta_cache);
        terminated.count(&session.run(self.closing).await);
    }

    /// Negotiates the version of a watch, and determines its caller and a place among the concurrent watches.
    async fn greet(
        &self,
        greeting: &v1::HelloRequest,
        (identity, without_certificate): (Identity, Option<WithoutCertificate>),
    ) -> Result<(u32, Caller, OwnedSemaphorePermit), Status> {
        let version = handshake::negotiate(greeting)?;
        if let Some(without) = without_certificate.filter(|_| greeting.bearer_token.is_empty()) {
            return Err(without.refusal());
        }
        let permit = self.admit()?;
        let is_secret = identity != Identity::Anonymous || without_certificate.is_some();
        let caller = self.backend.watcher(identity, &greeting.bearer_token, is_secret).await?;
        Ok((version, caller, permit))
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.watches.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "this process has {MAX_WATCHES} watches, its limit; watch another replica"
            ))
        })
    }

    fn hello(&self, version: u32) -> Hello {
        let (store, location) = (self.backend.node().store(), self.backend.location());
        Hello { version, store, location, software: self.backend.software() }
    }

    async fn read_prefixes(
        &self,
        request: v1::ReadRequest,
        (caller, waits): (&Caller, &Waits),
    ) -> Result<v1::ReadResponse, Status> {
        if request.prefixes.len() > MAX_READ_PREFIXES {
            return Err(too_many_prefixes(MAX_READ_PREFIXES));
        }
        let prefixes = request.prefixes.into_iter().map(Prefix::new).collect::<Result<Vec<_>, _>>();
        let prefixes = prefixes.map_err(refused)?;
        for prefix in &prefixes {
            self.backend.permits(caller, prefix).map_err(Status::not_found)?;
        }
        let at_least = request.at_least.map(|at_least| self.number(at_least)).transpose()?;
        let guards = prefixes.iter().enumerate();
        let guards = guards.map(|(held, prefix)| PrefixGuard::new(&self.backend, caller, (prefix, held)));
        let _guards = guards.collect::<Result<Vec<_>, _>>().map_err(Status::resource_exhausted)?;
        for prefix in &prefixes {
            self.backend.ready(prefix).await.map_err(Status::unavailable)?;
        }
        self.backend.ensure_linearizable().await.map_err(Status::unavailable)?;
        // Permissions are known only once the node has a copy.
        for prefix in &prefixes {
            self.backend.permits(caller, prefix).map_err(Status::not_found)?;
        }
        let node = self.backend.node();
        node.wait_applied(at_least.unwrap_or_default()).await;
        waits.room().await;
        let (revision, Some(entries)) = node.read_at_most(&prefixes, MAX_READ_BYTES) else {
            return Err(Status::resource_exhausted(format!(
                "the records exceed the {MAX_READ_BYTES} bytes of one response; read smaller prefixes, or watch"
            )));
        };
        let entries = entries.into_iter().map(messages::entry).collect();
        Ok(v1::ReadResponse { at: Some(Cursor::at(revision).into()), entries })
    }

    /// Returns the revision for which a read must wait. Refuses if waiting cannot succeed.
    fn number(&self, at_least: v1::Cursor) -> Result<u64, Status> {
        let at_least = Cursor::try_from(at_least).map_err(|e| refused(e.within("at_least")))?;
        self.backend.supports_at_least().map_err(Status::failed_precondition)?;
        if self.backend.node().store() != Some(at_least.store) {
            return Err(Status::failed_precondition(format!(
                "this process serves another store than {}; read without 'at_least'",
                at_least.store
            )));
        }
        match at_least.numbers.keys().find(|partition| **partition != 0) {
            None => Ok(at_least.number(0)),
            Some(partition) => Err(refused(Invalid::new(
                "at_least.numbers",
                format!("partition {partition} is unknown: this store has partition 0 only"),
                "pass the cursor of another response of this store unchanged",
            ))),
        }
    }
}

#[tonic::async_trait]
impl<B: ServedRib> v1::rib_server::Rib for RibServer<B> {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        let version = handshake::negotiate(request.get_ref())?;
        Ok(Response::new(self.hello(version).into()))
    }

    async fn write(&self, request: Request<v1::WriteRequest>) -> Result<Response<v1::WriteResponse>, Status> {
        let (identity, waits) = (identity_of(&request), Waits::of(&request));
        let request = request.into_inner();
        let batch = match request.ops.iter().any(|op| record_encoding::is_costly(&op.key)) {
            true => run_blocking(&waits, || decode_batch(request)).await?,
            false => decode_batch(request),
        };
        let batch = batch.map_err(refused)?;
        let revision = self.backend.write(batch, identity).await?;
        Ok(Response::new(v1::WriteResponse { revision: Some(revision.into()) }))
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<v1::ReadResponse>, Status> {
        let (caller, waits) = (caller_of(&request), Waits::of(&request));
        let request = request.into_inner();
        let awaited = request.at_least.as_ref().map_or(String::new(), |at_least| {
            format!(", or revision {},", at_least.numbers.get(&0).copied().unwrap_or_default())
        });
        let read = self.read_prefixes(request, (&caller, &waits));
        match waits.run(tokio::time::timeout(MAX_READ_WAIT, read)).await? {
            Ok(read) => read.map(Response::new),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "the prefixes{awaited} did not arrive within {MAX_READ_WAIT:?}; check that this \
                 process is connected to its upstream"
            ))),
        }
    }

    async fn watchers(
        &self,
        request: Request<v1::WatchersRequest>,
    ) -> Result<Response<v1::WatchersResponse>, Status> {
        let caller = caller_of(&request);
        let prefix = Prefix::new(request.into_inner().prefix).map_err(refused)?;
        self.backend.permits(&caller, &prefix).map_err(Status::not_found)?;
        let node = self.backend.node();
        let at = node.store().map(|store| Revision { store, ..node.revision() });
        let watchers = node.watchers(&prefix).into_iter().map(|watcher| v1::Watcher {
            software: watcher.software,
            identity: watcher.identity.to_string(),
            applied: at.map(|at| Cursor::at(Revision { number: watcher.applied, ..at }).into()),
            peer: watcher.peer.as_deref().map(Into::into),
        });
        Ok(Response::new(v1::WatchersResponse {
            watchers: watchers.collect(),
            at: at.map(|at| Cursor::at(at).into()),
            age_ms: messages::milliseconds(self.backend.age(&prefix)),
        }))
    }
}

/// Returns the caller found by an earlier check, or otherwise authenticated by the connection.
fn caller_of<T>(request: &Request<T>) -> Caller {
    request.extensions().get::<Caller>().cloned().unwrap_or_else(|| identity_of(request).into())
}

/// An acquired prefix, released on drop.
#[derive(Debug)]
struct PrefixGuard<B: ServedRib> {
    backend: B,
    prefix: Prefix,
    _place: Option<UserPlace>,
}

impl<B: ServedRib> PrefixGuard<B> {
    /// Acquires a prefix for a caller that already holds `held` others. All watches of a user share one limit, except
    /// for root and this process's own user.
    fn new(backend: &B, caller: &Caller, (prefix, held): (&Prefix, usize)) -> Result<Self, String> {
        let place = match caller.identity {
            Identity::Local { uid } if !is_own_user(uid) => {
                backend.acquired_by_users().and_then(|users| users.enter(uid))
            }
            _ => None,
        };
        backend.acquire(prefix, place.as_ref().map_or(held, UserPlace::others))?;
        Ok(Self { backend: backend.clone(), prefix: prefix.clone(), _place: place })
    }
}

impl<B: ServedRib> Drop for PrefixGuard<B> {
    fn drop(&mut self) {
        self.backend.release(&self.prefix);
    }
}

fn too_many_prefixes(most: usize) -> Status {
    Status::resource_exhausted(format!(
        "more than {most} prefixes; request shorter prefixes, or split the request"
    ))
}

fn refused(error: Invalid) -> Status {
    Status::invalid_argument(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fairmesh_model::StoreId;

    use super::*;

    /// A backend that admits a single prefix.
    #[derive(Clone)]
    struct OnePrefix {
        node: Node,
        used: Arc<AtomicUsize>,
        users: Option<UserPlaces>,
    }

    impl OnePrefix {
        fn new() -> Self {
            Self { node: Node::new(StoreId(1)), used: Arc::default(), users: None }
        }
    }

    impl ServedRib for OnePrefix {
        fn node(&self) -> &Node {
            &self.node
        }

        fn software(&self) -> String {
            String::new()
        }

        fn location(&self) -> Option<Location> {
            None
        }

        async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
            Err(WriteError::Failed(String::new()))
        }

        fn acquire(&self, _: &Prefix, _: usize) -> Result<(), String> {
            let acquired = self.used.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            acquired.map(drop).map_err(|_| "in use".to_owned())
        }

        fn acquired_by_users(&self) -> Option<&UserPlaces> {
            self.users.as_ref()
        }

        fn release(&self, _: &Prefix) {
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn refused_watch_prefix_releases_no_prefix_of_others() {
        let backend = OnePrefix::new();
        let prefix = Prefix::new("/a/").unwrap();
        let first = PrefixGuard::new(&backend, &Caller::default(), (&prefix, 0));
        assert!(PrefixGuard::new(&backend, &Caller::default(), (&prefix, 0)).is_err());
        assert_eq!(backend.used.load(Ordering::Relaxed), 1, "the first is still there");
        drop(first);
        assert_eq!(backend.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn watches_of_one_user_share_prefix_limit() {
        let users = UserPlaces::new(MAX_PREFIXES);
        let backend = OnePrefix { users: Some(users.clone()), ..OnePrefix::new() };
        let (prefix, other) = (Prefix::new("/a/").unwrap(), Identity::Local { uid: 54_001 });
        let own = Identity::Local { uid: rustix::process::geteuid().as_raw() };
        let _before = users.enter(54_001);
        let of =
            |identity: &Identity| PrefixGuard::new(&backend, &identity.clone().into(), (&prefix, 0)).unwrap();
        let place = of(&other)._place.as_ref().map(UserPlace::others);
        assert_eq!(place, Some(1), "what another watch of the user has acquired");
        assert!(of(&own)._place.is_none());
    }
}
