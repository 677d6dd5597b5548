//! The default maximum of connections of a proxy.

use std::time::Duration;

use fairmesh_model::Protocol;
use rustix::process::{Resource, getrlimit};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use super::{memory, others_are_served};
use crate::harness::{Proxy, Spec, World, alone, beside_others, read_head, skipped};

const MANY: u64 = 10_000;
/// Most bytes of memory per connection that is idle after a request.
const EACH: u64 = 5 * 1024;
/// Concurrent connection attempts: fewer than the accept queue of a listener holds.
const AT_ONCE: usize = 64;
const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: one.shop\r\n\r\n";

/// Runs all futures, up to [`AT_ONCE`] at a time, and returns their results.
async fn each<T: Send + 'static>(all: impl Iterator<Item: Future<Output = T> + Send + 'static>) -> Vec<T> {
    let (mut done, mut doing) = (Vec::new(), JoinSet::new());
    for one in all {
        if doing.len() == AT_ONCE {
            done.push(doing.join_next().await.unwrap().unwrap());
        }
        doing.spawn(one);
    }
    done.extend(doing.join_all().await);
    done
}

/// Sends one request on a connection and returns the connection.
async fn asks(mut stream: TcpStream) -> TcpStream {
    stream.write_all(GET).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    stream
}

/// Opens connections, sends one request on each, and keeps them open.
async fn served(to: &str, count: u64) -> Vec<TcpStream> {
    each((0..count).map(|_| {
        let to = to.to_owned();
        async move { asks(TcpStream::connect(to).await.unwrap()).await }
    }))
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_beyond_limit_of_ten_thousand_waits_until_another_closes() {
    // Both ends of each connection are on this machine, in two processes with a descriptor limit each.
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if descriptors < MANY + 1000 {
        let reason = format!("{descriptors} descriptors are too few (ulimit -n)");
        return skipped("ten thousand connections cannot be kept", reason);
    }
    let _machine = alone().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    // The other listener has no connections and holds no permit.
    let proxy = Proxy::with(&world, "--max-connections 10000 --idle-timeout 300s").await;
    let first = served(&proxy.for_one, 100).await;
    let before = memory(&proxy.process);
    let mut rest = served(&proxy.for_one, MANY - 100).await;
    let cost = memory(&proxy.process).saturating_sub(before) / (MANY - 100);
    println!("{cost} bytes for each connection that is idle after a request");
    assert!(cost < EACH, "{cost} bytes are kept for each connection");
    proxy.counts("connections_open", MANY as f64).await;

    let mut waits = TcpStream::connect(&proxy.for_one).await.unwrap();
    waits.write_all(GET).await.unwrap();
    let soon = timeout(Duration::from_millis(300), waits.read(&mut [0; 1])).await;
    assert!(soon.is_err(), "it was served beyond the bound");
    proxy.reaches("accepts_delayed_total", 1.0).await;
    drop(rest.pop());
    assert!(read_head(&mut waits).await.starts_with("http/1.1 200 "));
    // A listener whose connections are all served holds no permit either.
    drop(rest.pop());
    rest.push(asks(TcpStream::connect(&proxy.by_host).await.unwrap()).await);

    // Every connection is still served.
    let all = each(first.into_iter().chain(rest).map(asks)).await;
    // Closed by reset, so that no port stays in TIME_WAIT.
    all.iter().for_each(|stream| stream.set_zero_linger().unwrap());
    drop(all);
    waits.set_zero_linger().unwrap();
    drop(waits);
    proxy.counts("connections_open", 0.0).await;
    others_are_served(&proxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_are_closed_for_new_ones_at_connection_limit() {
    const MAX: u64 = 200;
    let _machine = beside_others().await;
    let world = World::start("").await;
    let _one = Spec::new("shop/one", "one", Protocol::Http1).here(&world).await;
    let proxy = Proxy::with(&world, &format!("--max-connections {MAX} --idle-timeout 300s")).await;
    let served = served(&proxy.for_one, 20).await;
    let to = proxy.for_one.clone();
    let connect = |_| {
        let to = to.clone();
        async move { TcpStream::connect(to).await.unwrap() }
    };
    // More connections than allowed: new ones of the flood also displace earlier ones.
    let silent = each((0..2 * MAX).map(connect)).await;
    proxy.reaches("connections_displaced_total", 1.0).await;
    for _ in 0..5 {
        let asked = async { asks(TcpStream::connect(&proxy.for_one).await.unwrap()).await };
        timeout(Duration::from_secs(10), asked).await.expect("a new client waits for silent ones");
    }
    let again = each(served.into_iter().map(asks)).await;
    assert_eq!(again.len(), 20, "connections with a request keep their place");
    drop(silent);
}
