//! Programs that read nothing, and more connections than the proxy has descriptors.

use std::{ffi::OsString, time::Duration};

use fairmesh_model::Protocol;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{memory, others_are_served};
use crate::harness::{
    PATIENCE, Program, Proxy, RawServer, Spec, World, beside_others, read_head, say, until,
};

/// Connections of a program that exhausts the proxy's descriptors.
const IDLE: u32 = 150;
const GET: &str = "GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n";
/// Bytes that the kernel buffers on both ends of a connection whose reader does not read.
const OF_THE_SYSTEM: u64 = 32 << 20;

/// Sends until the peer accepts nothing more or the connection ends; returns the number of bytes.
async fn pour(stream: &mut TcpStream) -> u64 {
    let (piece, mut sent) = ([b'x'; 65_536], 0);
    loop {
        match timeout(Duration::from_secs(1), stream.write(&piece)).await {
            Ok(Ok(size)) if sent < 1 << 30 => sent += size as u64,
            _ => return sent,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_uses_bounded_memory_and_delays_no_other_request() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let server = RawServer::start(&world, "shop/one", "one").await;
    let proxy = Proxy::start(&world).await;
    let before = memory(&proxy.process);
    let program = say(&proxy.for_one, GET).await;
    let mut served = server.accept().await;
    read_head(&mut served).await;
    served.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999\r\n\r\n").await.unwrap();
    let sent = pour(&mut served).await;
    let kept = memory(&proxy.process).saturating_sub(before);
    assert!(sent < 2 * OF_THE_SYSTEM, "{sent} bytes were taken for a program that reads none");
    assert!(kept < 8 << 20, "{kept} bytes more are kept");
    // Ends after the idle timeout.
    let ended = async { while served.read(&mut [0; 64]).await.is_ok_and(|size| size > 0) {} };
    timeout(2 * PATIENCE, ended).await.expect("the server still waits for a program that takes nothing");
    proxy.counts("connections_open", 0.0).await;
    drop(program);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxy_accepts_again_after_descriptor_exhaustion() {
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let limited = |log, args: &str| {
        let binary = env!("CARGO_BIN_EXE_fairmesh");
        let script = format!("ulimit -n 96; exec {binary} {args}");
        let args = ["-c".into(), OsString::from(script)].into();
        Program { binary: "/bin/sh".into(), args, env: Vec::new(), log }
    };
    let proxy = Proxy::run(&world, "", limited).await;
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(&proxy.by_host).await.unwrap());
    }
    until("no descriptor is left", async || proxy.process.log().contains("limit of open files")).await;
    drop(idle);
    // Until then, the rest of the accept queue may take freed descriptors.
    proxy.reaches("connections_accepted_total", f64::from(IDLE)).await;
    until("all are gone", async || proxy.metric("connections_open").await <= 2.0).await;
    others_are_served(&proxy).await;
    proxy.reaches("accepts_delayed_total", 1.0).await;
}
