//! Tests the admin pages of a process over connections.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::routing::get;
use fairmesh_listen::{Listeners, listener_table};
use fairmesh_model::Probe;
use fairmesh_pages::{AdminListener, AdminServer, BindError, Process, Readiness};
use prometheus_client::{metrics::counter::ConstCounter, registry::Registry};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

#[derive(Default)]
struct Toy {
    ready: AtomicBool,
}

impl Process for Toy {
    const KIND: &'static str = "agent";

    fn register(&self, metrics: &mut Registry) {
        let own = metrics.sub_registry_with_prefix(Self::KIND);
        own.register("deltas", "Deltas received", ConstCounter::new(7_u64));
    }

    async fn readiness(&self) -> Readiness {
        match self.ready.load(Relaxed) {
            true => Readiness::ready(),
            false => Readiness::Unready("not reached yet".into()),
        }
    }
}

async fn start(toy: &Arc<Toy>) -> (SocketAddr, AdminServer) {
    let any = "127.0.0.1:0".parse().unwrap();
    let listener =
        AdminListener::bind(any, &Listeners::default(), &listener_table::AGENT_HTTP).await.unwrap();
    let slow = get(async || std::future::pending::<()>().await);
    let own = axum::Router::new().route("/ui/", get(async || "graph\n")).route("/slow", slow);
    let pages = fairmesh_pages::router(Arc::clone(toy)).merge(own);
    (listener.local_addr().unwrap(), listener.start(pages))
}

/// Sends a request, and returns the connection from which the response can be read.
async fn send(address: SocketAddr, path: &str, header: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let host = if header.starts_with("host: ") { String::new() } else { format!("host: {address}\r\n") };
    let request = format!("GET {path} HTTP/1.1\r\n{host}connection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

/// Requests a page, and returns its status and body.
async fn page(address: SocketAddr, path: &str, header: &str) -> (u16, String) {
    let mut response = String::new();
    send(address, path, header).await.read_to_string(&mut response).await.unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn process_serves_metrics_health_readiness_and_own_pages() {
    let toy = Arc::<Toy>::default();
    let (address, server) = start(&toy).await;
    assert_eq!(page(address, "/healthz", "").await, (200, "ok\n".into()));
    assert_eq!(page(address, "/readyz", "").await, (503, "not reached yet\n".into()));
    toy.ready.store(true, Relaxed);
    assert_eq!(page(address, "/readyz", "").await, (200, "ready\n".into()));
    let (status, metrics) = page(address, "/metrics", "").await;
    assert_eq!(status, 200);
    for part in
        ["fairmesh_agent_deltas_total 7\n", "fairmesh_build_info{process=\"agent\"", "process_open_fds "]
    {
        assert!(metrics.contains(part), "{part} in {metrics}");
    }
    assert_eq!(page(address, "/ui/", "").await, (200, "graph\n".into()));
    assert_eq!(page(address, "/nothing", "").await.0, 404);
    server.stop().await;
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn endpoint_health_check_is_refused_on_every_page() {
    let (address, server) = start(&Arc::default()).await;
    let probe = format!("user-agent: {}\r\n", Probe::USER_AGENT);
    for path in ["/healthz", "/readyz", "/metrics", "/ui/"] {
        assert_eq!(page(address, path, &probe).await.0, 403, "{path}");
    }
    server.stop().await;
}

#[tokio::test]
async fn browser_that_names_another_host_is_refused_on_pages_that_tell_of_the_mesh() {
    let toy = Arc::<Toy>::default();
    toy.ready.store(true, Relaxed);
    let (address, server) = start(&toy).await;
    let (rebound, language) = ("host: rebound.example\r\n", "accept-language: en\r\n");
    for path in ["/metrics", "/ui/"] {
        assert_eq!(page(address, path, &format!("{rebound}{language}")).await.0, 421, "{path}");
        assert_eq!(page(address, path, language).await.0, 200, "{path} by address");
        assert_eq!(page(address, path, rebound).await.0, 200, "{path} by a program");
    }
    let monitor = "user-agent: Mozilla/5.0 (compatible; Monitor/1.0)\r\n";
    for path in ["/healthz", "/readyz"] {
        for headers in [language, monitor] {
            assert_eq!(page(address, path, &format!("{rebound}{headers}")).await.0, 200, "{path}");
        }
    }
    let (any, mode) = ("accept-language: *\r\n", "sec-fetch-mode: cors\r\n");
    let of_node = format!("{rebound}{any}{mode}user-agent: node\r\n");
    assert_eq!(page(address, "/metrics", &of_node).await.0, 200);
    // A script in a browser can write the language, and no header of fetches.
    for headers in [any.to_owned(), format!("{any}{mode}sec-fetch-site: same-origin\r\n")] {
        assert_eq!(page(address, "/metrics", &format!("{rebound}{headers}")).await.0, 421, "{headers}");
    }
    server.stop().await;
}

#[tokio::test]
async fn unanswered_request_does_not_delay_stop() {
    let (address, server) = start(&Arc::default()).await;
    let _unanswered = send(address, "/slow", "").await;
    // Connections are accepted in order, so the connection before was accepted too.
    assert_eq!(page(address, "/healthz", "").await.0, 200);
    timeout(Duration::from_secs(10), server.stop()).await.unwrap();
}

#[tokio::test]
async fn address_in_use_error_names_option_to_change() {
    let (address, server) = start(&Arc::default()).await;
    let again = AdminListener::bind(address, &Listeners::default(), &listener_table::AGENT_HTTP).await;
    let error = again.unwrap_err();
    assert!(matches!(error, BindError::InUse(_)), "{error:?}");
    assert!(error.to_string().contains("--admin"), "{error}");
    server.stop().await;
}
