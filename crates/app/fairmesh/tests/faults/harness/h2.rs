//! HTTP/2 frames (RFC 9113) that no library would send.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::PATIENCE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
/// An unassigned frame type.
pub(crate) const UNKNOWN: u8 = 0xbb;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Error code ENHANCE_YOUR_CALM.
pub(crate) const CALM: u32 = 0xb;

/// A received frame.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Header block of `GET /` with this host, as literals and static-table entries (RFC 7541).
pub(crate) fn get(host: &str) -> Vec<u8> {
    let length = u8::try_from(host.len()).unwrap();
    [&[0x82, 0x86, 0x84, 0x01, length], host.as_bytes()].concat()
}

/// Opens a connection with these settings: two bytes of identifier and four of value each.
pub(crate) async fn connect(to: &str, settings: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let beginning = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &frame(SETTINGS, 0, 0, settings)[..]].concat();
    stream.write_all(&beginning).await.unwrap();
    stream
}

/// The server side of a connection: reads the preface, and sends settings.
pub(crate) async fn serve(stream: &mut TcpStream) {
    stream.set_nodelay(true).unwrap();
    timeout(PATIENCE, stream.read_exact(&mut [0; 24])).await.expect("nothing comes").unwrap();
    stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
}

/// Reads the next frame that carries or ends a message, and acknowledges SETTINGS on the way.
pub(crate) async fn read_message(stream: &mut TcpStream) -> Frame {
    loop {
        let came = read(stream).await.expect("the connection goes on");
        match came.kind {
            SETTINGS if came.flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[])).await.unwrap()
            }
            HEADERS | DATA | RST_STREAM => return came,
            _ => {}
        }
    }
}

/// Reads the next frame; `None` at the end of the connection.
pub(crate) async fn read(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<Frame> {
    let read = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, kind, flags, number @ ..] = head;
        let number = u32::from_be_bytes(number);
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.ok()?;
        Some(Frame { kind, flags, stream: number, payload })
    };
    timeout(PATIENCE, read).await.expect("nothing comes")
}

/// Reads until the connection ends; returns the error code of the last GOAWAY, if any.
pub(crate) async fn goodbye(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> Option<u32> {
    let mut last = None;
    while let Some(Frame { kind, payload, .. }) = read(stream).await {
        if kind == GOAWAY {
            last = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
    }
    last
}
