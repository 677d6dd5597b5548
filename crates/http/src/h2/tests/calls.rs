//! What our side asks of a server, and what the server says to that, frame by frame.

mod answers;
mod goodbyes;
mod limits;
mod refused;
mod requests;

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
        AnswerBody, Answered, Ask, Call, Lost, Outbound, PREFACE, Place, Reason, Shared, Unanswered,
        frame::{
            ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PADDED, PING, PUSH_PROMISE,
            RST_STREAM, SETTINGS, WINDOW_UPDATE,
        },
        lock,
    },
    wire::{Wire, block, bytes, in_time, reset, room, said, set},
};
use crate::BoxError;
use crate::hpack::Field;

const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

type Body = UnsyncBoxBody<Bytes, BoxError>;
type Called = JoinHandle<Result<Answered<Body>, Unanswered<BoxError>>>;

/// The other side of a connection, which says whatever it likes.
struct Server {
    wire: Wire,
    session: Shared,
    driving: JoinHandle<()>,
}

/// What a server hears.
#[derive(Debug, PartialEq)]
enum Heard {
    Head { stream: u32, fields: Vec<(String, String)>, ends: bool },
    Data { stream: u32, data: Bytes, ends: bool },
    Reset(u32, Reason),
    Agreed,
    Pong(Bytes),
    Goodbye(u32, Reason),
    Room(u32, u32),
    End,
}

impl Server {
    /// After the first words of both sides.
    async fn with(settings: &[(u16, u32)]) -> Self {
        let (io, far) = duplex(1 << 20);
        let connection = Outbound::new(far);
        let session = connection.session();
        let mut server = Self { wire: Wire::new(io), session, driving: tokio::spawn(connection) };
        let mut preface = BytesMut::zeroed(PREFACE.len());
        in_time(server.wire.io.read_exact(&mut preface)).await.unwrap();
        assert_eq!(&preface[..], PREFACE);
        let (first, _) = server.wire.frame().await.unwrap();
        assert_eq!((first.kind, first.flags), (SETTINGS, 0));
        assert_eq!(server.hear().await, Heard::Room(0, (4 << 20) - 65_535));
        server.send(&set(settings)).await;
        assert_eq!(server.hear().await, Heard::Agreed);
        server
    }

    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).await;
    }

    async fn hear(&mut self) -> Heard {
        let Some((head, payload)) = self.wire.frame().await else { return Heard::End };
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        let (stream, ends) = (head.stream, head.has(END_STREAM));
        match head.kind {
            DATA => Heard::Data { stream, data: payload, ends },
            HEADERS => {
                let fields = self.wire.fields(head, payload).await.iter().map(words).collect();
                Heard::Head { stream, fields, ends }
            }
            RST_STREAM => Heard::Reset(stream, Reason(number(0))),
            SETTINGS if head.has(ACK) => Heard::Agreed,
            PING if head.has(ACK) => Heard::Pong(payload),
            GOAWAY => Heard::Goodbye(number(0), Reason(number(4))),
            WINDOW_UPDATE => Heard::Room(stream, number(0)),
            _ => panic!("nobody says {head:?}"),
        }
    }

    async fn hears(&mut self, expected: impl IntoIterator<Item = Heard>) {
        for expected in expected {
            assert_eq!(self.hear().await, expected);
        }
    }

    /// So many bytes of a body, in frames of any length; whether it has ended with them.
    async fn hears_bytes(&mut self, stream: u32, mut length: usize) -> bool {
        loop {
            match self.hear().await {
                Heard::Data { stream: of, data, ends } if of == stream && data.len() <= length => {
                    length -= data.len();
                    if length == 0 {
                        return ends;
                    }
                }
                other => panic!("{other:?}, and {length} bytes are missing"),
            }
        }
    }

    /// Nothing is said, not even when nobody has anything else to do.
    async fn hears_nothing(&mut self) {
        let heard = tokio::time::timeout(std::time::Duration::from_millis(1), self.hear()).await;
        assert!(heard.is_err(), "it says {heard:?}");
    }

    /// Begins a call with this body.
    fn call(&self, method: &Method, body: Body) -> Called {
        let headers = [("x-a", "b")].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        let (authority, headers) = (Authority::from_static("one.shop"), HeaderMap::from_iter(headers));
        let ask = Ask { method, authority: &authority, path: "/p?q", headers: &headers };
        let ends = body.is_end_stream();
        let locked = lock(&self.session);
        assert_eq!(locked.place(), Place::Free);
        let call = Call::begin(&self.session, locked, &ask, ends);
        tokio::spawn(if ends { call } else { call.with(body) })
    }

    /// A call without a body, which the server has heard.
    async fn got(&mut self, stream: u32) -> Called {
        let called = self.call(&Method::GET, whole(""));
        self.hears([head(stream, "GET", true)]).await;
        called
    }

    /// The connection goes on: a call is answered, and nothing else is said.
    async fn goes_on(&mut self, stream: u32) {
        let called = self.got(stream).await;
        self.send(&answer(stream, "200", &[], true)).await;
        assert_eq!(answered(called).await.status(), 200);
        self.hears_nothing().await;
    }

    fn place(&self) -> Place {
        lock(&self.session).place()
    }

    /// The connection ends, and the server is told why.
    async fn hears_why(mut self, reason: Reason) {
        self.hears([Heard::Goodbye(0, reason), Heard::End]).await;
        in_time(self.driving).await.unwrap();
    }
}

/// A field in two words.
fn words(field: &Field) -> (String, String) {
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

fn head(stream: u32, method: &str, ends: bool) -> Heard {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":path", "/p?q"),
        (":authority", "one.shop"),
        ("x-a", "b"),
    ];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    Heard::Head { stream, fields, ends }
}

fn data(stream: u32, text: impl Into<Bytes>, ends: bool) -> Heard {
    Heard::Data { stream, data: text.into(), ends }
}

/// The head of an answer, of which nothing more comes if it `ends`.
fn answer(stream: u32, status: &str, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
    let fields = [&[(":status", status)], fields].concat();
    said(HEADERS, if ends { END_HEADERS | END_STREAM } else { END_HEADERS }, stream, block(&fields))
}

fn goodbye(last: u32, reason: Reason) -> Vec<u8> {
    said(GOAWAY, 0, 0, [last, reason.0].map(u32::to_be_bytes).concat())
}

fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(Into::into).boxed_unsync()
}

type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// A body whose pieces are yet to be said.
fn streamed() -> (Pieces, Body) {
    let (pieces, mut body) = mpsc::unbounded_channel();
    let body = futures_util::stream::poll_fn(move |context| body.poll_recv(context));
    (pieces, StreamBody::new(body).boxed_unsync())
}

fn piece(text: &'static str) -> Result<Frame<Bytes>, BoxError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

async fn outcome(called: Called) -> Result<Answered<Body>, Unanswered<BoxError>> {
    in_time(called).await.unwrap()
}

/// The answer to a call whose request was said whole.
async fn answered(called: Called) -> Response<AnswerBody> {
    let (answer, upload) = outcome(called).await.unwrap();
    assert!(upload.is_none());
    answer
}

async fn lost(called: Called) -> Lost {
    match outcome(called).await {
        Err(Unanswered::Lost(lost)) => lost,
        other => panic!("{other:?}"),
    }
}

/// All of a body, and what follows it.
async fn read(answer: Response<AnswerBody>) -> Result<(Bytes, Option<HeaderMap>), Lost> {
    let collected = in_time(answer.into_body().collect()).await?;
    let trailers = collected.trailers().cloned();
    Ok((collected.to_bytes(), trailers))
}
