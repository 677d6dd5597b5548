//! Which parts of a message must arrive unchanged, which limits apply, and what is refused: frame by frame, and with
//! grpc-go and curl.

mod attempts;
mod grpc_go;
mod half_close;
mod informational;
mod limits;
mod normalized;
mod refused;
mod repeated;

use fairmesh_model::Protocol;
use fairmesh_server::MeshServer;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::harness::{
    PATIENCE, RawServer, World,
    h2::{self, DATA, END_HEADERS, END_STREAM, HEADERS, RST_STREAM, frame},
};

/// Header block with `:status: 200`.
const OK: &[u8] = &[0x88];

/// A frame of a message: its type, whether END_STREAM is set, and its number of DATA bytes.
type Part = (u8, bool, usize);

/// Headers, and an empty DATA frame that ends the message.
const HALF_CLOSED: [Part; 2] = [(HEADERS, false, 0), (DATA, true, 0)];

/// Header block of a request for `one.shop`, as literals or static-table entries (RFC 7541).
fn fields(method: &str, content_type: Option<&str>) -> Vec<u8> {
    let literal = |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    let content_type = content_type.map(|kind| literal(&[0x0f, 0x10], kind)).unwrap_or_default();
    [literal(&[0x02], method), vec![0x86, 0x84], literal(&[0x01], "one.shop"), content_type].concat()
}

/// HEADERS of a response with a three-digit status and optionally a `link` field.
fn response(stream: u32, status: &str, link: Option<&str>, flags: u8) -> Vec<u8> {
    let link = link.map(|link| [&[0x00, 4][..], b"link", &[link.len() as u8], link.as_bytes()].concat());
    let fields = [&[0x08, 3], status.as_bytes(), &link.unwrap_or_default()].concat();
    frame(HEADERS, END_HEADERS | flags, stream, &fields)
}

/// An HTTP/2 server whose connections the test handles frame by frame.
struct Endpoint {
    listener: TcpListener,
    _server: Option<MeshServer>,
    open: Option<TcpStream>,
}

impl Endpoint {
    async fn start(world: &World, service: &str, instance: &str) -> Self {
        let (listener, server) =
            RawServer::speaking(world, service, instance, Protocol::Http2).await.into_parts();
        Self { listener, _server: Some(server), open: None }
    }

    /// An endpoint that is not registered.
    fn behind(listener: TcpListener) -> Self {
        Self { listener, _server: None, open: None }
    }

    /// The open connection of the client; waits for a new one if there is none.
    async fn connection(&mut self) -> &mut TcpStream {
        if self.open.is_none() {
            let accepted = timeout(PATIENCE, self.listener.accept()).await;
            let (mut stream, _) = accepted.expect("nothing connects").unwrap();
            h2::serve(&mut stream).await;
            self.open = Some(stream);
        }
        self.open.as_mut().unwrap()
    }

    /// The next frame of a request, with its stream. Earlier requests may be cancelled first.
    async fn part(&mut self) -> (Part, u32) {
        let mut came = h2::read_message(self.connection().await).await;
        while came.kind == RST_STREAM {
            came = h2::read_message(self.connection().await).await;
        }
        let length = if came.kind == DATA { came.payload.len() } else { 0 };
        ((came.kind, came.flags & END_STREAM != 0, length), came.stream)
    }

    /// All frames of the next request, with its stream.
    async fn request(&mut self) -> (Vec<Part>, u32) {
        let mut parts = Vec::new();
        loop {
            let (part, stream) = self.part().await;
            parts.push(part);
            if part.1 {
                return (parts, stream);
            }
        }
    }

    async fn send(&mut self, frames: &[u8]) {
        self.connection().await.write_all(frames).await.unwrap();
    }

    /// Responds to this request only, without a body.
    async fn responds(&mut self, stream: u32, status: &str) {
        self.send(&response(stream, status, None, END_STREAM)).await;
    }
}

/// Response on a stream: the number of HEADERS frames and of DATA bytes.
async fn response_to(program: &mut TcpStream, stream: u32) -> (usize, usize) {
    let (mut heads, mut length) = (0, 0);
    loop {
        let came = h2::read_message(program).await;
        assert_ne!(came.kind, RST_STREAM, "no response comes");
        assert_eq!(came.stream, stream);
        match came.kind {
            HEADERS => heads += 1,
            _ => length += came.payload.len(),
        }
        if came.flags & END_STREAM != 0 {
            return (heads, length);
        }
    }
}
