//! The same h2 client sends the same requests to this server and to hyper's, with windows, frames and pieces of any
//! size. Both servers must dispatch the same requests and send the same responses.

mod client_role;

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

use super::super::{PREFACE, ServerConnection, lock, session::Mutant};
use crate::BoxError;

/// A request.
#[derive(Clone, Debug)]
struct TestRequest {
    method: Method,
    path: String,
    fields: Vec<(u8, String)>,
    /// Lengths of the body pieces.
    body: Vec<usize>,
    trailers: bool,
    /// How the server handles this request.
    manner: Behaviour,
}

#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// Sends the body back as it arrives.
    Echoes,
    /// Reads the body to its end, then sends it back.
    Collects,
    /// Responds at once, without reading the body.
    Ignores,
    /// Fails in the middle of the body.
    Breaks,
}

#[derive(Clone, Debug)]
struct Scenario {
    window: u32,
    connection_window: u32,
    frame: u32,
    table: u32,
    pipe: usize,
    requests: Vec<TestRequest>,
}

/// Observed result of one request.
#[derive(Debug, PartialEq)]
struct Observed {
    status: Option<StatusCode>,
    headers: HeaderMap,
    body: Bytes,
    trailers: Option<HeaderMap>,
    reset: Option<Reason>,
}

impl Observed {
    fn nothing() -> Self {
        Self { status: None, headers: HeaderMap::new(), body: Bytes::new(), trailers: None, reset: None }
    }
}

type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

fn whole(bytes: Bytes) -> ResponseBody {
    http_body_util::Full::new(bytes).map_err(Into::into).boxed_unsync()
}

/// The service that both servers run.
async fn response<B>(request: Request<B>) -> Response<ResponseBody>
where
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let (head, body) = request.into_parts();
    let manner = head.headers.get("manner").map(|value| value.as_bytes().to_vec()).unwrap_or_default();
    let mut response = match &manner[..] {
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
    let headers = response.headers_mut();
    headers.extend(head.headers);
    headers.remove("content-length");
    headers.insert("method", head.method.as_str().parse().unwrap());
    headers.insert("uri", head.uri.to_string().parse().unwrap());
    headers.append("set-cookie", HeaderValue::from_static("a=b"));
    // 204 is left out, because h2 accepts a body with it.
    let statuses = [200, 201, 202, 203, 206, 404, 503];
    *response.status_mut() = StatusCode::from_u16(statuses[head.uri.path().len() % 7]).unwrap();
    response
}

async fn serve_with_own(mut stream: DuplexStream, mutant: Option<Mutant>) {
    let mut preface = BytesMut::zeroed(PREFACE.len());
    stream.read_exact(&mut preface).await.unwrap();
    let service = |request| -> Pin<Box<dyn Future<Output = _> + Send>> { Box::pin(response(request)) };
    let connection = ServerConnection::new(stream, preface, service);
    lock(&connection.session()).mutant = mutant;
    connection.await.unwrap();
}

async fn serve_with_hyper(stream: DuplexStream) {
    let service =
        hyper::service::service_fn(|request| async { Ok::<_, Infallible>(response(request).await) });
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

async fn upload(mut sender: h2::SendStream<Bytes>, spec: TestRequest) {
    for (n, length) in spec.body.iter().enumerate() {
        let is_last = n + 1 == spec.body.len() && !spec.trailers;
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
    if spec.trailers {
        let _ = sender.send_trailers(trailers());
    }
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(HeaderName::from_static("x-sum"), HeaderValue::from_static("7"))])
}

fn request(spec: &TestRequest) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = spec.method.clone();
    *request.uri_mut() = format!("http://one.shop{}", spec.path).parse().unwrap();
    request.headers_mut().insert("manner", format!("{:?}", spec.manner).parse().unwrap());
    for (name, value) in &spec.fields {
        let name: HeaderName = format!("x-{name}").parse().unwrap();
        request.headers_mut().append(name, value.parse().unwrap());
    }
    request
}

async fn perform(sender: client::SendRequest<Bytes>, spec: TestRequest) -> Observed {
    let mut sender = sender.ready().await.unwrap();
    let ends = spec.body.iter().all(|length| *length == 0) && !spec.trailers;
    let (response, body) = sender.send_request(request(&spec), ends).unwrap();
    let uploading = tokio::spawn(async move { if ends { drop(body) } else { upload(body, spec).await } });
    let heard = match response.await {
        Err(error) => Observed { reset: error.reason(), ..Observed::nothing() },
        Ok(response) => {
            let (mut head, body) = response.into_parts();
            head.headers.remove("date");
            // Whether a complete body gets a length depends on timing.
            head.headers.remove("content-length");
            let (body, trailers, reset) = body_of(body).await;
            Observed { status: Some(head.status), headers: head.headers, body, trailers, reset }
        }
    };
    uploading.await.unwrap();
    heard
}

async fn run(scenario: &Scenario, near: DuplexStream) -> Vec<Observed> {
    let (sender, connection) = client::Builder::new()
        .initial_window_size(scenario.window)
        .initial_connection_window_size(scenario.connection_window)
        .max_frame_size(scenario.frame)
        .header_table_size(scenario.table)
        .handshake::<_, Bytes>(near)
        .await
        .unwrap();
    let connection = tokio::spawn(connection);
    let requests = scenario.requests.iter().map(|one| perform(sender.clone(), one.clone()));
    let heard = futures_util::future::join_all(requests).await;
    drop(sender);
    connection.await.unwrap().unwrap();
    heard
}

/// Requests with bodies in pieces of up to `longest` bytes.
fn requests(longest: usize) -> impl Strategy<Value = TestRequest> {
    let manner = prop_oneof![
        3 => Just(Behaviour::Echoes),
        3 => Just(Behaviour::Collects),
        1 => Just(Behaviour::Ignores),
        1 => Just(Behaviour::Breaks),
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
        .prop_map(|(method, path, fields, body, trailers, manner)| TestRequest {
            trailers: trailers && !body.is_empty(),
            method,
            path,
            fields,
            body,
            manner,
        })
}

/// Scenarios over a pipe of this size, with bodies that fit the pipe.
fn scenarios(pipe: Range<usize>) -> impl Strategy<Value = Scenario> {
    let longest = (30 * pipe.start).clamp(200, 70_000);
    // Frames of one or two bytes occur only with short bodies.
    let least = longest as u32 / 100;
    (
        prop_oneof![least..2000_u32, 60_000..200_000_u32],
        65_535..300_000_u32,
        16_384..70_000_u32,
        prop_oneof![Just(0_u32), 0..300_u32, Just(4096)],
        pipe,
        prop::collection::vec(requests(longest), 1..24),
    )
        .prop_map(|(window, connection_window, frame, table, pipe, requests)| Scenario {
            window,
            connection_window,
            frame,
            table,
            pipe,
            requests,
        })
}

/// Fails after a timeout. The clock is paused, so a deadlock ends as soon as all tasks are idle.
async fn in_time<T>(whose: &str, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.unwrap_or_else(|_| panic!("{whose} hangs"))
}

fn both(scenario: &Scenario, mutant: Option<Mutant>) -> (Vec<Observed>, Vec<Observed>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let (near, far) = duplex(scenario.pipe);
        let serving = tokio::spawn(serve_with_own(far, mutant));
        let by_ours = in_time("ours", run(scenario, near)).await;
        in_time("ours", serving).await.unwrap();
        // h2 fails over a pipe of a few bytes.
        let (near, far) = duplex(1 << 16);
        let serving = tokio::spawn(serve_with_hyper(far));
        let by_hypers = in_time("hyper's", run(scenario, near)).await;
        in_time("hyper's", serving).await.unwrap();
        (by_ours, by_hypers)
    })
}

/// Scenarios over pipes of a few bytes and over pipes of common sizes.
fn any_scenarios() -> impl Strategy<Value = Scenario> {
    prop_oneof![scenarios(2..100), scenarios(5000..100_000)]
}

/// Reports differences between the two servers.
fn compare(scenario: &Scenario, mutant: Option<Mutant>) -> Result<(), TestCaseError> {
    let (serve_with_own, serve_with_hyper) = both(scenario, mutant);
    for ((serve_with_own, serve_with_hyper), spec) in
        serve_with_own.iter().zip(&serve_with_hyper).zip(&scenario.requests)
    {
        let breaks = matches!(spec.manner, Behaviour::Breaks);
        // h2 drops unsent frames of a stream that it resets; this server has sent them already.
        let alike =
            serve_with_own == serve_with_hyper || breaks && serve_with_own.reset == serve_with_hyper.reset;
        prop_assert!(alike, "{serve_with_own:?} and {serve_with_hyper:?} of {spec:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn http2_server_responds_like_hyper(scenario in any_scenarios()) {
        compare(&scenario, None)?;
    }
}

#[test]
fn comparison_with_hyper_detects_every_server_mutant() {
    for mutant in [
        Mutant::MisroutesBody,
        Mutant::DropsTrailers,
        Mutant::IgnoresWindow,
        Mutant::DropsEndStream,
        Mutant::DropsField,
    ] {
        let mut dice = TestRunner::deterministic();
        let found = (0..64).any(|_| {
            let scenario = any_scenarios().new_tree(&mut dice).unwrap().current();
            let compared = panic::catch_unwind(|| compare(&scenario, Some(mutant)));
            !matches!(compared, Ok(Ok(())))
        });
        assert!(found, "{mutant:?}");
    }
}
