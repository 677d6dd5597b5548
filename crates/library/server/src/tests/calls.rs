//! The layer over real sockets: hyper for HTTP, tonic for gRPC.

use std::{collections::BTreeSet, convert::Infallible, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_model::{
    InstanceId, KeyRange, Probe, Region, Replica, ReplicaState, Role, Shard, ShardId, ShardKey, ShardMap,
};
use fairmesh_test_support::eventually;
use fairmesh_wire::{
    transport::{Channel, Transport, connect_channel_lazy},
    v1::{self, checker_client::CheckerClient, checker_server, rib_client::RibClient, rib_server},
};
use futures_util::{Stream, StreamExt as _, stream};
use http::{Request, Response, header::USER_AGENT};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tonic::{Code, Status, metadata::MetadataMap};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::{
    control::{FakeRegistry, send, unused_address},
    orca::OrcaReport,
};
use crate::{MeshServer, Outstanding, ServerLayer, serve_http, shards::ownership::Ownership};
use fairmesh_headers::{DEADLINE, Deadline, KEY, LOAD, LOAD_BIN, LOAD_PATH, ROLE, WRONG_SHARD};

/// Returns an unregistered server, for its layer and its socket.
async fn alone() -> (MeshServer, TcpListener, SocketAddr) {
    let control = FakeRegistry::new(Some("eu")).serve(None).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = MeshServer::builder("shop/cart").address(unused_address()).agent(control.address.clone());
    (server.start().await.unwrap(), listener, address)
}

/// Makes the server hold keys 0 to 99 in the role primary, by version 9 of the map.
fn hold_a_hundred_keys(layer: &ServerLayer) {
    let here = InstanceId::new("here").unwrap();
    let replica = Replica {
        instance: here.clone(),
        region: Region::new("eu").unwrap(),
        role: Role::new("primary").unwrap(),
        state: ReplicaState::Serving,
    };
    let shard = |id, start, replicas| Shard { id: ShardId(id), start: ShardKey(start), replicas };
    let shards = vec![shard(0, 0, vec![replica]), shard(1, 100, vec![])];
    let map = ShardMap { version: 9, interval: KeyRange::ALL, shards };
    layer.shared.ownership.store(Some(Arc::new(Ownership::new(&map, &here, &BTreeSet::new()))));
}

fn reported(text: &http::HeaderValue) -> Option<u32> {
    OrcaReport::from_text(text.to_str().unwrap()).unwrap().outstanding()
}

#[tokio::test]
async fn http_responses_report_other_calls_in_flight() {
    let (server, listener, address) = alone().await;
    let finish = Arc::new(Notify::new());
    let held = Arc::clone(&finish);
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let held = Arc::clone(&held);
        async move {
            if request.uri().path() == "/held" {
                held.notified().await;
            }
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("done"))))
        }
    });
    let serving = server.clone();
    tokio::spawn(async move { serve_http(listener, service, &serving).await });

    let alone = send(address, Request::get("/")).await.unwrap();
    assert_eq!(reported(&alone.headers()[LOAD]), Some(0));
    let held = tokio::spawn(send(address, Request::get("/held")));
    let cut = tokio::spawn(send(address, Request::get("/held")));
    eventually("two calls are in flight", || server.outstanding().calls == 2).await;
    let among_others = send(address, Request::get("/")).await.unwrap();
    assert_eq!(reported(&among_others.headers()[LOAD]), Some(2));

    // A disconnecting client removes its own call from the count.
    cut.abort();
    eventually("one call is in flight", || server.outstanding().calls == 1).await;
    finish.notify_waiters();
    let body = held.await.unwrap().unwrap().into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "done");
    eventually("nothing is in flight", || server.outstanding() == Outstanding::default()).await;
}

#[tokio::test]
async fn server_answers_load_polls_and_distance_probes_uncounted() {
    let layer = ServerLayer::default();
    hold_a_hundred_keys(&layer);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(request.uri().path().to_owned()))))
    }));
    layer.metric("queue", 7.5).unwrap();
    let (one, two) = (layer.shared.load.begin(None), layer.shared.load.begin(None));
    let activity = layer.shared.load.activity();
    // A key is ignored: the poll is for this server.
    let question = Request::get(LOAD_PATH).header(KEY, "500").body(()).unwrap();
    let polled = service.clone().oneshot(question).await.unwrap();
    assert_eq!((polled.status().as_u16(), reported(&polled.headers()[LOAD])), (204, Some(2)));
    assert!(polled.headers()[LOAD].to_str().unwrap().ends_with(",named_metrics.queue=7.5"));
    assert!(polled.into_body().is_end_stream());
    assert_eq!(layer.shared.load.activity(), activity, "a drain does not wait for it");
    let probe = Request::options("*").header(USER_AGENT, Probe::USER_AGENT).body(()).unwrap();
    assert_eq!(service.clone().oneshot(probe).await.unwrap().status(), 204, "a distance probe");
    assert_eq!(layer.shared.load.activity(), activity);
    for other in [Request::post(LOAD_PATH), Request::get(format!("{LOAD_PATH}/more"))] {
        let response = service.clone().oneshot(other.body(()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        assert!(response.into_body().collect().await.unwrap().to_bytes().starts_with(LOAD_PATH.as_bytes()));
    }
    drop((one, two));
}

#[tokio::test]
async fn http_calls_for_keys_of_other_servers_get_421() {
    let layer = ServerLayer::default();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("mine"))))
    }));
    let ask = |key: &'static str, role: &'static str| {
        let request = Request::get("/").header(KEY, key).header(ROLE, role).body(()).unwrap();
        let service = service.clone();
        async move { service.oneshot(request).await.unwrap() }
    };
    assert_eq!(ask("500", "primary").await.status(), 200, "without a map every call is served");
    hold_a_hundred_keys(&layer);
    assert_eq!(ask("99", "primary").await.status(), 200);
    assert_eq!(ask("0x63", "primary").await.status(), 200);
    assert_eq!(ask("ninety", "primary").await.status(), 200, "a malformed key is ignored");
    for (key, role) in [("100", "primary"), ("99", "secondary")] {
        let refused = ask(key, role).await;
        assert_eq!(
            (refused.status().as_u16(), &refused.headers()[WRONG_SHARD]),
            (421, &"9".parse().unwrap())
        );
        assert_eq!(reported(&refused.headers()[LOAD]), Some(0));
        let text = refused.into_body().collect().await.unwrap().to_bytes();
        assert!(text.starts_with(b"this server does not hold"));
    }
    assert_eq!(layer.outstanding(), Outstanding::default());
}

/// Two tonic services, one with unary calls and one with a stream.
#[derive(Clone, Default)]
pub(super) struct App {
    finish: Arc<Notify>,
}

type Holding = Pin<Box<dyn Stream<Item = Result<v1::CampaignResponse, Status>> + Send>>;

#[tonic::async_trait]
impl checker_server::Checker for App {
    type CampaignStream = Holding;

    async fn campaign(
        &self,
        request: tonic::Request<v1::CampaignRequest>,
    ) -> Result<tonic::Response<Holding>, Status> {
        let responses =
            stream::iter([Ok(v1::CampaignResponse::default()), Ok(v1::CampaignResponse::default())]);
        if request.metadata().contains_key("for-ever") {
            return Ok(tonic::Response::new(Box::pin(responses.chain(stream::pending()))));
        }
        Ok(tonic::Response::new(Box::pin(responses)))
    }

    async fn judge(
        &self,
        _: tonic::Request<v1::JudgeRequest>,
    ) -> Result<tonic::Response<v1::JudgeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn report_distances(
        &self,
        _: tonic::Request<v1::ReportDistancesRequest>,
    ) -> Result<tonic::Response<v1::ReportDistancesResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn report_probes(
        &self,
        _: tonic::Request<v1::ReportProbesRequest>,
    ) -> Result<tonic::Response<v1::ReportProbesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl rib_server::Rib for App {
    async fn hello(
        &self,
        _: tonic::Request<v1::HelloRequest>,
    ) -> Result<tonic::Response<v1::HelloResponse>, Status> {
        Err(Status::not_found("no such watcher"))
    }

    async fn write(
        &self,
        _: tonic::Request<v1::WriteRequest>,
    ) -> Result<tonic::Response<v1::WriteResponse>, Status> {
        self.finish.notified().await;
        Ok(tonic::Response::new(v1::WriteResponse::default()))
    }

    async fn read(
        &self,
        _: tonic::Request<v1::ReadRequest>,
    ) -> Result<tonic::Response<v1::ReadResponse>, Status> {
        Ok(tonic::Response::new(v1::ReadResponse::default()))
    }

    async fn watchers(
        &self,
        _: tonic::Request<v1::WatchersRequest>,
    ) -> Result<tonic::Response<v1::WatchersResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

/// Serves the app behind the layer on tonic's own server.
async fn grpc() -> (ServerLayer, Arc<Notify>, RibClient<Channel>, CheckerClient<Channel>) {
    let (layer, finish, address) = grpc_at().await;
    let channel = channel(address);
    (layer, finish, RibClient::new(channel.clone()), CheckerClient::new(channel))
}

async fn grpc_at() -> (ServerLayer, Arc<Notify>, SocketAddr) {
    let layer = ServerLayer::default();
    let finish = Arc::new(Notify::new());
    let app = App { finish: Arc::clone(&finish) };
    let incoming = tonic::transport::server::TcpIncoming::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = incoming.local_addr().unwrap();
    let router = tonic::transport::Server::builder()
        .layer(layer.clone())
        .add_service(rib_server::RibServer::new(app.clone()))
        .add_service(checker_server::CheckerServer::new(app));
    tokio::spawn(router.serve_with_incoming(incoming));
    (layer, finish, address)
}

fn channel(address: SocketAddr) -> Channel {
    connect_channel_lazy(&Transport::default(), &address.to_string().parse().unwrap())
}

/// Polls the load of a gRPC server over HTTP/2, as callers do.
async fn poll_load(address: SocketAddr) -> Response<hyper::body::Incoming> {
    let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    let question = Request::get(format!("http://cart.shop{LOAD_PATH}"));
    sender.send_request(question.body(Empty::<Bytes>::new()).unwrap()).await.unwrap()
}

fn reported_in(metadata: &MetadataMap) -> Option<u32> {
    let report = metadata.get_bin(LOAD_BIN.as_str()).unwrap().to_bytes().unwrap();
    OrcaReport::from_binary(&report).unwrap().outstanding()
}

#[tokio::test]
async fn grpc_responses_carry_load_report_in_trailers() {
    let (layer, finish, address) = grpc_at().await;
    let mut client = RibClient::new(channel(address));
    let mut other = client.clone();
    let held = tokio::spawn(async move { other.write(v1::WriteRequest::default()).await });
    eventually("one call is in flight", || layer.outstanding().calls == 1).await;

    let unary = client.read(v1::ReadRequest::default()).await.unwrap();
    assert_eq!(reported_in(unary.metadata()), Some(1));
    let mut streaming = CheckerClient::new(channel(address));
    let mut stream = streaming.campaign(v1::CampaignRequest::default()).await.unwrap().into_inner();
    while stream.message().await.unwrap().is_some() {}
    assert_eq!(reported_in(&stream.trailers().await.unwrap().unwrap()), Some(1));
    let without_body = client.hello(v1::HelloRequest::default()).await.unwrap_err();
    assert_eq!((without_body.code(), reported_in(without_body.metadata())), (Code::NotFound, Some(1)));

    let polled = poll_load(address).await;
    assert_eq!((polled.status().as_u16(), reported(&polled.headers()[LOAD])), (204, Some(1)));

    finish.notify_one();
    let held = held.await.unwrap().unwrap();
    assert_eq!(reported_in(held.metadata()), Some(0));
    eventually("nothing is in flight", || layer.outstanding() == Outstanding::default()).await;
}

#[tokio::test]
async fn cancelled_grpc_call_is_no_longer_counted() {
    let (layer, _finish, mut client, _) = grpc().await;
    let given_up = tokio::spawn(async move { client.write(v1::WriteRequest::default()).await });
    eventually("one call is in flight", || layer.outstanding().calls == 1).await;
    given_up.abort();
    eventually("nothing is in flight", || layer.outstanding() == Outstanding::default()).await;
}

fn for_key<T>(key: &'static str, message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("x-fairmesh-key", key.parse().unwrap());
    request
}

#[tokio::test]
async fn grpc_calls_for_keys_of_other_servers_get_failed_precondition() {
    let (layer, _finish, mut client, mut streaming) = grpc().await;
    hold_a_hundred_keys(&layer);
    client.read(for_key("99", v1::ReadRequest::default())).await.unwrap();
    let unary = client.read(for_key("100", v1::ReadRequest::default())).await.unwrap_err();
    let streaming = streaming.campaign(for_key("100", v1::CampaignRequest::default())).await.unwrap_err();
    for refused in [unary, streaming] {
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
        assert_eq!(refused.metadata().get(WRONG_SHARD.as_str()).unwrap(), "9");
        assert_eq!(reported_in(refused.metadata()), Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn long_grpc_response_counts_as_stream() {
    let layer = ServerLayer::default();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        let never = StreamBody::new(stream::pending::<Result<http_body::Frame<Bytes>, Infallible>>());
        Ok::<_, Infallible>(Response::new(never))
    }));
    let mut body = service.oneshot(Request::new(())).await.unwrap().into_body();
    let first = tokio::time::timeout(Duration::from_millis(500), body.frame()).await;
    assert!(first.is_err() && layer.outstanding() == Outstanding { calls: 1, streams: 0 });
    let later = tokio::time::timeout(Duration::from_secs(5), body.frame()).await;
    assert!(later.is_err() && layer.outstanding() == Outstanding { calls: 0, streams: 1 });
    drop(body);
    assert_eq!(layer.outstanding(), Outstanding::default());
}

#[tokio::test]
async fn wrong_shard_header_relayed_from_another_server_is_removed() {
    let layer = ServerLayer::default();
    let http = layer.layer(service_fn(async |_: Request<()>| {
        let response = Response::builder().status(421).header(WRONG_SHARD, "4");
        Ok::<_, Infallible>(response.body(Full::new(Bytes::new())).unwrap())
    }));
    let response = http.oneshot(Request::new(())).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers().get(WRONG_SHARD)), (421, None));

    let grpc = layer.layer(service_fn(async |_: Request<()>| {
        let trailers = [("grpc-status", "9"), ("fairmesh-wrong-shard", "4")];
        let trailers = trailers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let frame = http_body::Frame::trailers(trailers.into_iter().collect());
        Ok::<_, Infallible>(Response::new(StreamBody::new(stream::iter([Ok::<_, Infallible>(frame)]))))
    }));
    let call = Request::post("/").header("content-type", "application/grpc").body(()).unwrap();
    let response = grpc.oneshot(call).await.unwrap().into_body().collect().await.unwrap();
    let trailers = response.trailers().unwrap();
    assert_eq!((trailers.get(WRONG_SHARD), &trailers["grpc-status"]), (None, &"9".parse().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn call_deadline_is_in_request_extensions() {
    let service = ServerLayer::default().layer(service_fn(async |request: Request<()>| {
        let left = request.extensions().get().copied().map(Deadline::left);
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(format!("{left:?}")))))
    }));
    let mut call = Request::new(());
    for (deadline, left) in
        [(None, None), (Some("250"), Some(Duration::from_millis(250))), (Some("soon"), None)]
    {
        deadline.map(|text| call.headers_mut().insert(DEADLINE, text.parse().unwrap()));
        let response = service.clone().oneshot(call.clone()).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), format!("{left:?}"));
    }
}
