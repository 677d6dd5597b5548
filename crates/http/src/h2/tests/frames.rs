//! What a program and our side say to each other, frame by frame.

mod answers;
mod broken;
mod goodbyes;
mod idle_talk;
mod refused;
mod resets;
mod taken;
mod tunnels;
mod uploads;
mod violations;
mod windows;

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
        Connection, End, PREFACE, Reason, RequestBody, Shared,
        frame::{
            ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEAD, HEADERS, Head, PING, RST_STREAM,
            SETTINGS, USUAL, WINDOW_UPDATE,
        },
    },
    wire::{Wire, block, bytes, in_time, reset, room, said, set},
};
use crate::BoxError;
use crate::hpack::Field;

const INITIAL_WINDOW_SIZE: u16 = 4;
/// What may be sent ahead on a stream, and on all together.
const WINDOW: usize = 1 << 20;

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Pieces = mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>;

/// A request as it is handed on. Whoever answers it was dropped once `answer` is closed.
struct Asked {
    request: Request<RequestBody>,
    answer: oneshot::Sender<Answer>,
}

/// What a program hears.
#[derive(Debug, PartialEq)]
enum Heard {
    Head {
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
    Agreed,
    Ping(Bytes),
    Pong(Bytes),
    Goodbye(u32, Reason),
    /// So much more may be sent.
    Room(u32, u32),
    /// Nothing comes any more.
    End,
}

/// The other side of a connection, which says whatever it likes.
struct Program {
    wire: Wire,
    asked: mpsc::UnboundedReceiver<Asked>,
    session: Shared,
    serving: JoinHandle<Result<(), End>>,
}

impl Program {
    /// On a connection of which this was read after the preface.
    fn ahead(read: &[u8]) -> Self {
        let (io, far) = duplex(WINDOW);
        let (asks, asked) = mpsc::unbounded_channel();
        let service = move |request| -> Pin<Box<dyn Future<Output = Answer> + Send>> {
            let (answer, answered) = oneshot::channel();
            let _ = asks.send(Asked { request, answer });
            Box::pin(async move {
                match answered.await {
                    Ok(answer) => answer,
                    Err(_) => std::future::pending().await,
                }
            })
        };
        let connection = Connection::new(far, [PREFACE, read].concat()[..].into(), service);
        let session = connection.session();
        let serving = tokio::spawn(connection);
        Self { wire: Wire::new(io), asked, session, serving }
    }

    /// After the first words of both sides.
    async fn with(settings: &[(u16, u32)]) -> Self {
        let mut program = Self::ahead(&set(settings));
        assert!(matches!(program.hear().await, Heard::Settings(_)));
        assert_eq!(program.hear().await, Heard::Room(0, WINDOW as u32 - 65_535));
        assert_eq!(program.hear().await, Heard::Agreed);
        program
    }

    async fn new() -> Self {
        Self::with(&[]).await
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).await;
    }

    async fn hear(&mut self) -> Heard {
        let Some((head, payload)) = self.wire.frame().await else { return Heard::End };
        assert!(head.length <= USUAL, "{head:?}");
        let number = |at: usize| u32::from_be_bytes(*payload[at..].first_chunk().unwrap());
        let (stream, ends) = (head.stream, head.has(END_STREAM));
        match head.kind {
            DATA => Heard::Data { stream, data: payload, ends },
            HEADERS => self.heard_head(head, payload).await,
            RST_STREAM => Heard::Reset(stream, Reason(number(0))),
            SETTINGS if head.has(ACK) => Heard::Agreed,
            SETTINGS => Heard::Settings(payload),
            PING if head.has(ACK) => Heard::Pong(payload),
            PING => Heard::Ping(payload),
            GOAWAY => Heard::Goodbye(number(0), Reason(number(4))),
            WINDOW_UPDATE => Heard::Room(stream, number(0)),
            _ => panic!("nobody says {head:?}"),
        }
    }

    async fn heard_head(&mut self, head: Head, payload: Bytes) -> Heard {
        let (mut status, mut headers) = (None, HeaderMap::new());
        for field in self.wire.fields(head, payload).await {
            match field {
                Field::Status(code) => assert_eq!(status.replace(code), None),
                Field::Header(name, value) => drop(headers.append(name, value)),
                other => panic!("{other:?} is of no answer"),
            }
        }
        Heard::Head { stream: head.stream, status, headers, ends: head.has(END_STREAM) }
    }

    /// Nothing is said, not even when nobody has anything else to do.
    async fn hears_nothing(&mut self) {
        self.hears_nothing_for(Duration::from_millis(1)).await;
    }

    async fn hears_nothing_for(&mut self, time: Duration) {
        if let Ok(heard) = timeout(time, self.hear()).await {
            panic!("it says {heard:?}");
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
                    assert!(!ends, "{length} bytes are missing");
                }
                other => panic!("{other:?}, and {length} bytes are missing"),
            }
        }
    }

    async fn asked(&mut self) -> Asked {
        in_time(self.asked.recv()).await.expect("nobody serves any more")
    }

    /// Asks for something, of which this is handed on.
    async fn asks(&mut self, bytes: &[u8]) -> Asked {
        self.send(bytes).await;
        self.asked().await
    }

    /// The connection goes on: a request is answered, and nothing else is said.
    async fn goes_on(&mut self, stream: u32) {
        self.send(&get(stream, "/next")).await;
        let mut asked = self.asked().await;
        while asked.request.uri().path() != "/next" {
            asked = self.asked().await;
        }
        asked.answers(whole(200, ""));
        self.hears([head(stream, 200, &[], true)]).await;
    }

    /// How the connection ended, now that the program is gone.
    async fn ended(self) -> Result<(), End> {
        drop(self.wire);
        in_time(self.serving).await.unwrap()
    }
}

impl Asked {
    /// Nobody reads the rest of the request.
    fn answers(self, answer: Answer) {
        drop(self.request);
        assert!(self.answer.send(answer).is_ok(), "nobody waits for the answer");
    }
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "one.shop"), (":path", "/")];

/// Asks for a path, and says nothing more.
fn get(stream: u32, path: &str) -> Vec<u8> {
    let [method, scheme, authority, _] = GET;
    said(HEADERS, END_HEADERS | END_STREAM, stream, block(&[method, scheme, authority, (":path", path)]))
}

/// A request whose body follows.
fn post(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let [_, scheme, authority, path] = GET;
    let fields = [&[(":method", "POST"), scheme, authority, path], fields].concat();
    said(HEADERS, END_HEADERS, stream, block(&fields))
}

fn whole(status: u16, text: impl Into<Bytes>) -> Answer {
    let body = Full::new(text.into()).map_err(Into::into).boxed_unsync();
    Response::builder().status(status).body(body).unwrap()
}

/// An answer whose pieces are yet to be said.
fn streamed() -> (Pieces, Answer) {
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

fn head(stream: u32, status: u16, fields: &[(&'static str, &'static str)], ends: bool) -> Heard {
    let status = Some(StatusCode::from_u16(status).unwrap());
    Heard::Head { stream, status, headers: headers(fields), ends }
}

fn data(stream: u32, text: impl Into<Bytes>, ends: bool) -> Heard {
    Heard::Data { stream, data: text.into(), ends }
}
