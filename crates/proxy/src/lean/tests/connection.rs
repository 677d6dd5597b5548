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
    lean::{Answer, Broken, Connection, Ended, Left, Upload, serve},
    stopping::Stopping,
};

type Near = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);
type Served = JoinHandle<Ended<ReadHalf<DuplexStream>, WriteHalf<DuplexStream>>>;

const PATIENCE: Duration = Duration::from_secs(75);

/// Two ends of a connection.
fn ends(room: usize) -> (Near, DuplexStream) {
    let (near, far) = duplex(room);
    (split(near), far)
}

/// Answers with the method, the path and the body.
async fn echo(request: Request<Upload<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|body| body.to_bytes());
    Response::new(format!("{} {} {body:?}", head.method, head.uri).into())
}

fn serve_echo(near: Near, stopping: Arc<Stopping>) -> Served {
    tokio::spawn(async move { serve(near, PATIENCE, &stopping, &echo).await })
}

async fn hear(far: &mut DuplexStream, until: &str) -> String {
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
async fn requests_sent_at_once_are_answered_in_their_order() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(
        b"GET /1 HTTP/1.1\r\n\r\nPOST /2 HTTP/1.1\r\ncontent-length: 3\r\n\r\nteaGET /3 HTTP/1.1\r\n\r\n",
    )
    .await
    .unwrap();
    let answers = hear(&mut far, "GET /3 Ok(b\"\")").await;
    let bodies =
        answers.split("HTTP/1.1 200 OK\r\n").skip(1).map(|answer| answer.split_once("\r\n\r\n").unwrap().1);
    let expected = ["GET /1 Ok(b\"\")", "POST /2 Ok(b\"tea\")", "GET /3 Ok(b\"\")"];
    assert!(bodies.eq(expected), "{answers}");
    drop(far);
    assert!(matches!(served.await.unwrap(), Ended::Done));
}

#[tokio::test]
async fn who_waits_to_send_a_body_is_told_once_it_is_wanted() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(b"PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n").await.unwrap();
    assert_eq!(hear(&mut far, "\r\n\r\n").await, "HTTP/1.1 100 Continue\r\n\r\n");
    far.write_all(b"tea").await.unwrap();
    hear(&mut far, "PUT /a Ok(b\"tea\")").await;
    drop(far);
    assert!(matches!(served.await.unwrap(), Ended::Done));
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_not_asked_for_and_ends_the_connection() {
    let (near, mut far) = ends(1 << 16);
    let refuse = async |_: Request<Upload<ReadHalf<DuplexStream>>>| Response::new(Full::from("no"));
    let served = tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &refuse).await });
    far.write_all(b"PUT /a HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n").await.unwrap();
    let answer = hear(&mut far, "no").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("connection: close\r\n"),
        "{answer}"
    );
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0);
    // What it sends all the same is not taken for a request.
    far.write_all(b"GET /b HTTP/1.1\r\n\r\n").await.unwrap();
    drop(far);
    assert!(matches!(served.await.unwrap(), Ended::Done));
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_or_is_slow_to_say_it_is_not_waited_for() {
    for (beginning, is_request) in
        [("", false), ("GET / HTTP/1.1\r\nhost", false), ("GET /1 HTTP/1.1\r\n\r\n", true)]
    {
        let (near, mut far) = ends(1 << 16);
        let served = serve_echo(near, Arc::default());
        far.write_all(beginning.as_bytes()).await.unwrap();
        let begun = Instant::now();
        let ended = served.await.unwrap();
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 2, "{:?}", begun.elapsed());
        match is_request {
            true => assert!(matches!(ended, Ended::Done)),
            false => assert!(matches!(ended, Ended::Broken(Broken::Late))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_byte_by_byte_has_no_more_time_than_another() {
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    let begun = Instant::now();
    while !served.is_finished() {
        // Fails where it has ended.
        let _ = far.write_all(b"G").await;
        sleep(PATIENCE / 20).await;
    }
    assert!(begun.elapsed() < PATIENCE * 2);
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Late)));
}

#[tokio::test]
async fn a_call_ends_when_its_program_has_gone() {
    let (near, mut far) = ends(1 << 16);
    let begun = Arc::new(Notify::new());
    let signal = Arc::clone(&begun);
    let never = move |_: Request<Upload<ReadHalf<DuplexStream>>>| {
        let signal = Arc::clone(&signal);
        async move {
            signal.notify_one();
            pending::<Response<Full<Bytes>>>().await
        }
    };
    let served = tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &never).await });
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    begun.notified().await;
    drop(far);
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Gone)));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_takes_little_memory_and_not_for_ever() {
    let (near, mut far) = ends(4096);
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    let endless = move |_: Request<Upload<ReadHalf<DuplexStream>>>| {
        let counter = Arc::clone(&counter);
        let chunks = stream::repeat_with(move || {
            counter.fetch_add(1, Relaxed);
            Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(&[b'x'; 1024])))
        });
        std::future::ready(Response::new(StreamBody::new(chunks)))
    };
    let served = tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &endless).await });
    far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Late)));
    assert!(
        taken.load(Relaxed) <= 5,
        "{} KB were taken for a reader who has room for 4",
        taken.load(Relaxed)
    );
}

#[tokio::test]
async fn who_is_to_leave_goes_after_an_answer_and_at_once_only_when_that_is_due() {
    let stopping = Arc::<Stopping>::default();
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::clone(&stopping));
    stopping.begin(10 * PATIENCE);
    tokio::task::yield_now().await;
    assert!(!served.is_finished(), "a request may be on its way");
    far.write_all(b"POST /a HTTP/1.1\r\ncontent-length: 3\r\n\r\ntea").await.unwrap();
    let answer = hear(&mut far, "Ok(b\"tea\")").await;
    assert!(answer.contains("connection: close\r\n"), "{answer}");
    assert!(matches!(served.await.unwrap(), Ended::Done));
    stopping.quiet().cancel();
    let (near, _far) = ends(1 << 16);
    assert!(matches!(serve_echo(near, stopping).await.unwrap(), Ended::Done));
}

#[tokio::test]
async fn http2_is_left_as_it_came() {
    let begins = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0";
    let (near, mut far) = ends(1 << 16);
    let served = serve_echo(near, Arc::default());
    far.write_all(begins).await.unwrap();
    let Ended::Http2(Left { read, .. }) = served.await.unwrap() else { panic!("it is HTTP/2") };
    assert_eq!(read, begins[..]);
}

#[tokio::test]
async fn an_answer_does_not_wait_for_the_rest_of_its_request() {
    let (near, mut far) = ends(1 << 16);
    let dropped = Arc::new(AtomicBool::new(false));
    let saw = Arc::clone(&dropped);
    let early = move |request: Request<Upload<ReadHalf<DuplexStream>>>| {
        let saw = Arc::clone(&saw);
        async move {
            let mut body = request.into_body();
            assert!(body.frame().await.is_some());
            // Somebody still sends it on, for a while.
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                saw.store(true, Relaxed);
                drop(body);
            });
            Response::new(Full::from("no"))
        }
    };
    let served = tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &early).await });
    far.write_all(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\ntea").await.unwrap();
    hear(&mut far, "no").await;
    assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "the connection ends: what follows may be the body");
    drop(far);
    assert!(matches!(served.await.unwrap(), Ended::Done));
    assert!(dropped.load(Relaxed));
}

/// Passes on what is plain, and answers the rest by echo; counts what it has begun to answer. Forgets large bodies, and takes apart
/// what is asked of `/apart`.
#[derive(Default)]
struct Passes(AtomicUsize);

impl Answer<ReadHalf<DuplexStream>> for Passes {
    type Body = Full<Bytes>;

    async fn answer(&self, request: Request<Upload<ReadHalf<DuplexStream>>>) -> Response<Full<Bytes>> {
        self.0.fetch_add(1, Relaxed);
        echo(request).await
    }

    fn passes(&self) -> bool {
        true
    }

    async fn pass<W: AsyncWrite + Unpin>(
        &self,
        connection: &mut Connection<ReadHalf<DuplexStream>, W>,
        stopping: &Stopping,
    ) -> Result<Option<bool>, Broken> {
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
            connection.forget(length - body..length);
        }
        if is_apart {
            return connection.take_apart(|request| self.answer(request), stopping).await.map(Some);
        }
        let sent = connection.wait(length, |mut reply, context| {
            let mut room = header_storage();
            let answer =
                BorrowedResponse::read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntea", &mut room);
            Poll::Ready(reply.send(&answer.unwrap(), false, context))
        });
        let sent = sent.await??;
        connection.answered(sent, length).await?;
        Ok(Some(true))
    }
}

fn serve_passing(near: Near, answers: Arc<Passes>) -> Served {
    tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &*answers).await })
}

#[tokio::test(start_paused = true)]
async fn most_of_a_large_request_waits_for_the_rest_and_not_for_long() {
    let (near, mut far) = ends(1 << 17);
    let answers = Arc::<Passes>::default();
    let _served = serve_passing(near, Arc::clone(&answers));
    let head = "POST /a HTTP/1.1\r\nhost: a.b\r\ncontent-length: 50000\r\n\r\n";
    let request = head.to_owned() + &"t".repeat(50_000);
    let (most, rest) = request.as_bytes().split_at(30_000);
    // The first one is not known to be so large.
    far.write_all(request.as_bytes()).await.unwrap();
    hear(&mut far, "ttt\")").await;
    for pause in [1, 1, 10] {
        far.write_all(most).await.unwrap();
        sleep(Duration::from_millis(pause)).await;
        far.write_all(rest).await.unwrap();
        hear(&mut far, "\r\n\r\ntea").await;
    }
    assert_eq!(answers.0.load(Relaxed), 1, "the others were passed on");
    far.write_all(most).await.unwrap();
    sleep(Duration::from_millis(30)).await;
    assert_eq!(answers.0.load(Relaxed), 2, "what has come goes on alone");
    // As long as the call may take.
    sleep(2 * PATIENCE).await;
    far.write_all(rest).await.unwrap();
    assert!(hear(&mut far, "ttt\")").await.contains("POST /a Ok(b\"ttt"));
}

#[tokio::test]
async fn what_follows_a_body_that_was_forgotten_is_the_next_request() {
    let (near, mut far) = ends(1 << 18);
    let answers = Arc::<Passes>::default();
    let served = serve_passing(near, Arc::clone(&answers));
    let post = |path: &str, size: usize| {
        format!("POST {path} HTTP/1.1\r\nhost: a.b\r\ncontent-length: {size}\r\n\r\n{}", "t".repeat(size))
    };
    // The first one is not known to be so large.
    far.write_all(post("/a", 60_000).as_bytes()).await.unwrap();
    hear(&mut far, "ttt\")").await;
    let tea = "\r\n\r\ntea";
    let all = [
        (post("/a", 60_000), tea),
        (post("/apart", 20_000), "POST /apart Ok(b\"\")"),
        (post("/apart", 5), "POST /apart Ok(b\"ttttt\")"),
        (post("/a", 9_000), tea),
        (post("/apart", 3), "POST /apart Ok(b\"ttt\")"),
    ];
    for (request, answer) in &all {
        far.write_all(request.as_bytes()).await.unwrap();
        hear(&mut far, answer).await;
    }
    assert_eq!(answers.0.load(Relaxed), 4, "the others were passed on");
    // At once: little of what follows a body is moved, and much stays where it is.
    let sent: String = all.iter().map(|(request, _)| request.as_str()).collect();
    far.write_all(sent.as_bytes()).await.unwrap();
    far.shutdown().await.unwrap();
    let mut heard = String::new();
    far.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard.matches("HTTP/1.1 200").count(), all.len(), "{heard}");
    assert!(heard.starts_with("HTTP/1.1 200 OK") && heard.ends_with(all[4].1), "{heard}");
    assert!(matches!(served.await.unwrap(), Ended::Done));
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_requests_were_passed_on_is_as_any_other() {
    let get = b"GET /a HTTP/1.1\r\nhost: a.b\r\n\r\n";
    let (near, mut far) = ends(1 << 16);
    let served = serve_passing(near, Arc::default());
    far.write_all(&[&get[..], get].concat()).await.unwrap();
    let mut heard = String::new();
    while heard.matches("\r\n\r\ntea").count() < 2 {
        heard += &hear(&mut far, "tea").await;
    }
    assert!(matches!(served.await.unwrap(), Ended::Done), "it was idle, and nothing was wrong with it");
    let (near, mut far) = ends(1 << 16);
    let served = serve_passing(near, Arc::default());
    far.write_all(&[&get[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat()).await.unwrap();
    assert!(hear(&mut far, "\n").await.contains("teaHTTP/1.1 400 "));
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Refused(_))));
}

type Log = Arc<Mutex<Vec<String>>>;

/// Writes down that something was read.
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
async fn requests_that_come_together_are_all_read_before_one_is_answered() {
    let log = Log::default();
    let mut connections = Vec::new();
    for name in ["a", "b"] {
        let ((reader, writer), mut far) = ends(1 << 16);
        far.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let answered = Arc::clone(&log);
        let answer = move |_: Request<Upload<Logged>>| {
            answered.lock().unwrap().push(format!("answer {name}"));
            std::future::ready(Response::new(Full::from("done")))
        };
        let near = (Logged(reader, name, Arc::clone(&log)), writer);
        tokio::spawn(async move { serve(near, PATIENCE, &Stopping::default(), &answer).await });
        connections.push(far);
    }
    for far in &mut connections {
        hear(far, "done").await;
    }
    assert_eq!(mem::take(&mut *log.lock().unwrap()), ["read a", "read b", "answer a", "answer b"]);
}
