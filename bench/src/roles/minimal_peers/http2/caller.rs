use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, oneshot},
    task::JoinSet,
};

use super::{
    super::super::{BoxError, Protocol, payload_of},
    connection::{LARGEST, Link, ROOM, hear_all},
    frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PREFACE, RST_STREAM, WINDOW_UPDATE, push},
    header_block::{Head, is_ok},
};
use crate::load_generator::Call;

/// Calls over a few connections in turn.
#[derive(Clone)]
pub(crate) struct Caller(Arc<Connections>);

struct Connections {
    all: Vec<Arc<Connection>>,
    turn: AtomicUsize,
    /// Connection tasks; they end with the caller.
    _driven: JoinSet<()>,
}

struct Connection {
    request: Request,
    state: Mutex<State>,
    /// Notified when there is something to write.
    wake: Notify,
}

struct Request {
    head: Head,
    body: Bytes,
}

struct State {
    link: Link,
    last_stream: u32,
    calls: HashMap<u32, Pending>,
    /// Calls that wait for room to be sent.
    held: VecDeque<Answered>,
    /// Reason why the connection has ended, if so.
    ended: Option<String>,
}

type Answered = oneshot::Sender<Result<(), String>>;

struct Pending {
    answered: Answered,
    is_ok: bool,
    is_right: bool,
    received: usize,
}

impl Caller {
    /// Connects to each of these addresses, with `payload` bytes in each request and response; for HTTP/2, 0 means a
    /// `GET`.
    pub(crate) async fn connect(
        protocol: Protocol,
        servers: &[SocketAddr],
        payload: usize,
    ) -> Result<Self, BoxError> {
        if servers.is_empty() {
            return Err("a lean client calls a server".into());
        }
        let (mut all, mut driven) = (Vec::new(), JoinSet::new());
        for server in servers {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            let state = State {
                link: Link::new(PREFACE),
                last_stream: 0,
                calls: HashMap::new(),
                held: VecDeque::new(),
                ended: None,
            };
            let request = Request::new(protocol, payload)?;
            let connection = Arc::new(Connection { request, state: Mutex::new(state), wake: Notify::new() });
            driven.spawn(Arc::clone(&connection).drive(stream));
            all.push(connection);
        }
        Ok(Self(Arc::new(Connections { all, turn: AtomicUsize::new(0), _driven: driven })))
    }
}

impl Call for Caller {
    async fn call(&self) -> Result<(), String> {
        let turn = self.0.turn.fetch_add(1, Relaxed) % self.0.all.len();
        let (answered, answer) = oneshot::channel();
        self.0.all[turn].call(answered);
        answer.await.map_err(|_| "the connection ended")?
    }
}

impl Request {
    fn new(protocol: Protocol, payload: usize) -> Result<Self, BoxError> {
        let body = payload_of(payload);
        // `:scheme: http`, and `:method: GET` or `:method: POST`.
        let (get, post) = ([0x86, 0x82], [0x86, 0x83]);
        let length = payload.to_string();
        let usual =
            [(":path", "/echo"), (":authority", "http2.bench"), ("user-agent", "bench"), ("accept", "*/*")];
        let request = match protocol {
            Protocol::Grpc => Self {
                head: Head::new(
                    &post,
                    &[
                        (":path", "/fairmesh.bench.v1.Echo/Echo"),
                        (":authority", "grpc.bench"),
                        ("te", "trailers"),
                        ("content-type", "application/grpc"),
                        ("user-agent", "bench"),
                    ],
                    0,
                ),
                body: message(&body),
            },
            Protocol::Http1 | Protocol::Http2 if payload == 0 => {
                Self { head: Head::new(&get, &usual, 0), body }
            }
            Protocol::Http1 | Protocol::Http2 => {
                let fields: Vec<_> = usual.into_iter().chain([("content-length", length.as_str())]).collect();
                Self { head: Head::new(&post, &fields, 0), body }
            }
        };
        match request.body.len() > LARGEST {
            true => Err(format!("bodies are at most {LARGEST} bytes").into()),
            false => Ok(request),
        }
    }
}

/// A gRPC message with this payload, as it appears in a body.
fn message(payload: &[u8]) -> Bytes {
    let encoded =
        prost::Message::encode_to_vec(&super::super::super::v1::Payload { data: payload.to_vec().into() });
    let mut body = vec![0];
    body.extend_from_slice(&(encoded.len() as u32).to_be_bytes());
    body.extend_from_slice(&encoded);
    body.into()
}

impl Connection {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, answered: Answered) {
        self.lock().call(&self.request, answered);
        self.wake.notify_one();
    }

    /// Writes and reads until either fails, then fails all pending requests.
    async fn drive(self: Arc<Self>, stream: TcpStream) {
        let ended = self.exchange(stream).await.map_or_else(|why| why, |()| "the proxy hung up".into());
        let mut state = self.lock();
        let State { calls, held, .. } = &mut *state;
        for answered in calls.drain().map(|(_, call)| call.answered).chain(held.drain(..)) {
            let _ = answered.send(Err(ended.clone()));
        }
        state.ended = Some(ended);
    }

    async fn exchange(&self, mut stream: TcpStream) -> Result<(), String> {
        let mut come = Vec::with_capacity(ROOM);
        loop {
            let out = std::mem::take(&mut self.lock().link.out);
            stream.write_all(&out).await.map_err(|e| format!("cannot send: {e}"))?;
            let read = tokio::select! {
                read = stream.read_buf(&mut come) => read.map_err(|e| format!("cannot read: {e}"))?,
                () = self.wake.notified() => continue,
            };
            if read == 0 {
                return Ok(());
            }
            let mut state = self.lock();
            hear_all(&mut come, |frame| state.hear(&self.request, frame))?;
        }
    }
}

impl State {
    fn call(&mut self, request: &Request, answered: Answered) {
        if let Some(ended) = &self.ended {
            let _ = answered.send(Err(ended.clone()));
            return;
        }
        let size = request.body.len();
        if self.link.room < size as i64 {
            return self.held.push_back(answered);
        }
        self.link.room -= size as i64;
        let is_first = self.last_stream == 0;
        self.last_stream = if is_first { 1 } else { self.last_stream + 2 };
        let (out, stream) = (&mut self.link.out, self.last_stream);
        let ends = if size == 0 { END_STREAM } else { 0 };
        push(out, HEADERS, END_HEADERS | ends, stream, request.head.bytes(is_first));
        if size > 0 {
            push(out, DATA, END_STREAM, stream, &request.body);
        }
        self.calls.insert(stream, Pending { answered, is_ok: false, is_right: true, received: 0 });
    }

    fn hear(&mut self, request: &Request, frame: Frame<'_>) -> Result<(), String> {
        self.link.hear(&frame)?;
        if frame.kind == WINDOW_UPDATE {
            for answered in std::mem::take(&mut self.held) {
                self.call(request, answered);
            }
        }
        let Some(call) = self.calls.get_mut(&frame.stream) else { return Ok(()) };
        let ends = match frame.kind {
            // HEADERS after a body are trailers.
            HEADERS => {
                call.is_ok |= is_ok(frame.payload);
                frame.is(END_STREAM)
            }
            DATA => {
                let end = call.received + frame.payload.len();
                call.is_right &= request.body.get(call.received..end) == Some(frame.payload);
                call.received = end;
                frame.is(END_STREAM)
            }
            RST_STREAM => {
                call.is_ok = false;
                true
            }
            _ => false,
        };
        if ends && let Some(call) = self.calls.remove(&frame.stream) {
            let right = call.is_ok && call.is_right && call.received == request.body.len();
            let _ = call.answered.send(super::super::super::check(right));
        }
        Ok(())
    }
}
