//! A generated tonic client that uses a handle, with a tonic server.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_model::{Identity, Location, Protocol, Revision, StoreId};
use fairmesh_rib::{
    Batch, Node,
    server::{RibServer, ServedRib, WriteError},
};
use fairmesh_wire::{
    v1,
    v1::{rib_client::RibClient, rib_server},
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status, Streaming, body::Body, server::StreamingService};
use tonic_prost::ProstCodec;

use crate::rig::Rig;

/// Any gRPC service would do for this test; this one has unary calls.
#[derive(Clone)]
struct Shop(Node);

impl ServedRib for Shop {
    fn node(&self) -> &Node {
        &self.0
    }

    fn software(&self) -> String {
        "shop".into()
    }

    fn location(&self) -> Option<Location> {
        None
    }

    async fn write(&self, _: Batch, _: Identity) -> Result<Revision, WriteError> {
        Err(WriteError::Failed("the shop is full".into()))
    }
}

/// A service with one bidirectional stream, which it echoes.
#[derive(Clone, Copy)]
struct Echo;

impl StreamingService<String> for Echo {
    type Response = String;
    type ResponseStream = Streaming<String>;
    type Future = Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<String>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl tonic::server::NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl tower::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut grpc = tonic::server::Grpc::new(ProstCodec::<String, String>::default());
        Box::pin(async move { Ok(grpc.streaming(Echo, request).await) })
    }
}

async fn shop() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let rib = RibServer::new(Shop(Node::new(StoreId(9))), CancellationToken::new());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server =
        tonic::transport::Server::builder().add_service(rib_server::RibServer::new(rib)).add_service(Echo);
    tokio::spawn(server.serve_with_incoming(incoming));
    address
}

fn hello() -> v1::HelloRequest {
    v1::HelloRequest { oldest_version: 1, newest_version: 1, software: "test".into(), ..Default::default() }
}

#[tokio::test]
async fn generated_tonic_client_calls_service_by_name() {
    let rig = Rig::start().await;
    rig.replicated("shop/cart", Protocol::Grpc, &[shop().await]);
    let mesh = rig.mesh().await;
    let mut client = RibClient::new(mesh.service("shop/cart").unwrap());
    for _ in 0..10 {
        assert_eq!(client.hello(hello()).await.unwrap().into_inner().software, "shop");
    }
    assert_eq!(mesh.stats().connection_reuses, 9);

    let refused =
        client.hello(v1::HelloRequest { oldest_version: 9, newest_version: 9, ..hello() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "the server's own status arrives: {refused}");
    let mut nobody = RibClient::new(mesh.service("shop/none").unwrap());
    assert_eq!(nobody.hello(hello()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn bidirectional_stream_flows_both_ways_concurrently() {
    let rig = Rig::start().await;
    rig.replicated("shop/cart", Protocol::Grpc, &[shop().await]);
    let mut client = tonic::client::Grpc::new(rig.mesh().await.service("shop/cart").unwrap());
    client.ready().await.unwrap();
    let (asks, asked) = tokio::sync::mpsc::channel(4);
    let (path, codec) = ("/test.Echo/Talk".parse().unwrap(), ProstCodec::<String, String>::default());
    let answers = client.streaming(Request::new(ReceiverStream::new(asked)), path, codec).await;
    let mut answers = answers.unwrap().into_inner();
    for said in ["a", "b", "c"] {
        asks.send(said.to_owned()).await.unwrap();
        assert_eq!(answers.next().await.unwrap().unwrap(), said);
    }
    drop(asks);
    assert!(answers.next().await.is_none());
}
