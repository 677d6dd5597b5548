//! The front against servers of the test, through a mesh without control plane and agent.

use std::net::SocketAddr;

use axum::{Router, body::Body, routing::get};
use fairmesh_client::{FaultKind, FixedMesh, Injection, Protocol};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use shop_front::{
    cart::{Carts, proto::cart_server::CartServer},
    front,
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tower::ServiceExt as _;

/// A server of the test; it also stands for one outside the mesh.
async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn catalog() -> Router {
    let traced = async |headers: HeaderMap| headers["traceparent"].to_str().unwrap().to_owned();
    Router::new()
        .route("/items/tea", get(traced))
        .route("/items", get(async || "tea, milk").post(async |items: String| format!("imported {items}")))
}

async fn cart() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = tonic::transport::Server::builder().add_service(CartServer::new(Carts::default()));
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// The front's response to one request.
async fn call(mesh: &FixedMesh, request: http::request::Builder, body: String) -> (StatusCode, String) {
    let front = front::router(mesh.mesh()).unwrap();
    let response = front.oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(text.to_vec()).unwrap())
}

#[tokio::test]
async fn calls_of_handler_carry_trace_of_its_request() {
    let mesh = FixedMesh::new().unwrap();
    mesh.serve("shop/catalog", Protocol::Http1, [serve(catalog()).await]).await.unwrap();
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let request = Request::get("/items/tea").header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let (status, text) = call(&mesh, request, String::new()).await;
    assert!(status.is_success() && text.contains(trace), "{status} {text}");
}

#[tokio::test]
async fn mesh_fault_becomes_response_of_handler() {
    let mesh = FixedMesh::new().unwrap();
    mesh.serve("shop/catalog", Protocol::Http1, [serve(catalog()).await]).await.unwrap();
    mesh.inject("shop/catalog", Injection::Fault(FaultKind::Deadline)).await.unwrap();
    let (status, _) = call(&mesh, Request::get("/items/tea"), String::new()).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    mesh.inject("shop/catalog", None).await.unwrap();
    let (status, text) = call(&mesh, Request::get("/items"), String::new()).await;
    assert_eq!((status, text.as_str()), (StatusCode::NOT_FOUND, ""), "the front has no such route");
}

#[tokio::test]
async fn generated_client_calls_server_that_holds_key() {
    let mesh = FixedMesh::new().unwrap();
    let (low, high) = (cart().await, cart().await);
    mesh.serve_shards("shop/cart", Protocol::Grpc, [(0, low), (100, high)]).await.unwrap();
    for (customer, items) in [(7, "1"), (7, "2"), (107, "1")] {
        let request = Request::post(format!("/carts/{customer}/tea"));
        assert_eq!(call(&mesh, request, String::new()).await, (StatusCode::OK, items.into()));
    }
    mesh.inject("shop/cart", Injection::Fault(FaultKind::Unreachable)).await.unwrap();
    let (status, text) = call(&mesh, Request::post("/carts/7/tea"), String::new()).await;
    assert!(status == StatusCode::BAD_GATEWAY && text.contains("unreachable"), "{status} {text}");
}

#[tokio::test]
async fn bodies_pass_between_reqwest_and_mesh() {
    let mesh = FixedMesh::new().unwrap();
    let server = serve(catalog()).await;
    mesh.serve("shop/catalog", Protocol::Http1, [server]).await.unwrap();
    let url = format!("http://{server}/items");
    for path in ["/import", "/backup"] {
        let passed = call(&mesh, Request::post(path), url.clone()).await;
        assert_eq!(passed, (StatusCode::OK, "imported tea, milk".into()), "{path}");
    }
}

#[tokio::test]
async fn error_report_contains_fault_text_once() {
    let mesh = FixedMesh::new().unwrap();
    let absent: SocketAddr = "127.0.0.1:1".parse().unwrap();
    mesh.serve("shop/catalog", Protocol::Http1, [absent]).await.unwrap();
    let request = || Request::get("/").body(fairmesh_client::Body::empty()).unwrap();
    let catalog = mesh.mesh().service("shop/catalog").unwrap();
    // Over tower too, where the caller is no client of gRPC.
    for fault in [catalog.send(request()).await.unwrap_err(), catalog.oneshot(request()).await.unwrap_err()] {
        assert_eq!(fault.kind(), FaultKind::Unreachable);
        let (message, report) = (fault.message().to_owned(), format!("{:?}", anyhow::Error::from(fault)));
        assert_eq!(report.matches(&message).count(), 1, "{report}");
        assert!(report.contains("refused"), "with its cause: {report}");
    }
}
