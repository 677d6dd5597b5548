mod declarations;
mod plaintext_reports;
mod planning_records;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
    time::Duration,
};

use fairmesh_model::RecordKey;
use fairmesh_rib::{Batch, Node, Op};
use fairmesh_store::{Store, WriteError};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    InstanceRef, RegistryError,
    address_claims::AddressClaims,
    auto_declarations::AutoDeclarations,
    leases::Leases,
    plaintext_callers::PlaintextReports,
    shard_balance::LoadWindows,
    shard_map_cache::ShardMapCache,
    shards::{Readiness, UndoneMoves},
};

pub use declarations::{DECLARATION_GRACE, adopt_declaration};

/// Maximum number of attempts for a change while other writers change the same records.
const MAX_ATTEMPTS: usize = 16;
/// Maximum time for the node to apply a commit of the store; normally milliseconds.
const MAX_NODE_LAG: Duration = Duration::from_secs(5);

/// The endpoints, leases and shard maps of a control plane. Cheap to clone; clones share their state.
///
/// Changes are planned on the node's records and written by compare-and-set. [`Registry::run`] expires leases and
/// executes shard moves, and must run as long as the registry is used.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(crate) shared: Arc<RegistryState>,
}

#[derive(Debug)]
pub(crate) struct RegistryState {
    store: Arc<dyn Store>,
    pub(crate) node: Node,
    leases: Mutex<Leases>,
    address_claims: Mutex<AddressClaims>,
    readiness: Mutex<Readiness>,
    undone_moves: Mutex<UndoneMoves>,
    windows: Mutex<LoadWindows>,
    plaintext_reports: Mutex<PlaintextReports>,
    /// Start time, from which the ages of load reports are measured.
    created: Instant,
    pub(crate) map_cache: ShardMapCache,
    declarations: Mutex<AutoDeclarations>,
    /// Lock against concurrent removal of declarations: each registration reads, a removal writes.
    pub(crate) registering: tokio::sync::RwLock<()>,
    pub(crate) declarations_refused: AtomicU64,
    pub(crate) declarations_removed: AtomicU64,
    /// Lock that serializes this process's writes of shard maps, because concurrent moves of one service would
    /// conflict.
    pub(crate) map_writer: tokio::sync::Mutex<()>,
    /// Notified when a new lease becomes due earlier than all others.
    pub(crate) lease_granted: Notify,
    /// Requested moves that have not started yet.
    pending_moves: Mutex<BTreeSet<RecordKey>>,
    /// Notified when a move is requested.
    pub(crate) move_requested: Notify,
    /// Notified when a server reports its loaded shards.
    pub(crate) reports: watch::Sender<()>,
}

/// The result of a committed change.
#[derive(Debug)]
pub(crate) struct Committed<T> {
    /// Revision of the change, or the node's revision if nothing had to be written.
    pub(crate) revision: u64,
    /// The output of the plan.
    pub(crate) output: T,
}

impl Registry {
    /// Creates a registry that reads `node` and writes `store`. The node must follow the store's commits.
    ///
    /// Every lease gets time to return and a full term when [`Registry::run`] starts.
    pub fn new(store: Arc<dyn Store>, node: Node) -> Self {
        let shared = RegistryState {
            store,
            node,
            leases: Mutex::default(),
            address_claims: Mutex::default(),
            readiness: Mutex::new(HashMap::new()),
            undone_moves: Mutex::default(),
            windows: Mutex::default(),
            plaintext_reports: Mutex::default(),
            declarations: Mutex::default(),
            registering: tokio::sync::RwLock::default(),
            declarations_refused: AtomicU64::default(),
            declarations_removed: AtomicU64::default(),
            created: Instant::now(),
            map_cache: ShardMapCache::default(),
            map_writer: tokio::sync::Mutex::default(),
            lease_granted: Notify::new(),
            pending_moves: Mutex::default(),
            move_requested: Notify::new(),
            reports: watch::Sender::new(()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Expires leases, executes moves and removes unused declarations, until `shutdown` completes. Continues the work
    /// of an earlier process.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = self.run_lease_expiry() => {}
            () = self.run_moves() => {}
            () = self.run_declaration_cleanup() => {}
            () = shutdown => {}
        }
    }

    pub(crate) fn node(&self) -> &Node {
        &self.shared.node
    }

    pub(crate) fn leases(&self) -> MutexGuard<'_, Leases> {
        lock(&self.shared.leases)
    }

    pub(crate) fn address_claims(&self) -> MutexGuard<'_, AddressClaims> {
        lock(&self.shared.address_claims)
    }

    pub(crate) fn readiness(&self) -> MutexGuard<'_, Readiness> {
        lock(&self.shared.readiness)
    }

    pub(crate) fn undone_moves(&self) -> MutexGuard<'_, UndoneMoves> {
        lock(&self.shared.undone_moves)
    }

    pub(crate) fn plaintext_reports(&self) -> MutexGuard<'_, PlaintextReports> {
        lock(&self.shared.plaintext_reports)
    }

    pub(crate) fn windows(&self) -> MutexGuard<'_, LoadWindows> {
        lock(&self.shared.windows)
    }

    /// Milliseconds since this registry was created.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.created.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn declarations(&self) -> MutexGuard<'_, AutoDeclarations> {
        lock(&self.shared.declarations)
    }

    pub(crate) fn pending_moves(&self) -> MutexGuard<'_, BTreeSet<RecordKey>> {
        lock(&self.shared.pending_moves)
    }

    /// Drops the in-memory state of a removed endpoint.
    pub(crate) fn forget(&self, instance: &InstanceRef) {
        self.leases().end(instance);
        self.readiness().remove(instance);
        self.windows().forget(instance);
    }

    /// Writes the change that `plan` derives from the current records, and plans again after a conflict.
    ///
    /// When this returns, the node has applied the change, so later reads see it.
    pub(crate) async fn change<T>(
        &self,
        plan: impl Fn() -> Result<(Vec<Op>, T), RegistryError> + Send + Sync,
    ) -> Result<Committed<T>, RegistryError> {
        let mut attempts = 1;
        loop {
            let (ops, output) = plan()?;
            if ops.is_empty() {
                return Ok(Committed { revision: self.node().revision().number, output });
            }
            match self.write(ops).await {
                Ok(revision) => return Ok(Committed { revision, output }),
                Err(WriteError::Conflict(conflict)) if attempts < MAX_ATTEMPTS => {
                    self.wait_for_node(conflict.current).await
                }
                Err(error) => return Err(error.into()),
            }
            attempts += 1;
        }
    }

    /// Writes one batch. When this returns, the node has applied the batch.
    pub(crate) async fn write(&self, ops: Vec<Op>) -> Result<u64, WriteError> {
        let revision = self.shared.store.write(Batch { ops }).await?.number;
        self.wait_for_node(revision).await;
        Ok(revision)
    }

    /// Waits until the node has applied a revision of the store. Needed after a conflict and after a write: the store
    /// may respond before the node has received the commit.
    async fn wait_for_node(&self, revision: u64) {
        if tokio::time::timeout(MAX_NODE_LAG, self.node().wait_applied(revision)).await.is_err() {
            tracing::warn!(revision, "the node does not follow the store; readers see older records");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that holds these locks panics halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
