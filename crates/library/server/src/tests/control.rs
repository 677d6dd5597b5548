//! A control plane for tests: the real RIB service over a real socket, and a registry that records requests.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use fairmesh_model::{
    Identity, Location, Prefix, RecordKey, Region, Revision, ServiceName, ShardMap, StoreId,
};
use fairmesh_rib::{
    Batch, Commit, Node,
    server::{RibServer, ServedRib, WriteError},
};
use fairmesh_wire::{
    grpc_stubs,
    shard_encoding::encode_map,
    transport::{Address, Transport, serve},
    v1::{self, registry_server::Registry, signals_server::Signals},
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tonic::{Request, Response, Status, service::Routes};

/// Maximum time that a test waits.
pub(super) const BOUND: Duration = Duration::from_secs(20);

/// Requests to the registry, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RegistryRequest {
    Register { state: v1::endpoint::State, region: String, mtls: bool },
    Renew,
    Report(v1::endpoint::State),
    Drain,
    Deregister,
    Ready(Vec<u32>),
}

#[derive(Clone)]
pub(super) struct FakeRegistry {
    node: Node,
    pub(super) region: Option<&'static str>,
    requests: Arc<watch::Sender<Vec<RegistryRequest>>>,
    /// Incarnations in the requests.
    pub(super) spoke: Arc<Mutex<BTreeSet<u64>>>,
    pub(super) forgets: Arc<AtomicBool>,
    pub(super) callers_moved: Arc<watch::Sender<bool>>,
    /// Whether the registry accepts shard reports but never responds.
    pub(super) hangs: Arc<AtomicBool>,
    /// Whether the registry refuses drains at once, as if it had lost its store.
    pub(super) refuses_drains: Arc<AtomicBool>,
    /// Number of calls in reports of counts.
    pub(super) counted: Arc<AtomicU64>,
}

pub(super) struct Control {
    pub(super) registry: FakeRegistry,
    pub(super) address: Address,
    stop: CancellationToken,
    serving: AbortOnDropHandle<()>,
}

impl FakeRegistry {
    /// Responds as an agent in `region`, or as a control plane without a region.
    pub(super) fn new(region: Option<&'static str>) -> Self {
        Self {
            node: Node::new(StoreId(1)),
            region,
            requests: Arc::default(),
            spoke: Arc::default(),
            forgets: Arc::default(),
            callers_moved: Arc::new(watch::Sender::new(true)),
            hangs: Arc::default(),
            refuses_drains: Arc::default(),
            counted: Arc::default(),
        }
    }

    /// Serves on a free port, or on the port of an earlier server.
    pub(super) async fn serve(self, at: Option<&Address>) -> Control {
        let anywhere = Address::Tcp("127.0.0.1:0".into());
        let listener = Transport::default().bind(at.unwrap_or(&anywhere)).await.unwrap();
        let address = listener.address().unwrap();
        let registry = Routes::new(grpc_stubs::registry_server(self.clone()));
        let registry = registry.add_service(grpc_stubs::signals_server(self.clone()));
        let services = RibServer::new(self.clone(), CancellationToken::new()).with_services(registry);
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let serving = tokio::spawn(async move {
            serve(services, listener, stopped.cancelled(), Duration::ZERO).await.unwrap();
        });
        Control { registry: self, address, stop, serving: AbortOnDropHandle::new(serving) }
    }

    pub(super) fn requests(&self) -> Vec<RegistryRequest> {
        self.requests.borrow().clone()
    }

    /// Waits until the requests satisfy `condition`.
    pub(super) async fn until(&self, condition: impl FnMut(&Vec<RegistryRequest>) -> bool) {
        let mut requests = self.requests.subscribe();
        let met = tokio::time::timeout(BOUND, requests.wait_for(condition)).await.map(|met| met.is_ok());
        assert!(met.unwrap_or(false), "only {:?}", self.requests());
    }

    /// Publishes a shard map to watchers.
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

    fn record_incarnations<'a>(&self, instances: impl IntoIterator<Item = &'a v1::InstanceRef>) {
        self.spoke.lock().unwrap().extend(instances.into_iter().map(|who| who.incarnation));
    }

    fn note(&self, request: RegistryRequest) {
        self.requests.send_modify(|all| all.push(request));
    }
}

impl Control {
    /// Stops the control plane and closes all its connections.
    pub(super) async fn stop(self) -> FakeRegistry {
        self.stop.cancel();
        self.serving.await.unwrap();
        self.registry
    }
}

impl ServedRib for FakeRegistry {
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
impl Registry for FakeRegistry {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        for registration in request.into_inner().registrations {
            let endpoint = registration.endpoint.unwrap();
            let region = endpoint.location.as_ref().unwrap().region.clone();
            self.spoke.lock().unwrap().insert(endpoint.labels["fairmesh.incarnation"].parse().unwrap());
            self.forgets.store(false, Ordering::Relaxed);
            self.note(RegistryRequest::Register { state: endpoint.state(), region, mtls: endpoint.mtls });
        }
        Ok(Response::new(v1::RegisterResponse { revision: None }))
    }

    async fn renew(&self, request: Request<v1::RenewRequest>) -> Result<Response<v1::RenewResponse>, Status> {
        self.note(RegistryRequest::Renew);
        let instances = request.into_inner().instances;
        self.record_incarnations(&instances);
        let unknown = if self.forgets.load(Ordering::Relaxed) { instances } else { Vec::new() };
        Ok(Response::new(v1::RenewResponse { unknown }))
    }

    async fn report(
        &self,
        request: Request<v1::ReportRequest>,
    ) -> Result<Response<v1::ReportResponse>, Status> {
        for report in request.into_inner().reports {
            self.record_incarnations(&report.instance);
            self.note(RegistryRequest::Report(report.state()));
        }
        Ok(Response::new(v1::ReportResponse { revision: None }))
    }

    async fn drain(&self, request: Request<v1::DrainRequest>) -> Result<Response<v1::DrainResponse>, Status> {
        self.note(RegistryRequest::Drain);
        if self.refuses_drains.load(Ordering::Relaxed) {
            return Err(Status::unavailable("there is no store"));
        }
        let request = request.into_inner();
        self.record_incarnations(&request.instances);
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
        self.record_incarnations(&request.into_inner().instances);
        self.note(RegistryRequest::Deregister);
        Ok(Response::new(v1::DeregisterResponse { revision: None }))
    }

    async fn report_shards(
        &self,
        request: Request<v1::ReportShardsRequest>,
    ) -> Result<Response<v1::ReportShardsResponse>, Status> {
        let request = request.into_inner();
        self.record_incarnations(&request.instance);
        self.note(RegistryRequest::Ready(request.ready));
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
        self.record_incarnations(&request.into_inner().instance);
        Ok(Response::new(v1::ReportShardLoadResponse::default()))
    }

    async fn read_shard_loads(
        &self,
        _: Request<v1::ReadShardLoadsRequest>,
    ) -> Result<Response<v1::ReadShardLoadsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn read_plaintext_callers(
        &self,
        _: Request<v1::ReadPlaintextCallersRequest>,
    ) -> Result<Response<v1::ReadPlaintextCallersResponse>, Status> {
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

#[tonic::async_trait]
impl Signals for FakeRegistry {
    async fn report_gateway(
        &self,
        _: tonic::Request<v1::ReportGatewayRequest>,
    ) -> Result<tonic::Response<v1::ReportGatewayResponse>, Status> {
        Err(Status::unimplemented("a server reports none"))
    }

    async fn report(
        &self,
        request: Request<v1::ReportSignalsRequest>,
    ) -> Result<Response<v1::ReportSignalsResponse>, Status> {
        let counts = request.into_inner().counts.unwrap_or_default();
        let rows = counts.intervals.iter().flat_map(|interval| &interval.calls);
        self.counted.fetch_add(rows.map(|row| row.calls).sum(), Ordering::Relaxed);
        Ok(Response::new(v1::ReportSignalsResponse::default()))
    }
}

/// An address to register.
pub(super) fn unused_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 8080))
}

/// Makes one call over its own connection, which closes when the response is dropped.
pub(super) async fn send(
    address: SocketAddr,
    request: http::request::Builder,
) -> Result<http::Response<hyper::body::Incoming>, hyper::Error> {
    let stream = tokio::net::TcpStream::connect(address).await;
    let Ok(stream) = stream else { panic!("no server on {address}") };
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    tokio::spawn(connection);
    sender.send_request(request.body(http_body_util::Empty::<Bytes>::new()).unwrap()).await
}

/// Waits until `condition` holds.
pub(super) async fn until(mut condition: impl FnMut() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(BOUND, met).await.is_ok(), "timed out");
}
