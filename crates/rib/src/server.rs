//! Answers `fairmesh.v1.Rib` and watches from a node: the same at the control plane, replicas and agents.

mod batch;
mod deltas;
mod frames;
mod session;

pub use frames::encoded_len;

use std::{future::Future, sync::Arc, time::Duration};

use deltas::Deltas;

use fairmesh_model::{Cursor, Identity, Invalid, Location, Prefix, Revision};
use fairmesh_wire::{
    handshake::{self, Hello},
    identity_of, records, rpc, run_blocking,
    transport::{Services, Socket},
    v1,
    watch::WatchServer,
};
use session::Session;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::Routes};

use crate::{Batch, Conflict, Node};

/// What differs between those who serve the routing information base.
pub trait Backend: Clone + Send + Sync + 'static {
    /// What is served.
    fn node(&self) -> &Node;

    /// What the server says of itself in the handshake, for people: `control plane 0.1.0`.
    fn software(&self) -> String;

    /// Where it runs, told by agents to their callers.
    fn location(&self) -> Option<Location>;

    /// Writes a batch that is within all bounds and well formed, and returns once it is durable.
    fn write(
        &self,
        batch: Batch,
        identity: Identity,
    ) -> impl Future<Output = Result<Revision, WriteError>> + Send;

    /// A caller begins to use a prefix. Each call that returns true is followed by one of [`Backend::release`]; false
    /// says that there is no place for it.
    fn claim(&self, _prefix: &Prefix) -> bool {
        true
    }

    /// Returns when the node holds a claimed prefix. Nodes that hold everything need not say so.
    ///
    /// # Errors
    /// Why it cannot be served, for the caller.
    fn ready(&self, _prefix: &Prefix) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// Whether reads may wait here for what others wrote. Nodes that hold parts never move past what does not touch them.
    ///
    /// # Errors
    /// Why not, and where to read instead.
    fn waits(&self) -> Result<(), String> {
        Ok(())
    }

    /// Returns at a moment at which the node holds all that was acknowledged anywhere. Nodes that follow another need not
    /// say so: reads there ask for a revision.
    ///
    /// # Errors
    /// Why that cannot be known, and where to read instead.
    fn current(&self) -> impl Future<Output = Result<(), String>> + Send {
        std::future::ready(Ok(()))
    }

    /// The caller is done with the prefix.
    fn release(&self, _prefix: &Prefix) {}

    /// How old what the node holds of the prefix may be; zero where it is in touch with its upstream.
    fn age(&self, _prefix: &Prefix) -> Duration {
        Duration::ZERO
    }

    /// The greatest [`Backend::age`] of all prefixes. It is looked at first, so that one who follows many has the age of each
    /// looked up only where some of them age.
    fn oldest(&self) -> Duration {
        Duration::ZERO
    }

    /// Ticks when what [`Backend::age`] tells of a prefix may have ceased or begun to be zero; `None` where it is always
    /// zero.
    fn ages(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Why a batch was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Somebody else wrote first.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The batch is not well formed or out of bounds.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// This process takes no writes; the text says who does.
    #[error("{0}")]
    Elsewhere(String),
    /// The store failed; the text says how and what to do.
    #[error("{0}")]
    Failed(String),
}

impl From<WriteError> for Status {
    fn from(error: WriteError) -> Self {
        let text = error.to_string();
        match error {
            WriteError::Conflict(_) => Self::aborted(text),
            WriteError::Invalid(_) => Self::invalid_argument(text),
            WriteError::Elsewhere(_) => Self::failed_precondition(text),
            WriteError::Failed(_) => Self::unavailable(text),
        }
    }
}

/// The most prefixes of one watch: a shared proxy follows three for each of 50,000 services and more, and its agent those of
/// several. Each costs about 0.5 KB here.
pub const MAX_PREFIXES: usize = 262_144;
/// The most prefixes of one read.
const MAX_READ_PREFIXES: usize = 4096;
/// The most watches at one time: each costs a task and the keys that it has yet to see.
const MAX_STREAMS: usize = 65_536;
/// The longest wait for a revision to read, for callers that set no deadline.
const LONGEST_READ: Duration = Duration::from_secs(30);
/// The most bytes of one read, below what a message may hold.
const MAX_READ_BYTES: usize = rpc::MAX_MESSAGE - 512 * 1024;

/// Serves the node of a backend.
#[derive(Clone, Debug)]
pub struct RibServer<B> {
    backend: B,
    streams: Arc<Semaphore>,
    deltas: Arc<Deltas>,
    closing: CancellationToken,
}

impl<B: Backend> RibServer<B> {
    /// Serves what the backend holds. Once `closing` is cancelled, watches end and their callers reconnect.
    pub fn new(backend: B, closing: CancellationToken) -> Self {
        Self { backend, streams: Arc::new(Semaphore::new(MAX_STREAMS)), deltas: Arc::default(), closing }
    }

    /// The calls of `fairmesh.v1.Rib` and others beside them, and watches.
    pub fn beside(self, others: Routes) -> Services {
        let calls = others.add_service(rpc::rib_server(self.clone()));
        Services::new(calls, move |socket| self.clone().watch(socket))
    }

    /// Serves one watch.
    async fn watch(self, socket: Socket) {
        let (mut watched, greeting) = match WatchServer::accept(socket).await {
            Ok(accepted) => accepted,
            Err(error) => return tracing::debug!(%error, "a watch ended before it began"),
        };
        let admitted = handshake::negotiate(&greeting).and_then(|version| Ok((version, self.admit()?)));
        let (version, _permit) = match admitted {
            Ok(admitted) => admitted,
            Err(refused) => return watched.end(&refused).await,
        };
        watched.send_hello(self.hello(version));
        let watcher = self.backend.node().watch(greeting.software, watched.identity().clone());
        Session::new(self.backend, watcher, watched, self.deltas).run(self.closing).await;
    }

    fn admit(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{MAX_STREAMS} watches are open here; watch at another replica"
            ))
        })
    }

    fn hello(&self, version: u32) -> Hello {
        let (store, location) = (self.backend.node().store(), self.backend.location());
        Hello { version, store, location, software: self.backend.software() }
    }

    async fn read_prefixes(&self, request: v1::ReadRequest) -> Result<v1::ReadResponse, Status> {
        if request.prefixes.len() > MAX_READ_PREFIXES {
            return Err(too_many_prefixes(MAX_READ_PREFIXES));
        }
        let prefixes = request.prefixes.into_iter().map(Prefix::new).collect::<Result<Vec<_>, _>>();
        let prefixes = prefixes.map_err(refused)?;
        let at_least = request.at_least.map(|at_least| self.number(at_least)).transpose()?;
        let _claims: Vec<_> = prefixes.iter().map(|prefix| Claim::new(&self.backend, prefix)).collect();
        for prefix in &prefixes {
            self.backend.ready(prefix).await.map_err(Status::unavailable)?;
        }
        self.backend.current().await.map_err(Status::unavailable)?;
        let node = self.backend.node();
        node.applied(at_least.unwrap_or_default()).await;
        let (revision, entries) = node.read(&prefixes);
        let bytes: usize = entries.iter().map(|(key, entry)| key.len() + entry.value.len() + 32).sum();
        if bytes > MAX_READ_BYTES {
            return Err(Status::resource_exhausted(format!(
                "{bytes} bytes are too many for one answer of {MAX_READ_BYTES}; read smaller prefixes, or watch"
            )));
        }
        let entries = entries.into_iter().map(frames::entry).collect();
        Ok(v1::ReadResponse { at: Some(Cursor::at(revision).into()), entries })
    }

    /// The number that a read has to wait for, if waiting can bring it.
    fn number(&self, at_least: v1::Cursor) -> Result<u64, Status> {
        let at_least = Cursor::try_from(at_least).map_err(|e| refused(e.within("at_least")))?;
        self.backend.waits().map_err(Status::failed_precondition)?;
        if self.backend.node().store() != Some(at_least.store) {
            return Err(Status::failed_precondition(format!(
                "revisions of store {} never get here: this process serves another store; read without 'at_least'",
                at_least.store
            )));
        }
        match at_least.numbers.keys().find(|partition| **partition != 0) {
            None => Ok(at_least.number(0)),
            Some(partition) => Err(refused(Invalid::new(
                "at_least.numbers",
                format!("partition {partition} is unknown: this store has partition 0 only"),
                "give the cursor as another answer of this store gave it",
            ))),
        }
    }
}

#[tonic::async_trait]
impl<B: Backend> v1::rib_server::Rib for RibServer<B> {
    async fn hello(&self, request: Request<v1::HelloRequest>) -> Result<Response<v1::HelloResponse>, Status> {
        let version = handshake::negotiate(request.get_ref())?;
        Ok(Response::new(self.hello(version).into()))
    }

    async fn write(&self, request: Request<v1::WriteRequest>) -> Result<Response<v1::WriteResponse>, Status> {
        let identity = identity_of(&request);
        let request = request.into_inner();
        let batch = match request.ops.iter().any(|op| records::is_costly(&op.key)) {
            true => run_blocking(|| batch::read(request)).await?,
            false => batch::read(request),
        };
        let batch = batch.map_err(refused)?;
        let revision = self.backend.write(batch, identity).await?;
        Ok(Response::new(v1::WriteResponse { revision: Some(revision.into()) }))
    }

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<v1::ReadResponse>, Status> {
        let request = request.into_inner();
        let asked = request.at_least.as_ref().map_or(String::new(), |at_least| {
            format!(", or not revision {}", at_least.numbers.get(&0).copied().unwrap_or_default())
        });
        match tokio::time::timeout(LONGEST_READ, self.read_prefixes(request)).await {
            Ok(read) => read.map(Response::new),
            Err(_) => Err(Status::deadline_exceeded(format!(
                "what was asked for did not get here within {LONGEST_READ:?}{asked}; check that this \
                 process is in touch with its upstream"
            ))),
        }
    }

    async fn watchers(
        &self,
        request: Request<v1::WatchersRequest>,
    ) -> Result<Response<v1::WatchersResponse>, Status> {
        let prefix = Prefix::new(request.into_inner().prefix).map_err(refused)?;
        let node = self.backend.node();
        let at = node.store().map(|store| Revision { store, ..node.revision() });
        let watchers = node.watchers(&prefix).into_iter().map(|watcher| v1::Watcher {
            software: watcher.software,
            identity: watcher.identity.to_string(),
            applied: at.map(|at| Cursor::at(Revision { number: watcher.applied, ..at }).into()),
            about: watcher.about.as_deref().map(Into::into),
        });
        Ok(Response::new(v1::WatchersResponse {
            watchers: watchers.collect(),
            at: at.map(|at| Cursor::at(at).into()),
            age_ms: frames::milliseconds(self.backend.age(&prefix)),
        }))
    }
}

/// A prefix that the backend holds ready while this lives.
#[derive(Debug)]
struct Claim<B: Backend> {
    backend: B,
    prefix: Prefix,
    /// Whether it took a place; one that did not must not give up that of another.
    counted: bool,
}

impl<B: Backend> Claim<B> {
    fn new(backend: &B, prefix: &Prefix) -> Self {
        let counted = backend.claim(prefix);
        Self { backend: backend.clone(), prefix: prefix.clone(), counted }
    }
}

impl<B: Backend> Drop for Claim<B> {
    fn drop(&mut self) {
        if self.counted {
            self.backend.release(&self.prefix);
        }
    }
}

fn too_many_prefixes(most: usize) -> Status {
    Status::resource_exhausted(format!(
        "more than {most} prefixes; ask for folders further up, or call again"
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

    /// Has one place.
    #[derive(Clone)]
    struct Narrow {
        node: Node,
        used: Arc<AtomicUsize>,
    }

    impl Backend for Narrow {
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

        fn claim(&self, _: &Prefix) -> bool {
            self.used.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        }

        fn release(&self, _: &Prefix) {
            self.used.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_claim_that_found_no_place_gives_none_up() {
        let backend = Narrow { node: Node::new(StoreId(1)), used: Arc::default() };
        let prefix = Prefix::new("/a/").unwrap();
        let first = Claim::new(&backend, &prefix);
        drop(Claim::new(&backend, &prefix));
        assert_eq!(backend.used.load(Ordering::Relaxed), 1, "the first is still there");
        drop(first);
        assert_eq!(backend.used.load(Ordering::Relaxed), 0);
    }
}
