use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fairmesh_listen::{Limits, Listeners, PageListener};
use fairmesh_model::StoreId;
use fairmesh_registry::{FileSource, Registry, RegistryService};
use fairmesh_rib::{Node, server::RibServer};
use fairmesh_store::{PartitionedStore, RedbStore, Store, StoreError, StoreLocation};
use fairmesh_wire::{
    rpc,
    transport::{self, Address, Listener, Plaintext, Services, Transport},
};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    ControlConfig, ControlError,
    admin::AdminService,
    backend::ControlBackend,
    census::Census,
    checks::{CheckIndex, CheckerService, Checks},
    following::{Followed, follow},
    hold::Hold,
    http,
    imbalance::{self, Imbalance, ImbalanceService},
    metrics::{Metrics, Sources},
    partitions::{self, Opened},
    quotas::Quotas,
    readiness::Readiness,
};

/// The store file within the data directory.
const STORE_FILE: &str = "rib.redb";
/// The file of the imbalance indicator within the data directory.
const IMBALANCE_FILE: &str = "imbalance.redb";
/// How long after the death of a control plane another may take over its store in etcd.
const TERM: Duration = Duration::from_secs(5);
/// How long calls under way may take to finish once the control plane is told to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// A control plane that is ready to serve: its store is loaded and its addresses are bound.
#[derive(Debug)]
pub struct Control {
    store: Arc<dyn Store>,
    partitions: Option<Arc<PartitionedStore>>,
    node: Node,
    census: Arc<Census>,
    check_index: Arc<CheckIndex>,
    metrics: Arc<Metrics>,
    imbalance: Arc<Imbalance>,
    grpc: Vec<Listener>,
    http: PageListener,
    listeners: Listeners,
    config: ControlConfig,
}

/// The parts of a running control plane: each ends with nothing when it was told to, and with why when not.
type Parts = JoinSet<Result<(), ControlError>>;

impl Control {
    /// Opens the store and binds every address. A store in etcd has one control plane at a time: others wait here for it.
    ///
    /// # Errors
    /// [`ControlError`] saying which file or address it is about and what to do.
    pub async fn start(config: ControlConfig) -> Result<Self, ControlError> {
        if config.grpc.is_empty() {
            return Err(ControlError::NoAddress);
        }
        let Opened { store, partitions } = open(&config).await?;
        let (revision, entries) = store.load().await?;
        let census = Arc::new(Census::default());
        census.load(&entries);
        let check_index = Arc::new(CheckIndex::default());
        check_index.load(&entries);
        let node = Node::load(store.id(), revision, entries);
        check_index.stale_verdicts.notify_one();
        let listeners = Listeners::default();
        let calls = listeners.acceptor("grpc", Limits::calls());
        let mut grpc = Vec::new();
        for address in &config.grpc {
            grpc.push(Plaintext.bind(address).await?.within(calls.clone()));
        }
        let http = http::bind(config.http, listeners.acceptor("http", Limits::pages())).await?;
        let imbalance = Arc::new(Imbalance::start(&config.data_dir.join(IMBALANCE_FILE)).await);
        for address in grpc.iter().filter_map(|listener| listener.address().ok()) {
            tracing::info!(%address, "gRPC is served");
        }
        if let Ok(address) = http.local_addr() {
            tracing::info!(%address, "HTTP is served");
        }
        tracing::info!(store = %store.id(), revision, place = %place(&config), "the store is open");
        let metrics = Arc::default();
        Ok(Self {
            store,
            partitions,
            node,
            census,
            check_index,
            metrics,
            imbalance,
            grpc,
            http,
            listeners,
            config,
        })
    }

    /// Where gRPC is served, in the order of the configuration, with the ports that the system chose for port 0.
    pub fn grpc_addresses(&self) -> io::Result<Vec<Address>> {
        self.grpc.iter().map(Listener::address).collect()
    }

    /// Where HTTP is served.
    pub fn http_address(&self) -> io::Result<SocketAddr> {
        self.http.local_addr()
    }

    /// Serves until `shutdown` completes: then nobody new is let in, calls under way have five seconds to finish, and
    /// the store is closed.
    ///
    /// # Errors
    /// [`ControlError::Ended`] when a part of it ended by itself.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
        let closing = CancellationToken::new();
        // Outlives `closing`, since calls under way still write.
        let served = CancellationToken::new();
        let mut following = Parts::new();
        let mut parts = Parts::new();
        let stores = (self.store.clone(), self.imbalance.clone());
        self.spawn(&mut parts, &mut following, &closing, &served);
        let mut ended = tokio::select! {
            () = shutdown => Ok(()),
            ended = first_end(&mut parts) => ended,
            ended = first_end(&mut following) => ended,
        };
        closing.cancel();
        while !parts.is_empty() {
            ended = ended.and(first_end(&mut parts).await);
        }
        served.cancel();
        while !following.is_empty() {
            ended = ended.and(first_end(&mut following).await);
        }
        stores.0.close().await;
        // The last handle waits for the writer of the store, which would block this thread.
        let _ = spawn_blocking(move || drop(stores)).await;
        ended
    }

    fn spawn(
        self,
        parts: &mut Parts,
        following: &mut Parts,
        closing: &CancellationToken,
        served: &CancellationToken,
    ) {
        let Self {
            store,
            partitions,
            node,
            census,
            check_index,
            metrics,
            imbalance,
            grpc,
            http,
            listeners,
            config,
        } = self;
        let followed: Arc<dyn Store> = Arc::new(Followed::new(store.clone(), node.clone(), metrics.clone()));
        let registry = Registry::new(followed.clone(), node.clone());
        let checks = Checks::new(node.clone(), followed.clone(), check_index.clone());
        let quotas = Quotas::new(node.clone());
        let admin = AdminService { node: node.clone(), store: followed.clone(), partitions };
        let figures = ImbalanceService { imbalance: imbalance.clone(), node: node.clone() };
        let others = routes(&registry, &checks, closing)
            .add_service(rpc::admin_server(admin))
            .add_service(rpc::imbalance_server(figures))
            .add_service(rpc::quota_server(quotas.clone()));
        let hold = store.lease_expiry().map(Hold::new);
        let backend = ControlBackend { node: node.clone(), store: followed.clone(), hold: hold.clone() };
        let services = RibServer::new(backend, closing.clone()).with_services(others);
        serve_grpc(parts, grpc, &services, closing);
        let files = watch_files(&config.sources, &registry, following, served);
        let sources = Sources {
            store: store.clone(),
            node: node.clone(),
            census: census.clone(),
            checks: checks.clone(),
            files,
            imbalance: imbalance.clone(),
            registry: registry.clone(),
            quotas: quotas.clone(),
            listeners,
        };
        let readiness = Readiness::of(&config.data_dir);
        run_beside(following, served, readiness.integrity.clone().watch(store.clone()));
        let shared = Arc::new(http::Shared { metrics, sources, readiness, closing: closing.clone() });
        let pages = http::router(shared, registry.router()).merge(imbalance::router(imbalance.clone()));
        let serving = http::serve(pages, http, closing.clone(), DRAIN);
        run_to_its_end(parts, serving);

        following.spawn(follow_until(store, node, (census, check_index), served.clone()));
        Controllers { hold, checks, quotas, imbalance, registry }.spawn(following, served);
    }
}

/// The loops that act on the store's records until the control plane stops.
struct Controllers {
    hold: Option<Hold>,
    checks: Checks,
    quotas: Quotas,
    imbalance: Arc<Imbalance>,
    registry: Registry,
}

impl Controllers {
    fn spawn(self, following: &mut Parts, served: &CancellationToken) {
        let Self { hold, checks, quotas, imbalance, registry } = self;
        if let Some(hold) = hold {
            run_beside(following, served, hold.keep());
        }
        run_beside(following, served, async move { checks.keep().await });
        run_beside(following, served, quotas.sweep());
        let stop = served.clone();
        run_to_its_end(following, async move { imbalance.run(stop).await });
        let stop = served.clone();
        run_to_its_end(following, async move { registry.run(stop.cancelled_owned()).await });
    }
}

/// Follows the store until `stop`.
async fn follow_until(
    store: Arc<dyn Store>,
    node: Node,
    (census, check_index): (Arc<Census>, Arc<CheckIndex>),
    stop: CancellationToken,
) -> Result<(), ControlError> {
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        // A new process verifies the file and goes on; this one could only refuse writes.
        () = follow(store.clone(), node, census, check_index) => {
            Err(ended("the store", store.fatal_error().unwrap_or("it is closed")))
        }
    }
}

/// Runs what ends by itself once it is told to.
fn run_to_its_end(following: &mut Parts, task: impl Future<Output = ()> + Send + 'static) {
    following.spawn(async move {
        task.await;
        Ok(())
    });
}

/// Runs what may be cut off anywhere, for as long as calls under way may write.
fn run_beside(
    following: &mut Parts,
    served: &CancellationToken,
    task: impl Future<Output = ()> + Send + 'static,
) {
    let stop = served.clone();
    following.spawn(async move {
        stop.run_until_cancelled(task).await;
        Ok(())
    });
}

/// Watches files with endpoints, each as a task of its own.
fn watch_files(
    paths: &[PathBuf],
    registry: &Registry,
    following: &mut Parts,
    served: &CancellationToken,
) -> Vec<Arc<FileSource>> {
    let files: Vec<_> = paths.iter().map(|path| Arc::new(FileSource::new(registry.clone(), path))).collect();
    for file in &files {
        let (file, stop) = (file.clone(), served.clone());
        following.spawn(async move {
            file.run(stop.cancelled_owned()).await;
            Ok(())
        });
    }
    files
}

async fn open(config: &ControlConfig) -> Result<Opened, StoreError> {
    match &config.etcd {
        Some(etcd) => partitions::open(etcd, &who(config), TERM).await,
        None => {
            let store = on_file(&config.data_dir, RedbStore::open).await?;
            Ok(Opened { store: Arc::new(store), partitions: None })
        }
    }
}

/// Who holds a store, for people.
fn who(config: &ControlConfig) -> String {
    let addresses: Vec<_> = config.grpc.iter().map(ToString::to_string).collect();
    format!("control plane at {}, process {}", addresses.join(", "), std::process::id())
}

/// Where the store is, for people.
fn place(config: &ControlConfig) -> StoreLocation {
    match &config.etcd {
        Some(etcd) => etcd.address.location(),
        None => config.data_dir.join(STORE_FILE).into(),
    }
}

/// Does what blocks on the disk with the file of a data directory.
async fn on_file<T: Send + 'static>(
    data_dir: &Path,
    call: impl FnOnce(PathBuf) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let path = data_dir.join(STORE_FILE);
    let place = path.clone().into();
    spawn_blocking(move || call(path))
        .await
        .unwrap_or_else(|stopped| Err(StoreError::Io { location: place, source: io::Error::other(stopped) }))
}

/// Makes the store of a control plane in etcd one that may have several parts. Nothing where it is one.
///
/// # Errors
/// When etcd does not answer, or holds something else.
pub async fn partition_store(config: &ControlConfig) -> Result<(), ControlError> {
    match &config.etcd {
        Some(etcd) => Ok(PartitionedStore::convert(etcd, &who(config), TERM).await?),
        None => Ok(()),
    }
}

/// Gives the store of a control plane a new id: once, for a copy that is put back. See [`RedbStore::renew_id`] and
/// [`fairmesh_store::EtcdStore::renew_id`].
///
/// # Errors
/// When there is no sound store, or another process has its file open.
pub async fn renew_store_id(config: &ControlConfig) -> Result<StoreId, ControlError> {
    Ok(match &config.etcd {
        Some(etcd) => partitions::renew_id(etcd).await?,
        None => on_file(&config.data_dir, RedbStore::renew_id).await?,
    })
}

/// Answers calls and watches on every listener.
fn serve_grpc(parts: &mut Parts, listeners: Vec<Listener>, services: &Services, closing: &CancellationToken) {
    for listener in listeners {
        let stop = closing.clone().cancelled_owned();
        let serving = transport::serve(services.clone(), listener, stop, DRAIN);
        parts.spawn(async { serving.await.map_err(|e| ended("gRPC", e)) });
    }
}

/// The calls of a control plane but those of its RIB.
fn routes(registry: &Registry, checks: &Checks, closing: &CancellationToken) -> Routes {
    let checker = CheckerService { checks: checks.clone(), closing: closing.clone() };
    Routes::new(rpc::registry_server(RegistryService::new(registry.clone())))
        .add_service(rpc::checker_server(checker))
}

/// The result of whichever part ends first; a panic is an end too.
async fn first_end(parts: &mut Parts) -> Result<(), ControlError> {
    match parts.join_next().await {
        None => Ok(()),
        Some(Ok(ended)) => ended,
        Some(Err(panicked)) => Err(ended("a part of the control plane", panicked)),
    }
}

fn ended(part: &'static str, reason: impl ToString) -> ControlError {
    ControlError::Ended { part, reason: reason.to_string() }
}
