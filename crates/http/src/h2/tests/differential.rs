//! The same program, which h2 speaks for, asks our side and hyper's for the same, over windows, frames and pieces of any size:
//! both must hand on the same requests, and answer the same.

mod asking;

use std::{convert::Infallible, ops::Range, panic, pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use h2::{Reason, RecvStream, client};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::server::conn::http2::Builder;
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::{prelude::*, strategy::ValueTree as _, test_runner::TestRunner};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

use super::super::{Connection, PREFACE, lock, session::Planted};
use crate::BoxError;

/// What a program asks for.
#[derive(Clone, Debug)]
struct Ask {
    method: Method,
    path: String,
    fields: Vec<(u8, String)>,
    /// Lengths of pieces.
    body: Vec<usize>,
    trailers: bool,
    /// What the server does.
    manner: Manner,
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    /// Sends the body back as it comes.
    Echoes,
    /// Reads it to its end, and then sends it back whole.
    Collects,
    /// Answers at once, and reads nothing.
    Ignores,
    /// Breaks off in the middle.
    Breaks,
}

#[derive(Clone, Debug)]
struct Program {
    window: u32,
    connection_window: u32,
    frame: u32,
    table: u32,
    pipe: usize,
    asks: Vec<Ask>,
}

/// What a program heard of one request.
#[derive(Debug, PartialEq)]
struct Heard {
    status: Option<StatusCode>,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
    reset: Option<Reason>,
}

impl Heard {
    fn nothing() -> Self {
        Self { status: None, headers: HeaderMap::new(), body: Bytes::new(), trailers: None, reset: None }
    }
}

type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

fn whole(bytes: Bytes) -> AnswerBody {
    http_body_util::Full::new(bytes).map_err(Into::into).boxed_unsync()
}

/// Answers, whoever reads the request.
async fn answer<B>(request: Request<B>) -> Response<AnswerBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (head, body) = request.into_parts();
    let manner = head.headers.get("manner").map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    let mut answer = match &manner[..] {
        b"Echoes" => Response::new(body.map_err(Into::into).boxed_unsync()),
        b"Collects" => {
            let collected = body.collect().await.map_err(Into::into).unwrap();
            let trailers = collected.trailers().cloned();
            let bytes = collected.to_bytes();
            let pieces = [Some(Frame::data(bytes)), trailers.map(Frame::trailers)];
            let frames = futures_util::stream::iter(pieces.into_iter().flatten().map(Ok::<_, BoxError>));
            Response::new(StreamBody::new(frames).boxed_unsync())
        }
        b"Breaks" => {
            let frames = [Ok(Frame::data(Bytes::from_static(b"so far"))), Err("broken".into())];
            Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
        }
        _ => Response::new(whole(Bytes::from_static(b"ignored"))),
    };
    let headers = answer.headers_mut();
    headers.extend(head.headers);
    headers.remove("content-length");
    headers.insert("method", head.method.as_str().parse().unwrap());
    headers.insert("uri", head.uri.to_string().parse().unwrap());
    headers.append("set-cookie", HeaderValue::from_static("a=b"));
    // Not 204, whose body h2 takes as well.
    let statuses = [200, 201, 202, 203, 206, 404, 503];
    *answer.status_mut() = StatusCode::from_u16(statuses[head.uri.path().len() % 7]).unwrap();
    answer
}

async fn ours(mut stream: DuplexStream, planted: Option<Planted>) {
    let mut preface = BytesMut::zeroed(PREFACE.len());
    stream.read_exact(&mut preface).await.unwrap();
    let service = |request| -> Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(answer(request)) };
    let connection = Connection::new(stream, preface, service);
    lock(&connection.session()).planted = planted;
    connection.await.unwrap();
}

async fn hypers(stream: DuplexStream) {
    let service = hyper::service::service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

async fn body_of(mut body: RecvStream) -> (Bytes, Option<HeaderMap>, Option<Reason>) {
    let mut whole = BytesMut::new();
    while let Some(data) = body.data().await {
        match data {
            Ok(data) => {
                whole.extend_from_slice(&data);
                let _ = body.flow_control().release_capacity(data.len());
            }
            Err(error) => return (whole.freeze(), None, error.reason()),
        }
    }
    match body.trailers().await {
        Ok(trailers) => (whole.freeze(), trailers, None),
        Err(error) => (whole.freeze(), None, error.reason()),
    }
}

async fn upload(mut sender: h2::SendStream<Bytes>, ask: Ask) {
    for (n, length) in ask.body.iter().enumerate() {
        let is_last = n + 1 == ask.body.len() && !ask.trailers;
        let mut piece = Bytes::from(vec![b'a' + n as u8 % 26; *length]);
        if piece.is_empty() && is_last {
            let _ = sender.send_data(Bytes::new(), true);
        }
        while !piece.is_empty() {
            sender.reserve_capacity(piece.len());
            let Some(Ok(room)) = std::future::poll_fn(|context| sender.poll_capacity(context)).await else {
                return;
            };
            let part = piece.split_to(room.min(piece.len()));
            if sender.send_data(part, is_last && piece.is_empty()).is_err() {
                return;
            }
        }
    }
    if ask.trailers {
        let _ = sender.send_trailers(trailers());
    }
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))])
}

fn request(ask: &Ask) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = ask.method.clone();
    *request.uri_mut() = format!("http://one.shop{}", ask.path).parse().unwrap();
    request.headers_mut().insert("manner", format!("{:?}", ask.manner).parse().unwrap());
    for (name, value) in &ask.fields {
        let name: HeaderName = format!("x-{name}").parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

async fn ask(sender: client::SendRequest<Bytes>, ask: Ask) -> Heard {
    let mut sender = sender.ready().await.unwrap();
    let ends = ask.body.iter().all(|length| *length == 0) && !ask.trailers;
    let (answer, body) = sender.send_request(request(&ask), ends).unwrap();
    let uploading = tokio::spawn(async move { if ends { drop(body) } else { upload(body, ask).await } });
    let heard = match answer.await {
        Err(error) => Heard { reset: error.reason(), ..Heard::nothing() },
        Ok(answer) => {
            let (mut head, body) = answer.into_parts();
            head.headers.remove("date");
            // Of a body that has come whole ours knows the length, and whether it has is up to chance.
            head.headers.remove("content-length");
            let (body, trailers, reset) = body_of(body).await;
            Heard { status: Some(head.status), headers: head.headers, body, trailers, reset }
        }
    };
    uploading.await.unwrap();
    heard
}

async fn run(program: &Program, near: DuplexStream) -> Vec<Heard> {
    let (sender, connection) = client::Builder::new()
        .initial_window_size(program.window)
        .initial_connection_window_size(program.connection_window)
        .max_frame_size(program.frame)
        .header_table_size(program.table)
        .handshake::<_, Bytes>(near)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let asks = program.asks.iter().map(|one| ask(sender.clone(), one.clone()));
    let heard = futures_util::future::join_all(asks).await;
    drop(sender);
    connection.await.unwrap().unwrap();
    heard
}

/// With bodies in pieces of up to this length.
fn asks(longest: usize) -> impl Strategy<Value = Ask> {
    let manner = prop_oneof![
        3 => Just(Manner::Echoes),
        3 => Just(Manner::Collects),
        1 => Just(Manner::Ignores),
        1 => Just(Manner::Breaks),
    ];
    let length = prop_oneof![Just(0_usize), 1..longest / 100, longest / 10..longest];
    (
        prop_oneof![Just(Method::GET), Just(Method::POST), Just(Method::PUT)],
        "/[a-z]{0,30}(\\?[a-z=&]{0,20})?",
        prop::collection::vec((0..12_u8, "[ -~]{0,40}".prop_map(|text| text.trim().to_owned())), 0..12),
        prop::collection::vec(length, 0..4),
        any::<bool>(),
        manner,
    )
        .prop_map(|(method, path, fields, body, trailers, manner)| Ask {
            trailers: trailers && !body.is_empty(),
            method,
            path,
            fields,
            body,
            manner,
        })
}

/// Over a pipe of such a size, and with bodies that fit it.
fn programs(pipe: Range<usize>) -> impl Strategy<Value = Program> {
    let longest = (30 * pipe.start).clamp(200, 70_000);
    // Frames of a byte or two are for short bodies.
    let least = longest as u32 / 100;
    (
        prop_oneof![least..2000_u32, 60_000..200_000_u32],
        65_535..300_000_u32,
        16_384..70_000_u32,
        prop_oneof![Just(0_u32), 0..300_u32, Just(4096)],
        pipe,
        prop::collection::vec(asks(longest), 1..24),
    )
        .prop_map(|(window, connection_window, frame, table, pipe, asks)| Program {
            window,
            connection_window,
            frame,
            table,
            pipe,
            asks,
        })
}

/// Nothing waits for ever: the clock goes on as soon as nobody has anything to do.
async fn in_time<T>(whose: &str, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.unwrap_or_else(|_| panic!("{whose} hangs"))
}

fn both(program: &Program, planted: Option<Planted>) -> (Vec<Heard>, Vec<Heard>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (near, far) = duplex(program.pipe);
        let serving = tokio::spawn(ours(far, planted));
        let by_ours = in_time("ours", run(program, near)).await;
        in_time("ours", serving).await.unwrap();
        // h2 gives up on a pipe of a few bytes.
        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(hypers(far));
        let by_hypers = in_time("hyper's", run(program, near)).await;
        in_time("hyper's", serving).await.unwrap();
        (by_ours, by_hypers)
    })
}

/// Over pipes of a few bytes, and over usual ones.
fn any_programs() -> impl Strategy<Value = Program> {
    prop_oneof![programs(2..100), programs(5000..100_000)]
}

/// Says where they differ.
fn compare(program: &Program, planted: Option<Planted>) -> Result<(), TestCaseError> {
    let (ours, hypers) = both(program, planted);
    for ((ours, hypers), ask) in ours.iter().zip(&hypers).zip(&program.asks) {
        let breaks = matches!(ask.manner, Manner::Breaks);
        // h2 forgets what waits to be sent on a stream that it resets, and ours has sent it.
        let alike = ours == hypers || breaks && ours.reset == hypers.reset;
        prop_assert!(alike, "{ours:?} and {hypers:?} of {ask:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn ours_answers_as_hypers_does(program in any_programs()) {
        compare(&program, None)?;
    }
}

#[test]
fn a_mistake_is_found() {
    for planted in [
        Planted::AnyStreamsBody,
        Planted::NoTrailers,
        Planted::NoWindow,
        Planted::NoEnd,
        Planted::OneFieldLess,
    ] {
        let mut dice = TestRunner::deterministic();
        let found = (0..64).any(|_| {
            let program = any_programs().new_tree(&mut dice).unwrap().current();
            let compared = panic::catch_unwind(|| compare(&program, Some(planted)));
            !matches!(compared, Ok(Ok(())))
        });
        assert!(found, "{planted:?}");
    }
}
