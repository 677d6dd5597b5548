use std::{
    future::pending,
    io, mem,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_http::h1::{BorrowedRequest, BorrowedResponse, MIN_READ, header_storage};
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::{
    io::{
        AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, ReadHalf,
        WriteHalf, duplex, split,
    },
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    http1::{
        connection::{Connection, LINGER_PAUSE, MAX_LINGER_BYTES},
        connection_end::{ConnectionEnd, ConnectionError, ConnectionParts},
        request_body::IncomingBody,
        request_handler::{ClosesConnection, RequestHandler},
        request_offload::Offload,
        serve::serve,
    },
    shutdown::Shutdown,
};

type Near = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);
type Served = JoinHandle<ConnectionEnd<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>>;

const IDLE_TIMEOUT: Duration = Duration::from_secs(75);

/// Both ends of an in-memory connection.
fn ends(room: usize) -> (Near, DuplexStream) {
    let (near, far) = duplex(room);
    (split(near), far)
}

/// Responds with the method, the path and the body.
async fn echo(request: Request<IncomingBody<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    Response::new(format!("{} {} {body:?}", head.method, head.uri).into())
}

fn serve_echo(near: Near, shutdown: Arc<Shutdown>) -> Served {
    tokio::spawn(async move { serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &shutdown, &echo).await })
}

async fn read_until(far: &mut DuplexStream, until: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(until.as_bytes()) {
        assert_ne!(
            far.read_buf(&mut text).await.unwrap(),
            0,
            "{:?}",
            text[..text.len().min(500)].escape_ascii()
        );
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test]
async fn pipelined_http1_requests_get_responses_in_order() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(
        b"GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\ncontent-length: 3\r\n\r\nteaGET /3 HTTP/1.1\r\n\r\n",
    )
    .await
    .unwrap();
    let responses = read_until(&mut far, "GET /3 Ok(b\"\")").await;
    let bodies = responses
        .split("HTTP/1.1 200 OK\r\n")
        .skip(1)
        .map(|response| response.split_once("\r\n\r\n").unwrap().1);
    let expected = ["GET /1 Ok(b\"\")", "POST /2 Ok(b\"tea\")", "GET /3 Ok(b\"\")"];
    assert!(bodies.eq(expected), "{responses}");
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test]
async fn client_gets_100_continue_once_service_reads_body() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(b"PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n").await.unwrap();
    assert_eq!(read_until(&mut far, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    far.write_all(b"tea").await.unwrap();
    read_until(&mut far, "PUT /a Ok(b\"tea\")").await;
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test]
async fn unread_expected_body_gets_no_100_continue_and_ends_connection() {
    let (near, mut far) = ends(1 << 16);
    let refuse = async |_: Request<IncomingBody<ReadHalf<DuplexStream>>>| Response::new(Full::from("no"));
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &refuse).await
    });
    far.write_all(b"PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n").await.unwrap();
    let response = read_until(&mut far, "no").await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("connection: close\r\n"),
        "{response}"
    );
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    // Bytes sent after the response are not parsed as a request.
    far.write_all(b"GET /b HTTP/1.1\r\n\r\n").await.unwrap();
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn silent_and_slow_http1_clients_time_out() {
    for (beginning, is_request) in
        [("", false), ("GET / HTTP/1.1\r\nhost", false), ("GET /1 HTTP/1.1\r\n\r\n", true)]
    {
        let (near, mut far) = ends(1 << 16);
        let served = serve_echo(near, Arc::default());
        far.write_all(beginning.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let ended = served.await.unwrap();
        assert!(
            begun.elapsed() >= IDLE_TIMEOUT && begun.elapsed() < IDLE_TIMEOUT * 2,
            "{:?}",
            begun.elapsed()
        );
        match is_request {
            true => assert!(matches!(ended, ConnectionEnd::Closed)),
            false => assert!(matches!(ended, ConnectionEnd::Failed(ConnectionError::Timeout))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_headers_sent_byte_by_byte_time_out() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    let begun = Instant::now();
    while !served.is_finished() {
        // Fails once the server has closed.
        let _ = far.write_all(b"G").await;
        sleep(IDLE_TIMEOUT / 20).await;
    }
    assert!(begun.elapsed() < IDLE_TIMEOUT * 2);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Failed(ConnectionError::Timeout)));
}

#[tokio::test]
async fn http1_call_ends_when_client_disconnects() {
    let (near, mut far) = ends(1 << 16);
    let begun = Arc::new(Notify::new());
    let signal = Arc::clone(&begun);
    let never = move |_: Request<IncomingBody<ReadHalf<DuplexStream>>>| {
        let signal = Arc::clone(&signal);
        async move {
            signal.notify_one();
            pending::<Response<Full<Bytes>>>().await
        }
    };
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &never).await
    });
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    begun.notified().await;
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Failed(ConnectionError::Disconnected)));
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_uses_little_memory_and_times_out() {
    let (near, mut far) = ends(4096);
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let endless = move |_: Request<IncomingBody<ReadHalf<DuplexStream>>>| {
        let counter = Arc::clone(&counter);
        let chunks = stream::repeat_with(move || {
            counter.fetch_add(1, Relaxed);
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b'x'; 1024])))
        });
        std::future::ready(Response::new(StreamBody::new(chunks)))
    };
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &endless).await
    });
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Failed(ConnectionError::Timeout)));
    assert!(taken.load(Relaxed) <= 5, "{} KB were read for a client with room for 4", taken.load(Relaxed));
}

#[tokio::test]
async fn shutdown_ends_connection_after_response_or_idle_grace() {
    let shutdown = Arc::<Shutdown>::default();
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::clone(&shutdown));
    shutdown.start(10 * IDLE_TIMEOUT);
    tokio::task::yield_now().await;
    assert!(!served.is_finished(), "a request may be on its way");
    far.write_all(b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\ntea").await.unwrap();
    let response = read_until(&mut far, "Ok(b\"tea\")").await;
    assert!(response.contains("connection: close\r\n"), "{response}");
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
    shutdown.idle_grace_over().cancel();
    let (near, _far) = ends(1 << 16);
    assert!(matches!(serve_echo(near, shutdown).await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test]
async fn http2_connection_is_detected_and_handed_over_with_its_first_bytes() {
    let pending_upgrade = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0";
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(pending_upgrade).await.unwrap();
    let ConnectionEnd::Http2(ConnectionParts { read, .. }) = served.await.unwrap() else {
        panic!("it is HTTP/2")
    };
    assert_eq!(read, pending_upgrade[..]);
}

#[tokio::test(start_paused = true)]
async fn upload_after_early_response_is_discarded_within_limits() {
    for pause in [500, 1500].map(Duration::from_millis) {
        let (near, mut far) = ends(1 << 16);
        let refuse = async |_: Request<IncomingBody<ReadHalf<DuplexStream>>>| Response::new(Full::from("no"));
        let served = tokio::spawn(async move {
            serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &refuse).await
        });
        far.write_all(b"POST / HTTP/1.1\r\ncontent-length: 1000000\r\n\r\n").await.unwrap();
        let response = read_until(&mut far, "no").await;
        assert!(response.contains("connection: close\r\n"), "{response}");
        let begun = Instant::now();
        while far.write_all(&[7; 1000]).await.is_ok() {
            sleep(pause).await;
        }
        let expected = if pause < Duration::from_secs(1) { 30..32 } else { 1..3 };
        assert!(expected.contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
    }
}

#[tokio::test]
async fn response_with_connection_close_leaves_pipelined_requests_unread() {
    let (near, mut far) = ends(1 << 16);
    let handled = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&handled);
    let refuse = move |_: Request<IncomingBody<ReadHalf<DuplexStream>>>| {
        counter.fetch_add(1, Relaxed);
        let mut response = Response::new(Full::from("no"));
        response.extensions_mut().insert(ClosesConnection);
        async { response }
    };
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &refuse).await
    });
    far.write_all(&b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\ntea".repeat(2)).await.unwrap();
    let response = read_until(&mut far, "no").await;
    assert!(response.contains("connection: close\r\n"), "{response}");
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
    assert_eq!(handled.load(Relaxed), 1);
}

#[tokio::test]
async fn response_is_sent_before_request_body_ends() {
    let (near, mut far) = ends(1 << 16);
    let dropped = Arc::new(AtomicBool::new(false));
    let saw = Arc::clone(&dropped);
    let early = move |request: Request<IncomingBody<ReadHalf<DuplexStream>>>| {
        let saw = Arc::clone(&saw);
        async move {
            let mut body = request.into_body();
            assert!(body.frame().await.is_some());
            // A task holds the body for a while.
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                saw.store(true, Relaxed);
                drop(body);
            });
            Response::new(Full::from("no"))
        }
    };
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &early).await
    });
    far.write_all(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\ntea").await.unwrap();
    let response = read_until(&mut far, "no").await;
    assert!(response.contains("connection: close\r\n"), "{response}");
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "the connection ends: what follows may be the body");
    drop(far);
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
    assert!(dropped.load(Relaxed));
}

/// Forwards plain requests on the fast path and echoes all others; counts the echoed ones. Discards large
/// bodies, and parses requests for `/apart`.
#[derive(Default)]
struct Passes(AtomicUsize);

impl RequestHandler<ReadHalf<DuplexStream>> for Passes {
    type Body = Full<Bytes>;

    async fn handle(&self, request: Request<IncomingBody<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
        self.0.fetch_add(1, Relaxed);
        echo(request).await
    }

    fn has_fast_path(&self) -> bool {
        true
    }

    async fn try_fast_path<W: AsyncWrite + Unpin, O: Offload>(
        &self,
        connection: &mut Connection<ReadHalf<DuplexStream>, W, O>,
        shutdown: &Shutdown,
    ) -> Result<Option<bool>, ConnectionError> {
        let (length, body, is_apart) = {
            let mut room = header_storage();
            let Some(plain) =
                BorrowedRequest::read(connection.input(), &mut room, fairmesh_headers::is_mesh_header)
            else {
                return Ok(None);
            };
            (plain.length, plain.body.len(), plain.path == "/apart")
        };
        if body > MIN_READ {
            connection.discard_body(length - body..length);
        }
        if is_apart {
            return connection.parse_and_handle(|request| self.handle(request), shutdown).await.map(Some);
        }
        let sent = connection.forward(length, |mut reply, context| {
            let mut room = header_storage();
            let response =
                BorrowedResponse::read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntea", &mut room);
            Poll::Ready(reply.send(&response.unwrap(), false, context))
        });
        let sent = sent.await??;
        connection.finish_response(sent, length).await?;
        Ok(Some(true))
    }
}

fn serve_passing(near: Near, responses: Arc<Passes>) -> Served {
    tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &*responses).await
    })
}

#[tokio::test(start_paused = true)]
async fn nearly_complete_large_request_waits_briefly_for_its_rest() {
    let (near, mut far) = ends(1 << 17);
    let responses = Arc::<Passes>::default();
    let _served = serve_passing(near, Arc::clone(&responses));
    let head = "POST /a HTTP/1.1\r\nhost: a.b\r\ncontent-length: 50000\r\n\r\n";
    let request = head.to_owned() + &"t".repeat(50_000);
    let (most, rest) = request.as_bytes().split_at(30_000);
    // The first request is not expected to be large.
    far.write_all(request.as_bytes()).await.unwrap();
    read_until(&mut far, "ttt\")").await;
    for pause in [1, 1, 10] {
        far.write_all(most).await.unwrap();
        sleep(Duration::from_millis(pause)).await;
        far.write_all(rest).await.unwrap();
        read_until(&mut far, "\r\n\r\ntea").await;
    }
    assert_eq!(responses.0.load(Relaxed), 1, "the others were passed on");
    far.write_all(most).await.unwrap();
    sleep(Duration::from_millis(30)).await;
    assert_eq!(responses.0.load(Relaxed), 2, "what has come goes on alone");
    // The call may take long.
    sleep(2 * IDLE_TIMEOUT).await;
    far.write_all(rest).await.unwrap();
    assert!(read_until(&mut far, "ttt\")").await.contains("POST /a Ok(b\"ttt"));
}

#[tokio::test]
async fn pipelined_request_after_discarded_body_is_served() {
    let (near, mut far) = ends(1 << 18);
    let responses = Arc::<Passes>::default();
    let served = serve_passing(near, Arc::clone(&responses));
    let post = |path: &str, size: usize| {
        format!("POST {path} HTTP/1.1\r\nhost: a.b\r\ncontent-length: {size}\r\n\r\n{}", "t".repeat(size))
    };
    // The first request is not expected to be large.
    far.write_all(post("/a", 60_000).as_bytes()).await.unwrap();
    read_until(&mut far, "ttt\")").await;
    let tea = "\r\n\r\ntea";
    let all = [
        (post("/a", 60_000), tea),
        (post("/apart", 20_000), "POST /apart Ok(b\"\")"),
        (post("/apart", 5), "POST /apart Ok(b\"ttttt\")"),
        (post("/a", 9_000), tea),
        (post("/apart", 3), "POST /apart Ok(b\"ttt\")"),
    ];
    for (request, response) in &all {
        far.write_all(request.as_bytes()).await.unwrap();
        read_until(&mut far, response).await;
    }
    assert_eq!(responses.0.load(Relaxed), 4, "the others were passed on");
    // All requests at once: few of the bytes after a body are moved, and many stay in place.
    let sent: String = all.iter().map(|(request, _)| request.as_str()).collect();
    far.write_all(sent.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let mut received = String::new();
    far.read_to_string(&mut received).await.unwrap();
    assert_eq!(received.matches("HTTP/1.1 200").count(), all.len(), "{received}");
    assert!(received.starts_with("HTTP/1.1 200 OK") && received.ends_with(all[4].1), "{received}");
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn fast_path_keeps_idle_timeout_and_parser_state() {
    let get = b"GET /a HTTP/1.1\r\nhost: a.b\r\n\r\n";
    let (near, mut far) = ends(1 << 16);
    let served = serve_passing(near, Arc::default());
    far.write_all(&[&get[..], get].concat()).await.unwrap();
    let mut received = String::new();
    while received.matches("\r\n\r\ntea").count() < 2 {
        received += &read_until(&mut far, "tea").await;
    }
    assert!(
        matches!(served.await.unwrap(), ConnectionEnd::Closed),
        "it was idle, and nothing was wrong with it"
    );
    let (near, mut far) = ends(1 << 16);
    let served = serve_passing(near, Arc::default());
    far.write_all(&[&get[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat()).await.unwrap();
    assert!(read_until(&mut far, "\n").await.contains("teaHTTP/1.1 400 "));
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Failed(ConnectionError::Refused(_))));
}

type Log = Arc<Mutex<Vec<String>>>;

/// Logs reads.
struct Logged(ReadHalf<DuplexStream>, &'static str, Log);

impl AsyncRead for Logged {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self(io, name, log) = &mut *self;
        ready!(Pin::new(io).poll_read(context, buffer))?;
        log.lock().unwrap().push(format!("read {name}"));
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn simultaneous_requests_are_read_from_all_connections_before_responding() {
    let log = Log::default();
    let mut connections = Vec::new();
    for name in ["a", "b"] {
        let ((reader, writer), mut far) = ends(1 << 16);
        far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let answered = Arc::clone(&log);
        let respond = move |_: Request<IncomingBody<Logged>>| {
            answered.lock().unwrap().push(format!("answer {name}"));
            std::future::ready(Response::new(Full::from("done")))
        };
        let near = (Logged(reader, name, Arc::clone(&log)), writer);
        tokio::spawn(async move {
            serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &Shutdown::default(), &respond).await
        });
        connections.push(far);
    }
    for far in &mut connections {
        read_until(far, "done").await;
    }
    assert_eq!(mem::take(&mut *log.lock().unwrap()), ["read a", "read b", "answer a", "answer b"]);
}

/// Responds without reading the body.
async fn refuse(_: Request<IncomingBody<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
    Response::new("no".into())
}

/// A connection whose response was sent while its client goes on sending.
async fn lingering(shutdown: &Arc<Shutdown>) -> (Served, DuplexStream) {
    let (near, mut far) = ends(1 << 20);
    let shutdown = Arc::clone(shutdown);
    let served = tokio::spawn(async move {
        serve(Connection::new(near.0, near.1, IDLE_TIMEOUT), &shutdown, &refuse).await
    });
    let length = 2 * MAX_LINGER_BYTES;
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    far.write_all(head.as_bytes()).await.unwrap();
    read_until(&mut far, "\r\n\r\nno").await;
    (served, far)
}

#[tokio::test]
async fn lingering_connection_ends_at_maximum_bytes() {
    let (served, mut far) = lingering(&Arc::default()).await;
    let (piece, mut sent) = (vec![0; 1 << 20], 0);
    while far.write_all(&piece).await.is_ok() {
        sent += piece.len() as u64;
    }
    // Bytes in the buffers of both sides come on top of the maximum.
    assert!((MAX_LINGER_BYTES..MAX_LINGER_BYTES + (4 << 20)).contains(&sent), "{sent}");
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}

#[tokio::test(start_paused = true)]
async fn lingering_connection_ends_soon_after_proxy_stops() {
    let shutdown = Arc::<Shutdown>::default();
    let (served, mut far) = lingering(&shutdown).await;
    let begun = Instant::now();
    shutdown.start(Duration::from_secs(25));
    while far.write_all(b"more").await.is_ok() {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(begun.elapsed() <= 2 * LINGER_PAUSE, "{:?}", begun.elapsed());
    assert!(matches!(served.await.unwrap(), ConnectionEnd::Closed));
}
