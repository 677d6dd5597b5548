//! Tests of the server role against a scripted client, frame by frame.

mod accepted;
mod disconnects;
mod floods;
mod goaway;
mod resets;
mod responses;
mod send_windows;
mod stream_errors;
mod tunnels;
mod uploads;
mod violations;

use std::{pin::Pin, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use super::{
    super::{
        ConnectionError, PREFACE, Reason, RequestBody, ServerConnection, Shared,
        frame::{
            ACK, CONTINUATION, DATA, DEFAULT_FRAME_SIZE, END_HEADERS, END_STREAM, FrameHeader, GOAWAY,
            HEADER_LEN, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE,
        },
    },
    wire::{Wire, data_frames, header_block, in_time, raw_frame, rst_stream, settings_frame, window_update},
};
use crate::BoxError;
use crate::hpack::Field;

const INITIAL_WINDOW_SIZE: u16 = 4;
/// Initial and maximum receive window of a stream, and the window of the connection, in bytes.
const STREAM_WINDOW: usize = 64 << 10;
const MAX_STREAM_WINDOW: usize = 1 << 20;
const CONNECTION_WINDOW: usize = 1 << 30;
/// Capacity of the pipe between client and server, in bytes.
const PIPE: usize = 1 << 20;

type BoxResponse = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// A dispatched request. `response` is closed once its exchange is dropped.
struct Dispatched {
    request: Request<RequestBody>,
    response: oneshot::Sender<BoxResponse>,
}

/// A frame that the client received.
#[derive(Debug, PartialEq)]
enum Event {
    Headers {
        stream: u32,
        status: Option<StatusCode>,
        headers: HeaderMap,
        ends: bool,
    },
    Data {
        stream: u32,
        data: Bytes,
        ends: bool,
    },
    Reset(u32, Reason),
    Settings(Bytes),
    SettingsAck,
    Ping(Bytes),
    Pong(Bytes),
    GoAway(u32, Reason),
    /// WINDOW_UPDATE: stream and increment.
    WindowUpdate(u32, u32),
    /// The connection is closed.
    Closed,
}

/// A scripted client.
struct Client {
    wire: Wire,
    dispatched: mpsc::UnboundedReceiver<Dispatched>,
    session: Shared,
    serving: JoinHandle<Result<(), ConnectionError>>,
}

impl Client {
    /// Connects with a server that has already read these bytes after the preface.
    fn ahead(read: &[u8]) -> Self {
        let (io, far) = duplex(PIPE);
        let (asks, dispatched) = mpsc::unbounded_channel();
        let service = move |request| -> Pin<Box<dyn Future<Output = BoxResponse> + Send>> {
            let (response, answered) = oneshot::channel();
            let _ = asks.send(Dispatched { request, response });
            Box::pin(async move {
                match answered.await {
                    Ok(response) => response,
                    Err(_) => std::future::pending().await,
                }
            })
        };
        let connection = ServerConnection::new(far, [PREFACE, read].concat()[..].into(), service);
        let session = connection.session();
        let serving = tokio::spawn(connection);
        Self { wire: Wire::new(io), dispatched, session, serving }
    }

    /// Connects, and exchanges the SETTINGS of both sides.
    async fn with(settings: &[(u16, u32)]) -> Self {
        let mut client = Self::ahead(&settings_frame(settings));
        assert!(matches!(client.next_event().await, Event::Settings(_)));
        assert_eq!(client.next_event().await, Event::WindowUpdate(0, CONNECTION_WINDOW as u32 - 65_535));
        assert_eq!(client.next_event().await, Event::SettingsAck);
        client
    }

    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).await;
    }

    async fn next_event(&mut self) -> Event {
        let Some((head, payload)) = self.wire.frame().await else { return Event::Closed };
        assert!(head.length <= DEFAULT_FRAME_SIZE, "{head:?}");
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        let (stream, ends) = (head.stream, head.has(END_STREAM));
        match head.kind {
            DATA => Event::Data { stream, data: payload, ends },
            HEADERS => self.header_event(head, payload).await,
            RST_STREAM => Event::Reset(stream, Reason(number(0))),
            SETTINGS if head.has(ACK) => Event::SettingsAck,
            SETTINGS => Event::Settings(payload),
            PING if head.has(ACK) => Event::Pong(payload),
            PING => Event::Ping(payload),
            GOAWAY => Event::GoAway(number(0), Reason(number(4))),
            WINDOW_UPDATE => Event::WindowUpdate(stream, number(0)),
            _ => panic!("unexpected {head:?}"),
        }
    }

    async fn header_event(&mut self, head: FrameHeader, payload: Bytes) -> Event {
        let (mut status, mut headers) = (None, HeaderMap::new());
        for field in self.wire.fields(head, payload).await {
            match field {
                Field::Status(code) => assert_eq!(status.replace(code), None),
                Field::Header(name, value) => drop(headers.append(name, value)),
                other => panic!("{other:?} is of no answer"),
            }
        }
        Event::Headers { stream: head.stream, status, headers, ends: head.has(END_STREAM) }
    }

    /// Checks that nothing is sent, even when all tasks are idle.
    async fn expect_nothing(&mut self) {
        self.expect_nothing_for(Duration::from_millis(1)).await;
    }

    async fn expect_nothing_for(&mut self, time: Duration) {
        if let Ok(event) = timeout(time, self.next_event()).await {
            panic!("unexpected {event:?}");
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
                    assert!(!ends, "{length} bytes are missing");
                }
                other => panic!("{other:?}, and {length} bytes are missing"),
            }
        }
    }

    async fn dispatched(&mut self) -> Dispatched {
        in_time(self.dispatched.recv()).await.expect("the connection has ended")
    }

    /// Sends a request, and returns it as the server dispatches it.
    async fn request(&mut self, bytes: &[u8]) -> Dispatched {
        self.send(bytes).await;
        self.dispatched().await
    }

    /// Checks that the connection still works: a request gets its response, and nothing else is sent.
    async fn expect_alive(&mut self, stream: u32) {
        self.send(&get(stream, "/next")).await;
        let mut dispatched = self.dispatched().await;
        while dispatched.request.uri().path() != "/next" {
            dispatched = self.dispatched().await;
        }
        dispatched.respond(whole(200, ""));
        self.expect([head(stream, 200, &[], true)]).await;
    }

    /// Closes the client's side, and returns the result of the server connection.
    async fn ended(self) -> Result<(), ConnectionError> {
        drop(self.wire);
        in_time(self.serving).await.unwrap()
    }
}

impl Dispatched {
    /// Responds without reading the rest of the request.
    fn respond(self, response: BoxResponse) {
        drop(self.request);
        assert!(self.response.send(response).is_ok(), "the exchange was dropped");
    }
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "one.shop"), (":path", "/")];

/// Encodes a request without a body.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let [method, scheme, authority, _] = GET;
    raw_frame(
        HEADERS,
        END_HEADERS | END_STREAM,
        stream,
        header_block(&[method, scheme, authority, (":path", path)]),
    )
}

/// Encodes a request whose body follows.
fn post(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let [_, scheme, authority, path] = GET;
    let fields = [&[(":method", "POST"), scheme, authority, path], fields].concat();
    raw_frame(HEADERS, END_HEADERS, stream, header_block(&fields))
}

fn whole(status: u16, text: impl Into<Bytes>) -> BoxResponse {
    let body = Full::new(text.into()).map_err(Into::into).boxed_unsync();
    Response::builder().status(status).body(body).unwrap()
}

/// Returns a response, and the sender of its pieces.
fn streamed() -> (Pieces, BoxResponse) {
    let (pieces, mut body) = mpsc::unbounded_channel();
    let body = futures_util::stream::poll_fn(move |context| body.poll_recv(context));
    (pieces, Response::new(StreamBody::new(body).boxed_unsync()))
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
}

fn head(stream: u32, status: u16, fields: &[(&'static str, &'static str)], ends: bool) -> Event {
    let status = Some(StatusCode::from_u16(status).unwrap());
    Event::Headers { stream, status, headers: headers(fields), ends }
}

fn data(stream: u32, text: impl Into<Bytes>, ends: bool) -> Event {
    Event::Data { stream, data: text.into(), ends }
}
