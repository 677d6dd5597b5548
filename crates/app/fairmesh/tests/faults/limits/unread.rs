//! Responses that the peer does not read.

use std::time::Duration;

use bytes::Bytes;
use fairmesh_wire::v1::ReadRequest;
use http::Request;
use prost::Message as _;
use tokio::{
    net::TcpStream,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::fleet::{Fleet, connection, metric, read};
use crate::harness::{beside_others, run, until};

const UNREAD: &str = "fairmesh_control_unread_responses_bytes";
const CALLS: usize = 200;

/// Calls on one connection, whose windows admit one byte of each response.
async fn call(to: &str, calls: &mut JoinSet<()>) {
    let mut client = h2::client::Builder::new();
    let stream = TcpStream::connect(to).await.unwrap();
    let (mut requests, connection) =
        client.initial_window_size(1).handshake::<_, Bytes>(stream).await.unwrap();
    calls.spawn(async move { drop(connection.await) });
    let everything = ReadRequest { prefixes: vec!["/".into()], at_least: None }.encode_to_vec();
    let length = u32::try_from(everything.len()).unwrap().to_be_bytes();
    let message = Bytes::from([&[0], &length[..], &everything].concat());
    for _ in 0..CALLS {
        requests = requests.ready().await.unwrap();
        let request = Request::post("http://mesh/fairmesh.v1.Rib/Read")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("fairmesh-version", "1")
            .body(())
            .unwrap();
        let (response, mut body) = requests.send_request(request, false).unwrap();
        body.send_data(message.clone(), true).unwrap();
        calls.spawn(async move {
            let _response = response.await;
            std::future::pending().await
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_use_bounded_memory() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let name = "n".repeat(50);
    let yaml: String =
        (0..2000).map(|n| format!("---\n{{kind: Service, name: shop/{name}-{n}}}\n")).collect();
    let mut apply = tokio::process::Command::new(env!("CARGO_BIN_EXE_fairmesh"));
    apply.args(["apply", "-f", "-", "--control", &fleet.control_grpc]);
    run(apply, &yaml, Duration::from_secs(60)).await.ok();

    let mut calls = JoinSet::new();
    call(&fleet.control_grpc, &mut calls).await;
    let unread = async || metric(&fleet.control_http, UNREAD).await;
    until("its responses fill their part", async || unread().await >= f64::from(8 << 20)).await;
    let honest = connection(&fleet.control_grpc).await;
    for _ in 0..20 {
        timeout(Duration::from_secs(5), read(&honest)).await.expect("others are served").unwrap();
        sleep(Duration::from_millis(20)).await;
    }
    let most = unread().await;
    assert!(most < f64::from(10 << 20), "{most} bytes");
    calls.shutdown().await;
    until("what a connection leaves goes with it", async || unread().await == 0.0).await;
}
