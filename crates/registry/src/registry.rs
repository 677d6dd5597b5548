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
    balance::Windows,
    declarations::Declarations,
    leases::Leases,
    maps::Maps,
    shards::{Outcomes, Readiness},
};

/// How often a change is tried anew after somebody else wrote the same records.
const TRIES: usize = 16;
/// How long the node may take to apply what the store has committed; it follows in milliseconds.
const CATCH_UP: Duration = Duration::from_secs(5);

/// Endpoints, leases and shard maps of a control plane. Cheap to clone; clones are the same registry.
///
/// Changes are read from the node, checked, and written by compare-and-set; [`Registry::run`] lets leases run out and
/// carries shard moves out, and has to run as long as the registry is used.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    store: Arc<dyn Store>,
    pub(crate) node: Node,
    leases: Mutex<Leases>,
    readiness: Mutex<Readiness>,
    outcomes: Mutex<Outcomes>,
    windows: Mutex<Windows>,
    /// What the ages of load reports are counted from.
    began: Instant,
    pub(crate) decoded: Maps,
    declarations: Mutex<Declarations>,
    /// Held by each registration, and alone while declarations are taken away.
    pub(crate) registering: tokio::sync::RwLock<()>,
    pub(crate) declarations_refused: AtomicU64,
    pub(crate) declarations_removed: AtomicU64,
    /// Shard maps are written one at a time by this process: the moves of one service would only conflict.
    pub(crate) maps: tokio::sync::Mutex<()>,
    /// Woken when a lease falls due earlier than before.
    pub(crate) lease_granted: Notify,
    /// Moves that somebody asked for and that are yet to be taken up.
    wanted: Mutex<BTreeSet<RecordKey>>,
    /// Woken when there is one.
    pub(crate) move_wanted: Notify,
    /// Ticks when a server says which shards it has loaded.
    pub(crate) reports: watch::Sender<()>,
}

/// What a change came to.
#[derive(Debug)]
pub(crate) struct Changed<T> {
    /// The revision that it became; the node's own when there was nothing to write.
    pub(crate) revision: u64,
    /// What the plan of the change said.
    pub(crate) told: T,
}

impl Registry {
    /// A registry that reads `node` and writes `store`. The node must follow the store's commits.
    ///
    /// Everybody who has a lease gets a full term from when [`Registry::run`] starts.
    pub fn new(store: Arc<dyn Store>, node: Node) -> Self {
        let shared = Shared {
            store,
            node,
            leases: Mutex::default(),
            readiness: Mutex::new(HashMap::new()),
            outcomes: Mutex::default(),
            windows: Mutex::default(),
            declarations: Mutex::default(),
            registering: tokio::sync::RwLock::default(),
            declarations_refused: AtomicU64::default(),
            declarations_removed: AtomicU64::default(),
            began: Instant::now(),
            decoded: Maps::default(),
            maps: tokio::sync::Mutex::default(),
            lease_granted: Notify::new(),
            wanted: Mutex::default(),
            move_wanted: Notify::new(),
            reports: watch::Sender::new(()),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Lets leases run out, carries moves out and takes away declarations whose endpoints have gone, until `shutdown` is done. Both are taken up where a process before
    /// this one left them.
    pub async fn run(&self, shutdown: impl Future<Output = ()> + Send) {
        tokio::select! {
            () = self.watch_leases() => {}
            () = self.carry_moves_out() => {}
            () = self.watch_declarations() => {}
            () = shutdown => {}
        }
    }

    pub(crate) fn node(&self) -> &Node {
        &self.shared.node
    }

    pub(crate) fn leases(&self) -> MutexGuard<'_, Leases> {
        lock(&self.shared.leases)
    }

    pub(crate) fn readiness(&self) -> MutexGuard<'_, Readiness> {
        lock(&self.shared.readiness)
    }

    pub(crate) fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        lock(&self.shared.outcomes)
    }

    pub(crate) fn windows(&self) -> MutexGuard<'_, Windows> {
        lock(&self.shared.windows)
    }

    /// Milliseconds since this registry was made.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.shared.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn declarations(&self) -> MutexGuard<'_, Declarations> {
        lock(&self.shared.declarations)
    }

    pub(crate) fn wanted(&self) -> MutexGuard<'_, BTreeSet<RecordKey>> {
        lock(&self.shared.wanted)
    }

    /// Drops what is kept in memory of an endpoint that is gone.
    pub(crate) fn forget(&self, who: &InstanceRef) {
        self.leases().end(who);
        self.readiness().remove(who);
        self.windows().forget(who);
    }

    /// Carries out what `plan` makes of the records as they are, and again when somebody else was faster.
    ///
    /// When this returns, the node has the change too, so that whoever reads next sees it.
    pub(crate) async fn change<T>(
        &self,
        plan: impl Fn() -> Result<(Vec<Op>, T), RegistryError> + Send + Sync,
    ) -> Result<Changed<T>, RegistryError> {
        let mut tries = 1;
        loop {
            let (ops, told) = plan()?;
            if ops.is_empty() {
                return Ok(Changed { revision: self.node().revision().number, told });
            }
            match self.write(ops).await {
                Ok(revision) => return Ok(Changed { revision, told }),
                Err(WriteError::Conflict(conflict)) if tries < TRIES => self.catch_up(conflict.current).await,
                Err(error) => return Err(error.into()),
            }
            tries += 1;
        }
    }

    /// Writes one batch; the node has it when this returns.
    pub(crate) async fn write(&self, ops: Vec<Op>) -> Result<u64, WriteError> {
        let revision = self.shared.store.write(Batch { ops }).await?.number;
        self.catch_up(revision).await;
        Ok(revision)
    }

    /// Waits until the node has a revision that the store has: after a conflict, and after a write where the store answers
    /// before its followers have it.
    async fn catch_up(&self, revision: u64) {
        if tokio::time::timeout(CATCH_UP, self.node().wait_applied(revision)).await.is_err() {
            tracing::warn!(revision, "the node does not follow the store; readers see older records");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that runs under these locks can panic halfway through a change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
