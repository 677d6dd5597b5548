//! `tracing` spans of calls and attempts.

use std::{
    io,
    sync::{Arc, Mutex},
};

use fairmesh_client::{FixedMesh, SpanContext};
use fairmesh_model::Protocol;
use http::HeaderMap;
use tracing_subscriber::fmt::{MakeWriter, format::FmtSpan};

use crate::{
    rig::{ask, get},
    server::{Server, nobody, text},
};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Collected output, one JSON document per line.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Lines {
    /// The ended spans with this name.
    fn ended(&self, name: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let named = format!("\"span\":{{\"name\":\"{name}\"");
        let reordered = format!("\"name\":\"{name}\"}},\"spans\"");
        let is_it = |line: &&str| {
            line.contains("\"message\":\"close\"") && (line.contains(&named) || line.contains(&reordered))
        };
        text.lines().filter(is_it).map(str::to_owned).collect()
    }
}

fn parent() -> SpanContext {
    let headers: HeaderMap =
        [("traceparent".parse().unwrap(), PARENT.parse().unwrap())].into_iter().collect();
    SpanContext::read(&headers).unwrap()
}

#[tokio::test]
async fn call_and_each_attempt_are_recorded_as_spans() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(lines.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let server = Server::echo("one").await;
    let fixed = FixedMesh::new().unwrap();
    fixed.serve("shop/cart", Protocol::Http1, [nobody().await, server.address]).await.unwrap();
    let service = fixed.mesh().service("shop/cart").unwrap().within(parent());
    // The unreachable endpoint is picked first within a few calls, and another attempt follows.
    while fixed.mesh().stats().retries == 0 {
        assert_eq!(ask(&service, get("/items")).await.unwrap().0, 200);
    }
    let (calls, attempts) = (lines.ended("call"), lines.ended("attempt"));
    assert_eq!((calls.len() as u64, attempts.len() as u64), {
        let stats = fixed.mesh().stats();
        (stats.calls, stats.attempts)
    });
    for part in [
        "\"otel.name\":\"GET shop/cart\"",
        "\"url.path\":\"/items\"",
        "\"http.response.status_code\":200",
        "\"trace_id\":\"4bf92f3577b34da6a3ce929d0e0e4736\"",
    ] {
        assert!(calls.iter().all(|call| call.contains(part)), "{part} in {calls:?}");
    }
    let (last, before) = (&attempts[attempts.len() - 1], &attempts[attempts.len() - 2]);
    assert!(before.contains("\"error.type\":\"unreachable\"") && before.contains("\"ERROR\""), "{before}");
    assert!(last.contains("\"http.request.resend_count\":1"), "{last}");
    assert!(!before.contains("resend_count"), "{before}");
    assert!(last.contains(&format!("\"server.port\":{}", server.address.port())), "{last}");
}

#[tokio::test]
async fn traceparent_of_service_handle_is_sent_unless_request_has_one() {
    let server = Server::start(async |request| {
        text(200, request.headers()["traceparent"].to_str().unwrap().to_owned())
    })
    .await;
    let fixed = FixedMesh::new().unwrap();
    fixed.serve("shop/cart", Protocol::Http1, [server.address]).await.unwrap();
    let service = fixed.mesh().service("shop/cart").unwrap().within(parent());
    assert_eq!(ask(&service, get("/")).await.unwrap().1, PARENT);
    let own = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";
    let mut request = get("/");
    request.headers_mut().insert("traceparent", own.parse().unwrap());
    assert_eq!(ask(&service, request).await.unwrap().1, own);
}

#[tokio::test]
async fn client_metrics_match_call_stats_and_naming_conventions() {
    let fixed = FixedMesh::new().unwrap();
    let service = fixed.mesh().service("shop/none").unwrap();
    ask(&service, get("/")).await.unwrap_err();
    let metrics: Vec<_> = fixed.mesh().stats().metrics().collect();
    let of = |name| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value);
    assert_eq!(
        (of("fairmesh_client_calls_total"), of("fairmesh_client_faults_total")),
        (Some(1.0), Some(1.0))
    );
    assert!(metrics.iter().all(|metric| metric.name.starts_with("fairmesh_client_")));
    assert_eq!(metrics.iter().filter(|metric| !metric.is_counter()).count(), 3);
}
