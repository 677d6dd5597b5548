//! Traces through several proxies and a program between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use fairmesh_model::Protocol;
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::harness::{
    Program, Proxy, Spec, World, beside_others, free_port,
    otlp::{TraceCollector, hex},
    read_head, say,
};

/// Number of calls. The first proxy traces one in five.
const CALLS: usize = 40;
/// Spans per trace: the request and its attempt at the first proxy, the request to the program, and the program's own
/// request with its attempt.
const SPANS: usize = 5;

/// Starts a program that calls `shop/one` through its sidecar for each request, with the trace context of that request.
/// Returns its address, and the cell for the sidecar's address.
async fn start_program() -> (String, Arc<OnceLock<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let sidecar = Arc::<OnceLock<String>>::default();
    let known = Arc::clone(&sidecar);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sidecar = known.get().cloned().unwrap_or_default();
            tokio::spawn(async move {
                let head = read_head(&mut stream).await;
                let context = head.lines().find(|line| line.starts_with("traceparent:")).unwrap_or_default();
                let request =
                    format!("GET / HTTP/1.1\r\nhost: one.shop\r\nconnection: close\r\n{context}\r\n\r\n");
                let mut called = say(&sidecar, request).await;
                called.read_to_end(&mut Vec::new()).await.unwrap();
                let response = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                stream.write_all(response).await.unwrap();
            });
        }
    });
    (address, sidecar)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sampled_traces_contain_every_span_of_proxies_and_callers() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let collector = TraceCollector::start().await;
    let traced = format!("--trace-one-in 5 --trace-to {}", collector.address);
    let (program, sidecar) = start_program().await;
    let inbound = format!("--inbound shop/two@127.0.0.1:{}={program} --inbound-instance two", free_port());
    let mut callee = Proxy::with(&world, &format!("{inbound} {traced}")).await;
    sidecar.set(callee.by_host.clone()).unwrap();
    world.serves("shop/two", "two").await;
    let run = |_, args: &str| Program::fairmesh(world.path("caller.log"), args);
    let mut caller = Proxy::run(&world, &format!("--service shop/web {traced}"), run).await;
    for _ in 0..CALLS {
        let request = "GET / HTTP/1.1\r\nhost: two.shop\r\nconnection: close\r\n\r\n";
        let answer = read_head(&mut say(&caller.by_host, request).await).await;
        assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    }
    // Spans are exported at the latest when a process ends.
    for proxy in [&mut caller, &mut callee] {
        proxy.process.signal(Signal::TERM);
        assert!(proxy.process.end().await.success());
    }
    assert_eq!(collector.services(), ["shop/two", "shop/web"].map(str::to_owned).into());
    let mut traces = BTreeMap::<String, Vec<_>>::new();
    for span in collector.all() {
        traces.entry(hex(&span.trace_id)).or_default().push(span);
    }
    let is_partial = |spans: &Vec<fairmesh_otlp::v1::Span>| {
        let ids: BTreeSet<_> = spans.iter().map(|span| span.span_id.clone()).collect();
        let roots = spans.iter().filter(|span| span.parent_span_id.is_empty()).count();
        let has_parent = |parent: &Vec<u8>| parent.is_empty() || ids.contains(parent);
        spans.len() != SPANS || roots != 1 || !spans.iter().all(|span| has_parent(&span.parent_span_id))
    };
    let partial = traces.values().filter(|spans| is_partial(spans)).count();
    assert_eq!((traces.len(), partial), (CALLS / 5, 0), "{traces:#?}");
}
