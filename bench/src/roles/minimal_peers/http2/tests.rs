use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpListener;

use super::{
    super::super::{
        BoxError, GrpcCall, HttpCall, Protocol,
        servers::{routes, serve_plain},
        static_client,
    },
    Caller, serve,
};
use crate::load_generator::Call;

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Makes enough calls that windows are updated and headers refer to the dynamic table.
async fn calls(call: impl Call) {
    for _ in 0..300 {
        call.call().await.unwrap();
    }
}

#[tokio::test]
async fn minimal_benchmark_callers_work_with_other_servers() {
    for (protocol, payload) in
        [(Protocol::Http2, 1), (Protocol::Http2, 4096), (Protocol::Grpc, 0), (Protocol::Grpc, 4096)]
    {
        let (listener, address) = listen().await;
        tokio::spawn(serve_plain(listener, routes(protocol), None));
        calls(Caller::connect(protocol, &[address], payload).await.unwrap()).await;
    }
}

#[tokio::test]
async fn minimal_benchmark_servers_work_with_other_callers() -> Result<(), BoxError> {
    for payload in [0, 4096] {
        let (listener, address) = listen().await;
        tokio::spawn(serve(listener, Protocol::Http2));
        let call = HttpCall::new(static_client::Http2::connect(&[address], None).await?, payload);
        calls(HttpCall { uri: http::Uri::from_static("http://http2.bench/echo"), ..call }).await;
        let (listener, address) = listen().await;
        tokio::spawn(serve(listener, Protocol::Grpc));
        calls(GrpcCall::new(static_client::Http2::connect(&[address], None).await?, payload)).await;
    }
    Ok(())
}

#[tokio::test]
async fn minimal_caller_reports_wrong_response_as_error() {
    // A gRPC server rejects an invalid message with trailers only.
    let (listener, address) = listen().await;
    tokio::spawn(serve_plain(listener, routes(Protocol::Grpc), None));
    let call = Caller::connect(Protocol::Http2, &[address], 16).await.unwrap();
    call.call().await.unwrap_err();
}
