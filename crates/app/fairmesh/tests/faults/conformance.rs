//! Runs h2spec, which tests RFC 9113 case by case, against the proxy's listeners. Skipped unless h2spec is on the path
//! or `scripts/setup.sh h2spec` has installed it.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use fairmesh_server::{MeshServer, serve_http};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::{net::TcpListener, process::Command};

use crate::harness::{Proxy, World, alone, run, skipped, tool};

/// Time limit of all cases; a case without a response waits for 2 s.
const PATIENCE: Duration = Duration::from_secs(400);

/// The one case that fails on listeners that also speak HTTP/1.1: an unknown preface gets a 400 response over HTTP/1.1
/// before the connection is closed, while h2spec expects no response.
const NOT_HTTP2: &str = "× 2: Sends invalid connection preface";

/// Responds to every request with a body large enough to fill flow-control windows.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    Ok(Response::new(Full::from("Here are some bytes to fill windows with.")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_passes_http2_conformance_tests() {
    let Some(h2spec) = tool("h2spec") else {
        return skipped("HTTP/2 cannot be judged by h2spec", "`scripts/setup.sh h2spec` builds it");
    };
    let _machine = alone().await;
    let world = World::start("").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = MeshServer::builder("shop/one")
        .instance("one")
        .address(listener.local_addr().unwrap())
        .agent(world.agent_address());
    let server = server.start().await.unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        async move { serve_http(listener, tower::service_fn(answer), &server).await.unwrap() }
    });
    world.serves("shop/one", "one").await;
    let proxy = Proxy::with(&world, "--cores 1").await;
    let (host, port) = proxy.for_one.split_once(':').unwrap();
    let mut command = Command::new(h2spec);
    command.args(["-h", host, "-p", port, "-o", "2"]);
    let run = run(command, "", PATIENCE).await;
    let failed: Vec<&str> = run.out.lines().map(str::trim).filter(|line| line.starts_with('×')).collect();
    assert!(failed.iter().all(|case| *case == NOT_HTTP2), "{}\n{}", run.out, run.err);
    // Cases that did not run must not count as passed.
    assert!(
        run.out.contains("145 tests, 144 passed") || run.out.contains("145 tests, 145 passed"),
        "{}",
        run.out
    );
    serving.abort();
}
