//! Tests of the client role against a scripted server, frame by frame.

mod capacity;
mod malformed_responses;
mod requests;
mod responses;
mod shutdown;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, Response, uri::Authority};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::{
    io::{AsyncReadExt as _, duplex},
    sync::mpsc,
    task::JoinHandle,
};

use super::{
    super::{
        Call, CallError, CallResponse, Capacity, ClientConnection, PREFACE, Reason, RequestHead,
        ResponseBody, Shared, StreamError,
        frame::{
            ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PUSH_PROMISE,
            RST_STREAM, SETTINGS, WINDOW_UPDATE,
        },
        lock,
    },
    wire::{Wire, data_frames, header_block, in_time, raw_frame, rst_stream, settings_frame, window_update},
};
use crate::BoxError;
use crate::hpack::Field;

const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

type Body = UnsyncBoxBody<Bytes, BoxError>;
type CallTask = JoinHandle<Result<CallResponse<Body>, CallError<BoxError>>>;

/// A scripted server.
struct Server {
    wire: Wire,
    session: Shared,
    driving: JoinHandle<()>,
}

/// A frame that the server received.
#[derive(Debug, PartialEq)]
enum Event {
    Headers { stream: u32, fields: Vec<(String, String)>, ends: bool },
    Data { stream: u32, data: Bytes, ends: bool },
    Reset(u32, Reason),
    SettingsAck,
    Pong(Bytes),
    GoAway(u32, Reason),
    WindowUpdate(u32, u32),
    Closed,
}

impl Server {
    /// Connects, and exchanges the prefaces of both sides.
    async fn with(settings: &[(u16, u32)]) -> Self {
        let (io, far) = duplex(1 << 20);
        let connection = ClientConnection::new(far);
        let session = connection.session();
        let mut server = Self { wire: Wire::new(io), session, driving: tokio::spawn(connection) };
        let mut preface = BytesMut::zeroed(PREFACE.len());
        in_time(server.wire.io.read_exact(&mut preface)).await.unwrap();
        assert_eq!(&preface[..], PREFACE);
        let (first, _) = server.wire.frame().await.unwrap();
        assert_eq!((first.kind, first.flags), (SETTINGS, 0));
        assert_eq!(server.next_event().await, Event::WindowUpdate(0, (1 << 30) - 65_535));
        server.send(&settings_frame(settings)).await;
        assert_eq!(server.next_event().await, Event::SettingsAck);
        server
    }

    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).await;
    }

    async fn next_event(&mut self) -> Event {
        let Some((head, payload)) = self.wire.frame().await else { return Event::Closed };
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        let (stream, ends) = (head.stream, head.has(END_STREAM));
        match head.kind {
            DATA => Event::Data { stream, data: payload, ends },
            HEADERS => {
                let fields = self.wire.fields(head, payload).await.iter().map(name_and_value).collect();
                Event::Headers { stream, fields, ends }
            }
            RST_STREAM => Event::Reset(stream, Reason(number(0))),
            SETTINGS if head.has(ACK) => Event::SettingsAck,
            PING if head.has(ACK) => Event::Pong(payload),
            GOAWAY => Event::GoAway(number(0), Reason(number(4))),
            WINDOW_UPDATE => Event::WindowUpdate(stream, number(0)),
            _ => panic!("unexpected {head:?}"),
        }
    }

    async fn expect(&mut self, expected: impl IntoIterator<Item = Event>) {
        for expected in expected {
            assert_eq!(self.next_event().await, expected);
        }
    }

    /// Receives `length` bytes of a body, in any number of frames. Returns whether the last frame had END_STREAM.
    async fn expect_bytes(&mut self, stream: u32, mut length: usize) -> bool {
        loop {
            match self.next_event().await {
                Event::Data { stream: of, data, ends } if of == stream && data.len() <= length => {
                    length -= data.len();
                    if length == 0 {
                        return ends;
                    }
                }
                other => panic!("{other:?}, and {length} bytes are missing"),
            }
        }
    }

    /// Checks that nothing is sent, even when all tasks are idle.
    async fn expect_nothing(&mut self) {
        let event = tokio::time::timeout(std::time::Duration::from_millis(1), self.next_event()).await;
        assert!(event.is_err(), "unexpected {event:?}");
    }

    /// Begins a call with this body.
    fn call(&self, method: &Method, body: Body) -> CallTask {
        let headers = [("x-a", "b")].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let (authority, headers) = (Authority::from_static("one.shop"), HeaderMap::from_iter(headers));
        let ask = RequestHead { method, authority: &authority, path: "/p?q", headers: &headers };
        let ends = body.is_end_stream();
        let locked = lock(&self.session);
        assert_eq!(locked.capacity(), Capacity::Available);
        let call = Call::begin(&self.session, locked, &ask, ends);
        tokio::spawn(if ends { call } else { call.with(body) })
    }

    /// Begins a call without a body, and waits until the server has received its request.
    async fn get(&mut self, stream: u32) -> CallTask {
        let called = self.call(&Method::GET, whole(""));
        self.expect([head(stream, "GET", true)]).await;
        called
    }

    /// Checks that the connection still works: a call gets its response, and nothing else is sent.
    async fn expect_alive(&mut self, stream: u32) {
        let called = self.get(stream).await;
        self.send(&response_headers(stream, "200", &[], true)).await;
        assert_eq!(response_of(called).await.status(), 200);
        self.expect_nothing().await;
    }

    fn capacity(&self) -> Capacity {
        lock(&self.session).capacity()
    }

    /// Checks that the connection ends with GOAWAY.
    async fn expect_goaway(mut self, reason: Reason) {
        self.expect([Event::GoAway(0, reason), Event::Closed]).await;
        in_time(self.driving).await.unwrap();
    }
}

/// Name and value of a field.
fn name_and_value(field: &Field) -> (String, String) {
    let (name, value) = match field {
        Field::Method(method) => (":method", method.as_str()),
        Field::Scheme(scheme) => (":scheme", scheme.as_str()),
        Field::Authority(authority) => (":authority", authority.as_str()),
        Field::Path(path) => (":path", path.as_str()),
        Field::Header(name, value) => (name.as_str(), value.to_str().unwrap()),
        other => panic!("{other:?} is of no request"),
    };
    (name.to_owned(), value.to_owned())
}

fn head(stream: u32, method: &str, ends: bool) -> Event {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", "/p?q"),
        (":authority", "one.shop"),
        ("x-a", "b"),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Event::Headers { stream, fields, ends }
}

fn data(stream: u32, text: impl Into<Bytes>, ends: bool) -> Event {
    Event::Data { stream, data: text.into(), ends }
}

/// Encodes the headers of a response, with END_STREAM if the response `ends`.
fn response_headers(stream: u32, status: &str, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let fields = [&[(":status", status)], fields].concat();
    raw_frame(
        HEADERS,
        if ends { END_HEADERS | END_STREAM } else { END_HEADERS },
        stream,
        header_block(&fields),
    )
}

fn goaway(last: u32, reason: Reason) -> Vec<u8> {
    raw_frame(GOAWAY, 0, 0, [last, reason.0].map(u32::to_be_bytes).concat())
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(Into::into).boxed_unsync()
}

type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// Returns a body, and the sender of its pieces.
fn streamed() -> (Pieces, Body) {
    let (pieces, mut body) = mpsc::unbounded_channel();
    let body = futures_util::stream::poll_fn(move |context| body.poll_recv(context));
    (pieces, StreamBody::new(body).boxed_unsync())
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

async fn outcome(called: CallTask) -> Result<CallResponse<Body>, CallError<BoxError>> {
    in_time(called).await.unwrap()
}

/// Returns the response to a call whose request was sent completely.
async fn response_of(called: CallTask) -> Response<ResponseBody> {
    let (response, upload) = outcome(called).await.unwrap();
    assert!(upload.is_none());
    response
}

async fn error_of(called: CallTask) -> StreamError {
    match outcome(called).await {
        Err(CallError::Stream(lost)) => lost,
        other => panic!("{other:?}"),
    }
}

/// Reads the whole body. Returns it with its trailers.
async fn read(response: Response<ResponseBody>) -> Result<(Bytes, Option<HeaderMap>), StreamError> {
    let collected = in_time(response.into_body().collect()).await?;
    let trailers = collected.trailers().cloned();
    Ok((collected.to_bytes(), trailers))
}
