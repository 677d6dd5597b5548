use std::net::SocketAddr;

use fairmesh_model::{Cursor, Revision, StoreId};
use fairmesh_wire::{
    handshake::{self, Connection},
    v1,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tonic::Code;

use crate::{
    house::House,
    support::{BOUND, Memory, Reader},
};

/// Connects once the agent listens.
async fn connect(house: &House) -> Connection {
    let connecting = async {
        loop {
            match handshake::connect(&house.socket, "test").await {
                Ok(connection) => return connection,
                Err(_) => tokio::task::yield_now().await,
            }
        }
    };
    timeout(BOUND, connecting).await.expect("the agent listens")
}

#[tokio::test]
async fn the_agent_says_where_it_is_and_where_to_write() {
    let house = House::new();
    let agent = house.agent();
    let connection = connect(&house).await;
    assert_eq!(connection.hello.location.unwrap().region.as_str(), "eu");
    assert_eq!(connection.hello.store, None, "it has met no control plane");
    let connection = connect(&house).await;
    let op = v1::Op { key: "/t/shop/services/cart".into(), value: None, condition: None };
    let refused = connection.rib().write(v1::WriteRequest { ops: vec![op] }).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("control.sock"), "{}", refused.message());
    let at = Cursor::at(Revision { store: StoreId(1), partition: 0, number: 1 });
    let read = v1::ReadRequest { prefixes: vec!["/a/".into()], at_least: Some(at.into()) };
    let refused =
        timeout(BOUND, connection.rib().read(read)).await.expect("nothing is waited for").unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("control.sock"), "{}", refused.message());
    agent.stop().await;
}

#[tokio::test]
async fn registry_calls_pass_through_and_say_when_nobody_is_there() {
    let house = House::new();
    let agent = house.agent();
    let connection = connect(&house).await;
    let away = connection.registry().renew(v1::RenewRequest::default()).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable);
    assert!(away.message().starts_with("no control plane answers this agent"), "{}", away.message());

    let control = house.control(&Memory::new(1)).await;
    // A prefix that is served tells that the agent is connected.
    let _reader = Reader::following(&[&house.socket], &["/a/"]).await;
    let answered = connection.registry().renew(v1::RenewRequest::default()).await.unwrap_err();
    assert_eq!(answered.code(), Code::Unimplemented, "the answer of an upstream that has no registry");
    agent.stop().await;
    control.stop().await;
}

async fn get(address: SocketAddr, path: &str) -> String {
    let asking = async {
        let mut stream = loop {
            match TcpStream::connect(address).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let request = format!("GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    timeout(BOUND, asking).await.expect("the agent answers")
}

#[tokio::test]
async fn metrics_tell_what_the_agent_holds_and_readiness_whether_it_can_answer() {
    let mut house = House::new();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    house.metrics = Some(free);
    let agent = house.agent();
    assert!(get(free, "/healthz").await.ends_with("ok\n"));
    let unready = get(free, "/readyz").await;
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("nothing is saved"), "{unready}");
    assert!(get(free, "/metrics").await.contains("fairmesh_agent_connected 0\n"));

    let memory = Memory::new(1);
    memory.put(&[("/a/1", "x")]);
    let control = house.control(&memory).await;
    let mut reader = Reader::following(&[&house.socket], &["/a/"]).await;
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
