use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{
    super::super::{BoxError, Protocol},
    connection::{Link, ROOM, hear_all},
    frames::{DATA, END_HEADERS, END_STREAM, Frame, HEADERS, PREFACE, RST_STREAM, WINDOW_UPDATE, push},
    header_block::{Head, OK},
};

/// The beginning and the end of every response.
struct Answers {
    head: Head,
    /// Trailers; gRPC only.
    trailers: Option<Head>,
}

impl Answers {
    fn new(protocol: Protocol) -> Self {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        match protocol {
            Protocol::Grpc => {
                let fields = [("content-type", "application/grpc"), date];
                let trailers = [("grpc-status", "0")];
                Self {
                    head: Head::new(&[OK], &fields, trailers.len()),
                    trailers: Some(Head::new(&[], &trailers, 0)),
                }
            }
            Protocol::Http1 | Protocol::Http2 => {
                let fields = [("server", "bench"), date, ("content-type", "text/plain")];
                Self { head: Head::new(&[OK], &fields, 0), trailers: None }
            }
        }
    }
}

/// Accepts forever, and echoes the body of each request.
pub(crate) async fn serve(listener: TcpListener, protocol: Protocol) -> Result<(), BoxError> {
    let answers = Arc::new(Answers::new(protocol));
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let answers = Arc::clone(&answers);
        tokio::spawn(async move {
            // A client that sends an invalid request or disconnects is dropped; the caller reports the error.
            let _ = Connection::new(answers).serve(stream).await;
        });
    }
}

struct Connection {
    answers: Arc<Answers>,
    link: Link,
    /// Incomplete request bodies by stream.
    open: HashMap<u32, Vec<u8>>,
    /// Responses that wait for room in the window.
    held: VecDeque<(u32, Vec<u8>)>,
    is_first: bool,
}

impl Connection {
    fn new(answers: Arc<Answers>) -> Self {
        let link = Link::new(&[]);
        Self { answers, link, open: HashMap::new(), held: VecDeque::new(), is_first: true }
    }

    async fn serve(mut self, mut stream: TcpStream) -> Result<(), BoxError> {
        let mut come = Vec::with_capacity(ROOM);
        come.resize(PREFACE.len(), 0);
        stream.read_exact(&mut come).await?;
        if come != PREFACE {
            return Err("not HTTP/2".into());
        }
        come.clear();
        loop {
            stream.write_all(&self.link.out).await?;
            self.link.out.clear();
            if stream.read_buf(&mut come).await? == 0 {
                return Ok(());
            }
            hear_all(&mut come, |frame| self.hear(frame))?;
        }
    }

    fn hear(&mut self, frame: Frame<'_>) -> Result<(), String> {
        self.link.hear(&frame)?;
        match frame.kind {
            HEADERS | DATA => {
                let body = self.open.entry(frame.stream).or_default();
                if frame.kind == DATA {
                    body.extend_from_slice(frame.payload);
                }
                if frame.is(END_STREAM)
                    && let Some(body) = self.open.remove(&frame.stream)
                {
                    self.held.push_back((frame.stream, body));
                    self.answer();
                }
            }
            RST_STREAM => {
                self.open.remove(&frame.stream);
            }
            WINDOW_UPDATE => self.answer(),
            _ => {}
        }
        Ok(())
    }

    /// Responds as far as flow control permits.
    fn answer(&mut self) {
        while let Some((stream, body)) = self.held.pop_front() {
            let size = body.len() as i64;
            if self.link.room < size {
                return self.held.push_front((stream, body));
            }
            self.link.room -= size;
            let (out, is_first) = (&mut self.link.out, std::mem::take(&mut self.is_first));
            let trailers = &self.answers.trailers;
            let ends = if body.is_empty() && trailers.is_none() { END_STREAM } else { 0 };
            push(out, HEADERS, END_HEADERS | ends, stream, self.answers.head.bytes(is_first));
            if !body.is_empty() {
                let ends = if trailers.is_none() { END_STREAM } else { 0 };
                push(out, DATA, ends, stream, &body);
            }
            if let Some(trailers) = trailers {
                push(out, HEADERS, END_HEADERS | END_STREAM, stream, trailers.bytes(is_first));
            }
        }
    }
}
