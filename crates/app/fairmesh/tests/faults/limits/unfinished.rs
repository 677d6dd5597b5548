//! Messages whose last byte is withheld.

use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use fairmesh_wire::{transport::Address, v1};
use http::Request;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    task::JoinSet,
    time::timeout,
};

use super::{
    fleet::{Fleet, connection, metric, read},
    is_unharmed, p99,
};
use crate::{
    attacks::memory,
    harness::{Process, alone, beside_others, is_soak, run, until},
};

/// Size of the largest message, in bytes.
const MESSAGE: usize = 4 << 20;
/// Bytes sent at a time.
const PIECE: usize = 16 << 10;
/// Largest permitted growth of memory, mainly the 64 MB per process stated in `docs/limits.md` and the windows of the
/// connections.
const LITTLE: u64 = 112 << 20;

/// Connections, and calls per connection: in a soak run as many as once filled a gigabyte.
fn scale() -> (usize, usize) {
    if is_soak() { (8, 150) } else { (2, 80) }
}

/// Makes calls on one connection that each send all but the last byte of a message and keep the stream open.
async fn withhold(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    calls: usize,
    attack: &mut JoinSet<()>,
) {
    let (mut requests, connection) = h2::client::handshake(io).await.unwrap();
    attack.spawn(async move { drop(connection.await) });
    for _ in 0..calls {
        requests = requests.ready().await.unwrap();
        let request = Request::post("http://mesh/fairmesh.v1.Rib/Write")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("fairmesh-version", "1")
            .body(())
            .unwrap();
        let (response, mut body) = requests.send_request(request, false).unwrap();
        attack.spawn(async move {
            let length = u32::try_from(MESSAGE).unwrap().to_be_bytes();
            let _ = body.send_data(Bytes::from([&[0], &length[..]].concat()), false);
            let mut left = MESSAGE - 1;
            while left > 0 {
                body.reserve_capacity(left.min(PIECE));
                let Some(Ok(room)) = poll_fn(|cx| body.poll_capacity(cx)).await else { break };
                let some = room.min(left);
                left -= some;
                if body.send_data(Bytes::from(vec![0; some]), false).is_err() {
                    break;
                }
            }
            let _ = response.await;
            // Keeps the stream open.
            std::future::pending().await
        });
    }
}

/// Peak memory of a process while a future runs, with the future's result.
pub(super) async fn peak<T>(process: &Process, during: impl Future<Output = T>) -> (u64, T) {
    let mut most = memory(process);
    let mut during = std::pin::pin!(during);
    loop {
        match timeout(Duration::from_millis(50), during.as_mut()).await {
            Ok(done) => return (most.max(memory(process)), done),
            Err(_) => most = most.max(memory(process)),
        }
    }
}

/// A write of about three megabytes.
pub(super) fn large() -> v1::WriteRequest {
    let op = |number: usize| v1::Op {
        key: format!("/chunks/{number:064x}"),
        value: Some(vec![7; 48 << 10].into()),
        condition: None,
    };
    v1::WriteRequest { ops: (0..60).map(op).collect() }
}

/// Metric of the bytes in incomplete messages of a process.
async fn incomplete(what: &str, http: &str) -> f64 {
    let kind = what.replace(' ', "_");
    metric(http, &format!("fairmesh_{kind}_incomplete_requests_bytes")).await
}

/// Waits until the bytes in incomplete messages stop growing: the attack has reached its limit.
async fn settled(what: &str, http: &str) {
    let (mut last, mut same) = (0.0, 0);
    until("an attack has filled what it can", async || {
        let used = incomplete(what, http).await;
        same = if used > 0.0 && used == last { same + 1 } else { 0 };
        last = used;
        same == 100
    })
    .await;
}

/// Attacks a process at this address while honest callers read from it.
async fn attacked(what: &str, process: &Process, address: &str, http: &str) {
    let honest = connection(address).await;
    let before = p99(|| read(&honest)).await;
    let idle = memory(process);
    let (connections, calls) = scale();
    let mut attack = JoinSet::new();
    for _ in 0..connections {
        match address.parse().unwrap() {
            Address::Tcp(to) => withhold(TcpStream::connect(to).await.unwrap(), calls, &mut attack).await,
            Address::Unix(path) => {
                withhold(UnixStream::connect(path).await.unwrap(), calls, &mut attack).await
            }
        }
    }
    let (most, meanwhile) = peak(process, async {
        let meanwhile = p99(|| read(&honest)).await;
        settled(what, http).await;
        let unread = honest.rib().write(large()).await;
        (meanwhile, unread)
    })
    .await;
    let (meanwhile, written) = meanwhile;
    if let Err(status) = written {
        // The message arrived whole, so its handler decides, as for any other message.
        let code = status.code();
        assert!(
            matches!(code, tonic::Code::InvalidArgument | tonic::Code::FailedPrecondition),
            "{what}: {status}"
        );
    }
    let grown = most.saturating_sub(idle) >> 20;
    eprintln!("{what}: {grown} MB more, p99 {before:?}, meanwhile {meanwhile:?}");
    assert!(grown < LITTLE >> 20, "{what} has {grown} MB more");
    is_unharmed(what, before, meanwhile);
    let used = incomplete(what, http).await;
    assert!((1.0..=f64::from(64 << 20)).contains(&used), "{what} counts {used} bytes");
    attack.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_request_messages_use_bounded_memory_and_delay_no_caller() {
    let _machine = alone().await;
    let fleet = Fleet::start(None).await;
    let agent = format!("unix:{}", fleet.agent_socket().display());
    attacked("control", &fleet.control, &fleet.control_grpc, &fleet.control_http).await;
    attacked("replica", &fleet.replica, &fleet.replica_grpc, &fleet.replica_http).await;
    attacked("agent", &fleet.agent, &agent, &fleet.agent_http).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_large_write_batches_are_accepted() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let applied = (0..4).map(|part| {
        let yaml: String =
            (0..1000).map(|n| format!("---\n{{kind: Service, name: shop/s{part}-{n}}}\n")).collect();
        let mut apply = tokio::process::Command::new(env!("CARGO_BIN_EXE_fairmesh"));
        apply.args(["apply", "-f", "-", "--control", &fleet.control_grpc]);
        async move { run(apply, &yaml, Duration::from_secs(60)).await.ok() }
    });
    futures_util::future::join_all(applied).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_watch_request_ends_watch() {
    let _machine = beside_others().await;
    let fleet = Fleet::start(None).await;
    let mut watches = Vec::new();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(&fleet.control_grpc).await.unwrap();
        let length = 1_u32 << 20;
        stream.write_all(&[b"FMWATCH1", &length.to_be_bytes()[..], &[0; 64]].concat()).await.unwrap();
        watches.push(stream);
    }
    for mut stream in watches {
        let ended = timeout(Duration::from_secs(5), stream.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "it still waits for a megabyte");
    }
    let terminated = "fairmesh_control_terminated_watches_total{reason=\"malformed\"}";
    until("all are counted", async || metric(&fleet.control_http, terminated).await == 100.0).await;
}
