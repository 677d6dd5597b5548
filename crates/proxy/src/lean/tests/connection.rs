use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::Notify,
    task::JoinHandle,
    time::{Instant, sleep},
};

use crate::{
    lean::{Broken, Ended, Upload, serve},
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
        assert_ne!(far.read_buf(&mut text).await.unwrap(), 0, "{:?}", String::from_utf8_lossy(&text));
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
async fn what_is_not_done_here_is_left_as_it_came() {
    for begins in [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0",
        "CONNECT a.b:443 HTTP/1.1\r\nhost: a.b\r\n\r\ntunnel",
        "GET / HTTP/1.1\r\nUPGRADE: websocket\r\n\r\n\x01",
    ] {
        let (near, mut far) = ends(1 << 16);
        let served = serve_echo(near, Arc::default());
        far.write_all(begins.as_bytes()).await.unwrap();
        let Ended::Beyond(_, _, read) = served.await.unwrap() else { panic!("{begins}") };
        assert_eq!(read, begins.as_bytes());
    }
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

#[tokio::test(start_paused = true)]
async fn most_of_a_large_request_waits_for_the_rest_and_not_for_ever() {
    let request = |id: u32| {
        format!("POST /{id} HTTP/1.1\r\nhost: a.b\r\ncontent-length: 50000\r\n\r\n{}", "t".repeat(50_000))
    };
    let (near, mut far) = ends(1 << 17);
    let served = serve_echo(near, Arc::default());
    for id in 0..3 {
        let request = request(id);
        let (most, rest) = request.as_bytes().split_at(30_000);
        far.write_all(most).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        far.write_all(rest).await.unwrap();
        let answer = hear(&mut far, "ttt\")").await;
        assert!(answer.contains(&format!("POST /{id} Ok(b\"ttt")), "{}", &answer[..200]);
        assert!(answer.len() > 50_000);
    }
    far.write_all(&request(3).as_bytes()[..30_000]).await.unwrap();
    let begun = Instant::now();
    assert!(matches!(served.await.unwrap(), Ended::Broken(Broken::Late)));
    assert!(begun.elapsed() < PATIENCE + Duration::from_secs(1), "{:?}", begun.elapsed());
}
