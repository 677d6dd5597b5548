//! The zero-copy parser of HTTP/1.1 reads every message to the same last byte as the full parser, and forwards it unchanged.

use bytes::{Bytes, BytesMut};
use fairmesh_headers::DEADLINE;
use fairmesh_http::{
    h1::{BorrowedRequest, BorrowedResponse, Decoder, Piece, RequestReader, ResponseReader, header_storage},
    path::RawPath,
};
use http::{HeaderMap, HeaderName, Method, header};

/// The time that an answer is given that tells none.
const DATE: &[u8; 29] = b"Sun, 06 Nov 1994 08:49:37 GMT";
/// What is the connection's, and what is written anew.
const OURS: [HeaderName; 5] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::CONTENT_LENGTH,
    header::DATE,
    DEADLINE,
];

/// A message to its end: its first line, fields and body, and how many bytes follow it.
#[derive(Debug, PartialEq)]
struct Read {
    line: String,
    headers: HeaderMap,
    body: Bytes,
    rest: usize,
}

/// Takes a message apart that leaves its connection open.
type Reader = fn(&[u8]) -> Option<Read>;

/// What must hold of these bytes: one that says which side sends, and what it sends.
pub fn run(data: &[u8]) {
    let Some((side, sent)) = data.split_first() else { return };
    let mut written = Vec::new();
    let (length, read): (_, Reader) = if side % 2 == 0 {
        let mut room = header_storage();
        let Some(plain) = BorrowedRequest::read(sent, &mut room, fairmesh_headers::is_mesh_header) else {
            return;
        };
        plain.write(plain.host, (Some(&(DEADLINE, 7)), None), &mut written);
        written.extend_from_slice(plain.body);
        (plain.length, request)
    } else {
        let mut room = header_storage();
        let Some(plain) = BorrowedResponse::read(sent, &mut room) else { return };
        plain.write(&mut written, || *DATE, false);
        written.extend_from_slice(plain.body);
        (sent.len(), answer)
    };
    let apart = read(sent).expect("what is plain is a message that leaves its connection open");
    assert_eq!(apart.rest, sent.len() - length);
    assert_eq!(read(&written), Some(Read { rest: 0, ..apart }));
}

fn request(sent: &[u8]) -> Option<Read> {
    let mut input = BytesMut::from(sent);
    let received = RequestReader::default().read(&mut input).ok()??;
    let head = received.head;
    let raw = head.extensions().get::<RawPath>();
    let line = format!("{} {} {raw:?} {:?}", head.method(), head.uri(), head.version());
    let plain = received.persistent && !received.expects_continue;
    plain.then(|| whole(line, head.headers(), received.body, input)).flatten()
}

fn answer(sent: &[u8]) -> Option<Read> {
    let mut input = BytesMut::from(sent);
    let answer = ResponseReader::new(&Method::GET).read(&mut input).ok()??;
    let line = format!("{} {:?}", answer.head.status(), answer.head.version());
    answer.persistent.then(|| whole(line, answer.head.headers(), answer.body, input)).flatten()
}

fn whole(line: String, headers: &HeaderMap, mut decoder: Decoder, mut input: BytesMut) -> Option<Read> {
    let mut body = Vec::new();
    while let Some(Piece::Data(data)) = decoder.decode(&mut input).ok()? {
        body.extend_from_slice(&data);
    }
    let mut headers = headers.clone();
    OURS.iter().for_each(|name| drop(headers.remove(name)));
    decoder.is_done().then(|| Read { line, headers, body: body.into(), rest: input.len() })
}
