//! A control plane for tests: the real RIB service over a real socket, and a registry that notes what it is told.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    Identity, Location, Prefix, RecordKey, Region, Revision, ServiceName, ShardMap, StoreId,
};
use fairmesh_rib::{
    Batch, Commit, Node,
    server::{Backend, RibServer, WriteError},
};
use fairmesh_wire::{
    rpc,
    shards::encode_map,
    transport::{Address, Listener, serve},
    v1::{self, registry_server::Registry},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{Request, Response, Status, service::Routes};

/// The longest that any test waits for anything.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// What the registry was told, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Register { state: v1::endpoint::State, region: String },
    Renew,
    Report(v1::endpoint::State),
    Drain,
    Deregister,
    Ready(Vec<u32>),
}

#[derive(Clone)]
pub(super) struct Facts {
    node: Node,
    region: Option<&'static str>,
    told: Arc<watch::Sender<Vec<Told>>>,
    /// Which processes spoke.
    pub(super) spoke: Arc<Mutex<BTreeSet<u64>>>,
    pub(super) forgets: Arc<AtomicBool>,
    pub(super) callers_moved: Arc<watch::Sender<bool>>,
    /// Whether it takes reports of shards and never answers them.
    pub(super) hangs: Arc<AtomicBool>,
}

pub(super) struct Control {
    pub(super) facts: Facts,
    pub(super) address: Address,
    stop: CancellationToken,
    serving: AbortOnDropHandle<()>,
}

impl Facts {
    /// What an agent in `region` would answer; a control plane without.
    pub(super) fn new(region: Option<&'static str>) -> Self {
        Self {
            node: Node::new(StoreId(1)),
            region,
            told: Arc::default(),
            spoke: Arc::default(),
            forgets: Arc::default(),
            callers_moved: Arc::new(watch::Sender::new(true)),
            hangs: Arc::default(),
        }
    }

    /// Serves these facts on a free port, or where a port was free before.
    pub(super) async fn serve(self, at: Option<&Address>) -> Control {
        let anywhere = Address::Tcp("127.0.0.1:0".into());
        let listener = Listener::bind(at.unwrap_or(&anywhere)).await.unwrap();
        let address = listener.address().unwrap();
        let registry = Routes::new(rpc::registry_server(self.clone()));
        let services = RibServer::new(self.clone(), CancellationToken::new()).with_services(registry);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serving = tokio::spawn(async move {
            serve(services, listener, stopped.cancelled(), Duration::ZERO).await.unwrap();
        });
        Control { facts: self, address, stop, serving: AbortOnDropHandle::new(serving) }
    }

    pub(super) fn told(&self) -> Vec<Told> {
        self.told.borrow().clone()
    }

    /// Waits until what was told satisfies `condition`.
    pub(super) async fn until(&self, condition: impl FnMut(&Vec<Told>) -> bool) {
        let mut told = self.told.subscribe();
        let met = tokio::time::timeout(BOUND, told.wait_for(condition)).await.map(|met| met.is_ok());
        assert!(met.unwrap_or(false), "told only {:?}", self.told());
    }

    /// Puts a shard map where servers watch.
    pub(super) fn publish(&self, service: &ServiceName, map: &ShardMap) {
        let entries: Vec<(RecordKey, Bytes)> = encode_map(service, map).into_iter().collect();
        let folder = Prefix::shards(service, None);
        let (revision, old) = self.node.read(&[folder]);
        let gone = old.into_iter().map(|(key, _)| (key, None));
        let kept = |key: &str| entries.iter().any(|(new, _)| new.to_string() == key);
        let mut changes: Vec<_> = gone.filter(|(key, _)| !kept(key)).collect();
        changes.extend(entries.iter().map(|(key, value)| (key.to_string().into(), Some(value.clone()))));
        self.node.apply(Commit { revision: revision.number + 1, changes });
    }

    fn heard<'a>(&self, instances: impl IntoIterator<Item = &'a v1::InstanceRef>) {
        self.spoke.lock().unwrap().extend(instances.into_iter().map(|who| who.incarnation));
    }

    fn note(&self, told: Told) {
        self.told.send_modify(|all| all.push(told));
    }
}

impl Control {
    /// Goes away, with every connection.
    pub(super) async fn stop(self) -> Facts {
        self.stop.cancel();
        self.serving.await.unwrap();
        self.facts
    }
}

impl Backend for Facts {
    fn node(&self) -> &Node {
        &self.node
    }

    fn software(&self) -> String {
        "test".into()
    }

    fn location(&self) -> Option<Location> {
        self.region.map(|region| Location::in_region(Region::new(region).unwrap()))
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::NotWritable("tests do not write here".into()))
    }
}

#[tonic::async_trait]
impl Registry for Facts {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        for registration in request.into_inner().registrations {
            let endpoint = registration.endpoint.unwrap();
            let region = endpoint.location.as_ref().unwrap().region.clone();
            self.spoke.lock().unwrap().insert(endpoint.labels["fairmesh.incarnation"].parse().unwrap());
            self.forgets.store(false, Ordering::Relaxed);
            self.note(Told::Register { state: endpoint.state(), region });
        }
        Ok(Response::new(v1::RegisterResponse { revision: None }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        self.note(Told::Renew);
        let instances = request.into_inner().instances;
        self.heard(&instances);
        let unknown = if self.forgets.load(Ordering::Relaxed) { instances } else { Vec::new() };
        Ok(Response::new(v1::RenewResponse { unknown }))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        for report in request.into_inner().reports {
            self.heard(&report.instance);
            self.note(Told::Report(report.state()));
        }
        Ok(Response::new(v1::ReportResponse { revision: None }))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        self.note(Told::Drain);
        let request = request.into_inner();
        self.heard(&request.instances);
        let deadline = Duration::from_millis(request.deadline_ms.into());
        let mut moved = self.callers_moved.subscribe();
        let moved = tokio::time::timeout(deadline, moved.wait_for(|moved| *moved)).await.is_ok();
        let behind = if moved { Vec::new() } else { vec!["agent host-7".to_owned()] };
        Ok(Response::new(v1::DrainResponse { revision: None, callers_moved: moved, behind }))
    }

    async fn deregister(
        &self,
        request: Request<v1::DeregisterRequest>,
    ) -> Result<Response<v1::DeregisterResponse>, Status> {
        self.heard(&request.into_inner().instances);
        self.note(Told::Deregister);
        Ok(Response::new(v1::DeregisterResponse { revision: None }))
    }

    async fn report_shards(
        &self,
        request: Request<v1::ReportShardsRequest>,
    ) -> Result<Response<v1::ReportShardsResponse>, Status> {
        let request = request.into_inner();
        self.heard(&request.instance);
        self.note(Told::Ready(request.ready));
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(v1::ReportShardsResponse {}))
    }

    async fn get_shards(
        &self,
        _: Request<v1::GetShardsRequest>,
    ) -> Result<Response<v1::GetShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn put_shards(
        &self,
        _: Request<v1::PutShardsRequest>,
    ) -> Result<Response<v1::PutShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn split_shard(
        &self,
        _: Request<v1::SplitShardRequest>,
    ) -> Result<Response<v1::PutShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn merge_shards(
        &self,
        _: Request<v1::MergeShardsRequest>,
    ) -> Result<Response<v1::PutShardsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn move_shard(
        &self,
        _: Request<v1::MoveShardRequest>,
    ) -> Result<Response<v1::MoveShardResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn report_shard_load(
        &self,
        request: Request<v1::ReportShardLoadRequest>,
    ) -> Result<Response<v1::ReportShardLoadResponse>, Status> {
        self.heard(&request.into_inner().instance);
        Ok(Response::new(v1::ReportShardLoadResponse::default()))
    }

    async fn read_shard_loads(
        &self,
        _: Request<v1::ReadShardLoadsRequest>,
    ) -> Result<Response<v1::ReadShardLoadsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn propose_moves(
        &self,
        _: Request<v1::ProposeMovesRequest>,
    ) -> Result<Response<v1::ProposeMovesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_moves(
        &self,
        _: Request<v1::ListMovesRequest>,
    ) -> Result<Response<v1::ListMovesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// An address that a server may be registered at.
pub(super) fn somewhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

/// Makes one call over a connection of its own, which closes when the answer is dropped with its sender.
pub(super) async fn send(
    address: SocketAddr,
    request: http::request::Builder,
) -> Result<http::Response<hyper::body::Incoming>, hyper::Error> {
    let stream = tokio::net::TcpStream::connect(address).await;
    let Ok(stream) = stream else { panic!("nobody listens on {address}") };
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection);
    sender.send_request(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await
}
