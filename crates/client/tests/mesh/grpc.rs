//! A generated tonic client over a handle, against a tonic server.

use std::net::SocketAddr;

use fairmesh_model::{Identity, Location, Prefix, Protocol, Revision, StoreId};
use fairmesh_rib::{
    Batch, Node,
    server::{Backend, RibServer, WriteError},
};
use fairmesh_wire::{v1, v1::rib_client::RibClient};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::Code;

use crate::rig::Rig;

/// Any gRPC service serves to test with; the one at hand has plain calls and two-way streams.
#[derive(Clone)]
struct Shop(Node);

impl Backend for Shop {
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

async fn shop() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = RibServer::new(Shop(Node::new(StoreId(9))), CancellationToken::new()).into_service();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

fn hello() -> v1::HelloRequest {
    v1::HelloRequest { oldest_version: 1, newest_version: 1, software: "test".into() }
}

#[tokio::test]
async fn a_generated_client_calls_by_name() {
    let rig = Rig::start().await;
    rig.replicated("shop/cart", Protocol::Grpc, &[shop().await]);
    let mesh = rig.mesh().await;
    let mut client = RibClient::new(mesh.service("shop/cart").unwrap());
    for _ in 0..10 {
        assert_eq!(client.hello(hello()).await.unwrap().into_inner().software, "shop");
    }
    assert_eq!(mesh.stats().reused, 9);

    let refused =
        client.hello(v1::HelloRequest { oldest_version: 9, newest_version: 9, ..hello() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "the server's own status arrives: {refused}");
    let mut nobody = RibClient::new(mesh.service("shop/none").unwrap());
    assert_eq!(nobody.hello(hello()).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_two_way_stream_goes_both_ways_at_once() {
    let rig = Rig::start().await;
    rig.replicated("shop/cart", Protocol::Grpc, &[shop().await]);
    let mut client = RibClient::new(rig.mesh().await.service("shop/cart").unwrap());
    let (asks, asked) = tokio::sync::mpsc::channel(4);
    let mut answers = client.watch(ReceiverStream::new(asked)).await.unwrap().into_inner();
    for folder in ["/a/", "/b/", "/c/"] {
        let subscribe =
            v1::Subscribe { prefix: Prefix::new(folder).unwrap().to_string(), ..Default::default() };
        asks.send(v1::WatchRequest { kind: Some(v1::watch_request::Kind::Subscribe(subscribe)) })
            .await
            .unwrap();
        loop {
            let answer = answers.next().await.unwrap().unwrap();
            if let Some(v1::watch_response::Kind::Snapshot(snapshot)) = answer.kind {
                assert_eq!(snapshot.prefix, folder);
                break;
            }
        }
    }
    drop(asks);
    while answers.next().await.is_some_and(|answer| answer.is_ok()) {}
}
