//! HTTP/2 streams that consist of headers only. Each costs its sender 16 bytes.

use std::{path::Path, time::Duration};

use fairmesh_identity::OneWayTls;
use fairmesh_wire::transport::{Address, ExpectedPeer, TlsIdentity as _};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    fleet::{Fleet, connection, metric, program, read},
    is_unharmed, p99,
    unfinished::peak,
};
use crate::{
    attacks::memory,
    harness::{Process, alone, free_port, is_soak, until},
};

/// Connections of an attack, and streams per connection. Long runs use as many as once filled a gigabyte, others a
/// third.
fn scale() -> (usize, u32) {
    if is_soak() { (30, 16_000) } else { (30, 5_000) }
}

/// Largest permitted growth of memory, mainly for streams that may be incomplete at a time, about 5,000 per process.
const LITTLE: u64 = 192 << 20;
/// Time limit of a call during an attack by authenticated peers: far below the timeouts of commands.
const IN_TIME: Duration = Duration::from_secs(3);

/// A HEADERS frame with END_HEADERS and without END_STREAM (RFC 9113, 6.2).
fn headers(stream: u32, block: &[u8]) -> Vec<u8> {
    let length = u32::try_from(block.len()).unwrap().to_be_bytes();
    [&length[1..], &[1, 4], &stream.to_be_bytes(), block].concat()
}

/// A connection preface and `count` calls of `path` that consist of HEADERS only. All calls after the first use its
/// entries in the dynamic table of HPACK (RFC 7541, 6.1 and 6.2.1).
fn streams(path: &str, count: u32) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let mut first = vec![0x83, 0x86, 0x44];
    first.extend(text(path));
    first.extend([&[0x41][..], &text("mesh"), &[0x5f], &text("application/grpc")].concat());
    for (name, value) in [("te", "trailers"), ("fairmesh-version", "1")] {
        first.extend([&[0x40][..], &text(name), &text(value)].concat());
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    bytes.extend(headers(1, &first));
    for stream in 1..count {
        bytes.extend(headers(2 * stream + 1, &[0x83, 0x86, 0xc2, 0xc1, 0xc0, 0xbf, 0xbe]));
    }
    bytes
}

/// Sends these bytes and discards all responses until the connection is closed.
async fn send(io: impl AsyncRead + AsyncWrite, bytes: Vec<u8>) {
    let (mut reading, mut writing) = split(io);
    let sends = async move {
        let _ = writing.write_all(&bytes).await;
        std::future::pending::<()>().await
    };
    let reads = async move {
        let mut piece = [0; 4096];
        while reading.read(&mut piece).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        () = sends => {}
        () = reads => {}
    }
}

/// Connects to an address and sends `bytes`; with `roots`, over TLS without a client certificate.
async fn attack(to: &str, roots: Option<&Path>, bytes: Vec<u8>) {
    match (to.parse().unwrap(), roots) {
        (Address::Unix(path), _) => send(UnixStream::connect(path).await.unwrap(), bytes).await,
        (Address::Tcp(to), None) => send(TcpStream::connect(to).await.unwrap(), bytes).await,
        (Address::Tcp(to), Some(roots)) => {
            let stream = TcpStream::connect(to).await.unwrap();
            let stream = OneWayTls::open(roots).unwrap().connect(ExpectedPeer::Mesh, stream).await;
            // The listener closes the oldest connections in favour of newer ones.
            if let Ok(stream) = stream {
                send(stream, bytes).await;
            }
        }
    }
}

/// Process under attack, with its addresses for honest callers.
struct Attacked<'a> {
    what: &'a str,
    process: &'a Process,
    to: &'a str,
    roots: Option<&'a Path>,
    path: &'a str,
    honest: &'a str,
}

async fn is_attacked(target: Attacked<'_>) {
    let Attacked { what, process, to, roots, path, honest } = target;
    let honest = connection(honest).await;
    let before = p99(|| read(&honest)).await;
    let idle = memory(process);
    let (connections, count) = scale();
    let bytes = streams(path, count);
    let mut attacks = JoinSet::new();
    let began = Instant::now();
    for _ in 0..connections {
        let (to, roots, bytes) = (to.to_owned(), roots.map(Path::to_owned), bytes.clone());
        attacks.spawn(async move { attack(&to, roots.as_deref(), bytes).await });
    }
    let (most, meanwhile) = peak(process, async {
        let meanwhile = p99(|| read(&honest)).await;
        // The process closed the connections after its refusals.
        let closed = async { while attacks.join_next().await.is_some() {} };
        timeout(Duration::from_secs(20), closed).await.expect("the connections of the attack are closed");
        meanwhile
    })
    .await;
    let grown = most.saturating_sub(idle) >> 20;
    eprintln!(
        "{what}: {} MB, {grown} MB more, p99 {before:?}, meanwhile {meanwhile:?}, closed after {:?}",
        idle >> 20,
        began.elapsed()
    );
    match roots {
        Some(_) => is_unharmed(what, before, meanwhile),
        None => assert!(meanwhile < IN_TIME, "p99 of {what} was {before:?} and is {meanwhile:?}"),
    }
    assert!(grown < LITTLE >> 20, "{what} has {grown} MB more");
    let much = idle + idle / 2;
    until(&format!("{what} returns its memory"), async || memory(process) < much).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_only_streams_use_bounded_memory() {
    let _machine = alone().await;
    let fleet = Fleet::start(None).await;
    let agent = format!("unix:{}", fleet.agent_socket().display());
    for (what, process, to) in [
        ("control plane", &fleet.control, &fleet.control_grpc),
        ("replica", &fleet.replica, &fleet.replica_grpc),
        ("agent", &fleet.agent, &agent),
    ] {
        let path = "/fairmesh.v1.Rib/Read";
        is_attacked(Attacked { what, process, to, roots: None, path, honest: to }).await;
    }
    let closed = "fairmesh_control_listener_connections_closed_total{listener=\"grpc\",reason=\"refusals\"}";
    assert!(metric(&fleet.control_http, closed).await >= 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_only_streams_of_unauthenticated_peers_delay_no_mesh_member() {
    let _machine = alone().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    let grpc = format!("127.0.0.1:{}", free_port());
    let args = format!("control --trust-domain prod --admin 127.0.0.1:0 --grpc {grpc} --data-dir {dir}/data");
    let control = Process::start(program(folder.path().join("control.log"), &args, None));
    let (socket, roots) = (folder.path().join("data/control.sock"), folder.path().join("data/ca/bundle.pem"));
    until("it listens", async || {
        UnixStream::connect(&socket).await.is_ok() && TcpStream::connect(&grpc).await.is_ok()
    })
    .await;
    let honest = format!("unix:{}", socket.display());
    for path in ["/fairmesh.v1.Identity/Join", "/fairmesh.v1.Rib/Read"] {
        let what = &format!("control plane at {path}");
        let target =
            Attacked { what, process: &control, to: &grpc, roots: Some(&roots), path, honest: &honest };
        is_attacked(target).await;
    }
}
