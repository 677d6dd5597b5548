use std::net::SocketAddr;

use fairmesh_model::{Cursor, Revision, StoreId};
use fairmesh_test_support::free_port;
use fairmesh_wire::{
    handshake::{self, Connection},
    v1,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::Code;

use crate::{
    fixture::AgentFixture,
    support::{BOUND, Memory, Reader},
};

/// Connects once the agent listens.
async fn connect(fixture: &AgentFixture) -> Connection {
    let connecting = async {
        loop {
            match handshake::connect(&Default::default(), &fixture.socket, "test").await {
                Ok(connection) => return connection,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    timeout(BOUND, connecting).await.expect("the agent listens")
}

#[tokio::test]
async fn agent_tells_its_location_and_names_control_plane_when_refusing_writes() {
    let fixture = AgentFixture::new();
    let agent = fixture.agent();
    let connection = connect(&fixture).await;
    assert_eq!(connection.hello.location.unwrap().region.as_str(), "eu");
    assert_eq!(connection.hello.store, None, "not connected to a control plane yet");
    let connection = connect(&fixture).await;
    let op = v1::Op { key: "/t/shop/services/cart".into(), value: None, condition: None };
    let refused = connection.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("control.sock"), "{}", refused.message());
    let at = Cursor::at(Revision { store: StoreId(1), partition: 0, number: 1 });
    let read = v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: Some(at.into()) };
    let refused =
        timeout(BOUND, connection.rib().read(read)).await.expect("refused without waiting").unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("control.sock"), "{}", refused.message());
    agent.stop().await;
}

#[tokio::test]
async fn registry_calls_are_forwarded_or_unavailable_without_control_plane() {
    let fixture = AgentFixture::new();
    let agent = fixture.agent();
    let connection = connect(&fixture).await;
    let away = connection.registry().renew(v1::RenewRequest::default()).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable);
    assert!(away.message().starts_with("no control plane answers this agent"), "{}", away.message());

    let control = fixture.control(&Memory::new(1)).await;
    let forwarded = async {
        loop {
            // Until the agent has connected; attempts become less frequent.
            match connection.registry().renew(v1::RenewRequest::default()).await.unwrap_err() {
                away if away.code() == Code::Unavailable => {}
                other => return other,
            }
        }
    };
    let forwarded = timeout(BOUND, forwarded).await.expect("the agent connects");
    assert_eq!(forwarded.code(), Code::Unimplemented, "the response of an upstream without a registry");
    agent.stop().await;
    control.stop().await;
}

async fn get(address: SocketAddr, path: &str) -> String {
    let exchange = async {
        let mut stream = loop {
            match TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    };
    timeout(BOUND, exchange).await.expect("the agent responds")
}

#[tokio::test]
async fn agent_metrics_describe_its_copy_and_readiness_requires_usable_copy() {
    let mut fixture = AgentFixture::new();
    let free = ([127, 0, 0, 1], free_port()).into();
    fixture.metrics = Some(free);
    let agent = fixture.agent();
    assert!(get(free, "/healthz").await.ends_with("ok\n"));
    let unready = get(free, "/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("no copy is saved"), "{unready}");
    assert!(get(free, "/metrics").await.contains("fairmesh_agent_connected 0\n"));

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = fixture.control(&memory).await;
    let mut reader = Reader::following(&[&fixture.socket], &["/a/"]).await;
    memory.put(&[("/a/1", "y")]);
    reader.update().await;
    assert!(get(free, "/readyz").await.starts_with("HTTP/1.1 200"));
    let page = get(free, "/metrics").await;
    for line in [
        "connected 1",
        "subscriptions 1",
        "watchers 1",
        "data_age_seconds 0.0",
        "deltas_total 1",
        "snapshots_total 1",
    ] {
        assert!(page.contains(&format!("fairmesh_agent_{line}\n")), "{line} in {page}");
    }
    agent.stop().await;
    control.stop().await;
}
