//! HTTP/1.1.

use std::{
    future::Future,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use memchr::{memchr, memmem};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

use super::super::{BoxError, payload_of};
use crate::load_generator::Call;

/// The headers of a response up to its length, as many as servers usually send.
const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\ncontent-type: text/plain\r\ncontent-length: ";

/// Calls one address over persistent connections, as many as there ever were concurrent calls.
#[derive(Clone)]
pub(crate) struct Caller(Arc<CallerState>);

struct CallerState {
    /// Source address of connections, if it matters.
    from: Option<IpAddr>,
    to: SocketAddr,
    request: Vec<u8>,
    payload: Bytes,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Caller {
    /// A caller that sends and expects `payload` bytes at a host; 0 means a `GET`.
    pub(crate) fn new(to: SocketAddr, host: &str, payload: usize) -> Self {
        Self::at(to, (host, "/echo"), payload)
    }

    /// As `new`, with another path.
    pub(crate) fn at(to: SocketAddr, (host, path): (&str, &str), payload: usize) -> Self {
        let payload = payload_of(payload);
        let head = format!("{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: bench\r\naccept: */*\r\n");
        let mut request = match payload.len() {
            0 => format!("GET {head}\r\n").into_bytes(),
            size => format!("POST {head}content-length: {size}\r\n\r\n").into_bytes(),
        };
        request.extend_from_slice(&payload);
        Self(Arc::new(CallerState { from: None, to, request, payload, idle: Mutex::default() }))
    }

    /// The same caller, with this source address.
    pub(crate) fn bound_to(&self, from: Option<IpAddr>) -> Self {
        let CallerState { to, request, payload, .. } = &*self.0;
        let (to, request, payload) = (*to, request.clone(), payload.clone());
        Self(Arc::new(CallerState { from, to, request, payload, idle: Mutex::default() }))
    }
}

impl Call for Caller {
    async fn call(&self) -> Result<(), String> {
        let idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => {
                Connection::open(self.0.from, self.0.to).await.map_err(|e| format!("cannot connect: {e}"))?
            }
        };
        connection.exchange(&self.0).await?;
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        Ok(())
    }
}

impl Connection {
    async fn open(from: Option<IpAddr>, to: SocketAddr) -> std::io::Result<Self> {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        if let Some(from) = from {
            socket.bind(SocketAddr::new(from, 0))?;
        }
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, answer: Vec::new() })
    }

    async fn exchange(&mut self, caller: &CallerState) -> Result<(), String> {
        self.stream.write_all(&caller.request).await.map_err(|e| format!("cannot send: {e}"))?;
        self.answer.clear();
        let body = loop {
            if self.stream.read_buf(&mut self.answer).await.map_err(|e| format!("cannot read: {e}"))? == 0 {
                return Err(format!("cut off: {:?}", String::from_utf8_lossy(&self.answer)));
            }
            match end_of_head(&self.answer) {
                Some(head) if self.answer.len() >= head + caller.payload.len() => break head,
                _ => {}
            }
        };
        let right = self.answer.starts_with(b"HTTP/1.1 200") && self.answer[body..] == caller.payload;
        if right { Ok(()) } else { Err(format!("answered {:?}", String::from_utf8_lossy(&self.answer))) }
    }
}

/// Accepts forever, and echoes the body of each request.
pub(crate) async fn serve(listener: TcpListener) -> Result<(), BoxError> {
    serve_after(listener, |_| std::future::ready(Ok(()))).await
}

/// As `serve`, but awaits `work` first, which gets the head of the request.
pub(crate) async fn serve_after<W: Future<Output = Result<(), BoxError>> + Send>(
    listener: TcpListener,
    work: impl Fn(&[u8]) -> W + Clone + Send + 'static,
) -> Result<(), BoxError> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let work = work.clone();
        tokio::spawn(async move {
            // A client that sends an invalid request or disconnects is dropped; the caller reports the error.
            let _ = answer(stream, work).await;
        });
    }
}

async fn answer<W: Future<Output = Result<(), BoxError>> + Send>(
    mut stream: TcpStream,
    work: impl Fn(&[u8]) -> W,
) -> Result<(), BoxError> {
    let (mut request, mut answer) = (Vec::new(), Vec::new());
    loop {
        let (body, size) = loop {
            if stream.read_buf(&mut request).await? == 0 {
                return Ok(());
            }
            if let Some(head) = end_of_head(&request) {
                let size = length(&request[..head])?;
                if request.len() >= head + size {
                    break (head, size);
                }
            }
        };
        work(&request[..body]).await?;
        answer.clear();
        answer.extend_from_slice(HEAD);
        write!(answer, "{size}\r\n\r\n")?;
        answer.extend_from_slice(&request[body..body + size]);
        stream.write_all(&answer).await?;
        request.drain(..body + size);
    }
}

fn end_of_head(bytes: &[u8]) -> Option<usize> {
    memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4)
}

/// Content length from the headers; 0 without the header.
fn length(head: &[u8]) -> Result<usize, BoxError> {
    const NAME: &[u8] = b"content-length:";
    let mut rest = head;
    while let Some(end) = memchr(b'\n', rest) {
        let (line, after) = rest.split_at(end + 1);
        if line.get(..NAME.len()).is_some_and(|name| name.eq_ignore_ascii_case(NAME)) {
            return Ok(std::str::from_utf8(&line[NAME.len()..])?.trim().parse()?);
        }
        rest = after;
    }
    Ok(0)
}
