//! Handshakes and serving over real sockets.

use std::time::Duration;

use crate::support::*;
use fairmesh_model::Identity;
use fairmesh_wire::{
    handshake::{ConnectError, connect, is_version_refusal, negotiate},
    transport::{Address, Transport, connect_channel, serve},
    v1::{HelloRequest, ReadRequest, WatchersRequest, rib_client::RibClient, watch_response},
    watch::Watch,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Request, Status, service::Routes};

const NEVER: Duration = Duration::from_secs(3600);

async fn caller_seen_at(address: &Address) -> (String, String) {
    let connection = connect(&Default::default(), address, "tester\n7 é").await.unwrap();
    assert_eq!(connection.hello, hello(1));
    let response = connection.rib().watchers(WatchersRequest::default()).await.unwrap().into_inner();
    let caller = response.watchers[0].clone();
    (caller.software, caller.identity)
}

#[tokio::test]
async fn call_over_tcp_is_anonymous() {
    let served = serve_stub(Stub::default(), &free_port(), NEVER).await;
    let caller = soon(caller_seen_at(&served.address)).await;
    assert_eq!(caller, ("tester?7 ?".to_owned(), Identity::Anonymous.to_string()));
    soon(served.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn call_over_unix_socket_carries_caller_uid() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("deep/er/agent.sock"));
    let served = serve_stub(Stub::default(), &address, NEVER).await;
    let (_, identity) = soon(caller_seen_at(&address)).await;
    assert_eq!(identity, own_uid().to_string());
    soon(served.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn call_without_supported_protocol_version_is_rejected_with_hint() {
    let served = serve_stub(Stub::default(), &free_port(), NEVER).await;
    let channel = soon(connect_channel(&Default::default(), &served.address)).await.unwrap();
    let mut client = RibClient::new(channel);
    for (version, hint) in [
        (None, "Rib/Hello first"),
        (Some("2"), "upgrade the server"),
        (Some("0"), "upgrade the caller"),
        (Some("one"), "not a whole number"),
    ] {
        let mut request = Request::new(WatchersRequest::default());
        if let Some(version) = version {
            request.metadata_mut().insert("fairmesh-version", version.parse().unwrap());
        }
        let status = soon(client.watchers(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(is_version_refusal(&status), "distinguished from other errors, also over the wire");
        assert!(status.message().contains(hint), "{version:?}: {}", status.message());
    }
    let mut request = Request::new(WatchersRequest::default());
    request.metadata_mut().insert("fairmesh-version", "1".parse().unwrap());
    assert!(soon(client.watchers(request)).await.is_ok());
}

#[test]
fn handshake_chooses_newest_common_protocol_version() {
    let ask = |oldest_version, newest_version| {
        negotiate(&HelloRequest {
            oldest_version,
            newest_version,
            software: String::new(),
            ..Default::default()
        })
    };
    assert_eq!(ask(1, 1).unwrap(), 1);
    assert_eq!(ask(1, 9).unwrap(), 1);
    let too_new = ask(2, 9).unwrap_err();
    assert!(is_version_refusal(&too_new));
    assert!(!is_version_refusal(&Status::failed_precondition("something else")));
    assert!(too_new.message().contains("upgrade the server"), "{}", too_new.message());
    for (oldest, newest) in [(0, 0), (0, 1), (3, 2)] {
        assert_eq!(ask(oldest, newest).unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn peer_that_chooses_unknown_protocol_version_is_refused() {
    let stub = Stub { version: Some(9), ..Stub::default() };
    let served = serve_stub(stub, &free_port(), NEVER).await;
    let error = soon(connect(&Default::default(), &served.address, "tester")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Version { .. }), "{error}");
    assert!(error.to_string().contains("version 9"), "{error}");
}

#[tokio::test]
async fn unreachable_server_is_distinguished_from_foreign_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.sock");
    let address = Address::Unix(path.clone());
    let error = soon(connect(&Default::default(), &address, "tester")).await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("agent.sock"), "{error}");
    // Accepts connections into its backlog and never responds.
    let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = soon(connect(&Default::default(), &address, "tester")).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoHello { .. }), "{error}");
}

#[tokio::test]
async fn call_in_flight_finishes_while_server_drains() {
    let stub = Stub::default();
    let served = serve_stub(stub.clone(), &free_port(), NEVER).await;
    let connection = soon(connect(&Default::default(), &served.address, "tester")).await.unwrap();
    let mut rib = connection.rib();
    let call = tokio::spawn(async move { rib.read(ReadRequest::default()).await });
    soon(stub.reading.acquire()).await.unwrap().forget();
    let address = served.address.clone();
    let stopped = served.stop();
    // A stop closes the port first.
    soon(async { while connect_channel(&Default::default(), &address).await.is_ok() {} }).await;
    assert!(!stopped.is_finished());
    stub.reads.add_permits(1);
    assert!(soon(call).await.unwrap().is_ok());
    soon(stopped).await.unwrap().unwrap();
}

#[tokio::test]
async fn open_watch_does_not_delay_server_stop_beyond_drain() {
    let served = serve_stub(Stub::default(), &free_port(), Duration::from_millis(50)).await;
    let connection = soon(connect(&Default::default(), &served.address, "tester")).await.unwrap();
    let mut watch = soon(connection.watch()).await.unwrap();
    assert!(soon(watch.next()).await.is_ok());
    soon(served.stop()).await.unwrap().unwrap();
    assert!(soon(watch.next()).await.is_err());
}

#[tokio::test]
async fn opened_watch_has_server_hello_and_server_knows_client_name_and_uid() {
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("agent.sock"));
    let served = serve_stub(Stub::default(), &address, Duration::ZERO).await;
    let mut watch = soon(Watch::open(&Default::default(), &address, "tester\n7 é")).await.unwrap();
    assert_eq!(watch.hello(), &hello(1));
    let said = soon(watch.next()).await.unwrap().kind;
    let Some(watch_response::Kind::Refused(said)) = said else { panic!("{said:?}") };
    assert_eq!((said.prefix, said.reason), ("tester?7 ?".into(), own_uid().to_string()));
    soon(served.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn connection_without_preamble_goes_to_grpc_server() {
    let served = serve_stub(Stub::default(), &free_port(), Duration::ZERO).await;
    let Address::Tcp(at) = served.address.clone() else { panic!("a TCP server") };
    for first in ["FMWATCH2", "nonsense", "F"] {
        let mut stranger = tokio::net::TcpStream::connect(&at).await.unwrap();
        for byte in first.bytes() {
            // One byte at a time, as the network may deliver them. The server may close the connection at the first
            // byte.
            let _ = stranger.write_all(&[byte]).await;
            tokio::task::yield_now().await;
        }
        let _ = stranger.shutdown().await;
        let mut response = Vec::new();
        let _ = soon(stranger.read_to_end(&mut response)).await;
        assert!(!response.windows(4).any(|bytes| bytes == b"stub"), "no hello for {first}");
    }
    assert!(
        soon(connect(&Default::default(), &served.address, "tester")).await.is_ok(),
        "the server keeps serving"
    );
    soon(served.stop()).await.unwrap().unwrap();
}

#[tokio::test]
async fn process_that_serves_no_rib_closes_watches() {
    let listener = Transport::default().bind(&free_port()).await.unwrap();
    let address = listener.address().unwrap();
    let serving = tokio::spawn(serve(Routes::default(), listener, std::future::pending(), Duration::ZERO));
    let error = soon(Watch::open(&Default::default(), &address, "tester")).await.unwrap_err();
    assert!(matches!(error, ConnectError::NoHello { .. }), "{error}");
    serving.abort();
}
