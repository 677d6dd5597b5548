//! A caller that does not read a response.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_test_support::eventually_async as until;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use crate::mesh::{Mesh, VIRTUAL};

/// Size of the long response, in bytes.
const RESPONSE: u64 = 1 << 30;
/// Largest number of unread bytes: the buffers of six sockets and two processes.
const MOST_UNREAD: u64 = 64 << 20;
const STALLED: Duration = Duration::from_secs(1);

/// A pod that sends a long response to `/long`, and a short one to other requests.
async fn serve(sent: Arc<AtomicU64>, stalled: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (sent, stalled) = (Arc::clone(&sent), Arc::clone(&stalled));
            tokio::spawn(async move {
                let mut head = vec![0; 4096];
                let Ok(length) = stream.read(&mut head).await else { return };
                if !head[..length].starts_with(b"GET /long") {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nshort";
                    return drop(stream.write_all(answer).await);
                }
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {RESPONSE}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let chunk = vec![b'x'; 64 * 1024];
                while let Ok(Ok(written)) = timeout(STALLED, stream.write(&chunk)).await {
                    if written == 0 || sent.fetch_add(written as u64, Relaxed) >= RESPONSE {
                        return;
                    }
                }
                stalled.fetch_add(1, Relaxed);
                // Keeps the connection open until the test ends.
                std::future::pending::<()>().await;
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_stalls_only_its_own_server() {
    let (sent, stalled) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let Some(mesh) = Mesh::start(serve(Arc::clone(&sent), Arc::clone(&stalled)).await).await else { return };
    let red = mesh.identity("red", "red/client").await;
    let short = "GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n";
    until("red reaches its web", async || mesh.call(&red, VIRTUAL, short).await.ends_with("short")).await;
    let mut slow = mesh.open(&red, VIRTUAL).await.unwrap();
    slow.write_all(b"GET /long HTTP/1.1\r\nhost: web\r\n\r\n").await.unwrap();
    slow.flush().await.unwrap();
    until("the server is stalled", async || stalled.load(Relaxed) == 1).await;
    let unread = sent.load(Relaxed);
    assert!(unread < MOST_UNREAD, "{unread} bytes were taken from the server");
    assert!(mesh.call(&red, VIRTUAL, short).await.ends_with("short"), "others go on");
    let mut read = vec![0; 1024];
    let length = slow.read(&mut read).await.unwrap();
    assert!(read[..length].starts_with(b"HTTP/1.1 200"), "the response has only been slow");
}
