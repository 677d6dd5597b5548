//! The spans of a call. The test has a process of its own: a callsite that a thread without this subscriber
//! meets first is taken for disabled by `tracing`.

use std::sync::{Arc, Mutex};

use axum::Router;
use fairmesh_client::{Body, FixedMesh, Protocol};
use http::Request;
use tokio::net::TcpListener;
use tracing_subscriber::{Layer, layer::SubscriberExt as _, registry::LookupSpan};

/// Collects the names of spans.
#[derive(Clone, Default)]
struct SpanNames(Arc<Mutex<Vec<&'static str>>>);

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanNames {
    fn on_new_span(
        &self,
        span: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        self.0.lock().unwrap().push(span.metadata().name());
    }
}

#[tokio::test]
async fn each_call_and_attempt_records_span() {
    let names = SpanNames::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(names.clone())).unwrap();
    let mesh = FixedMesh::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    mesh.serve("shop/catalog", Protocol::Http1, [listener.local_addr().unwrap()]).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, Router::new()).await });
    let request = Request::get("/items").body(Body::empty()).unwrap();
    mesh.mesh().service("shop/catalog").unwrap().send(request).await.unwrap();
    let names = names.0.lock().unwrap().clone();
    let count = |name| names.iter().filter(|one| **one == name).count();
    assert_eq!((count("call"), count("attempt")), (1, 1), "{names:?}");
}
