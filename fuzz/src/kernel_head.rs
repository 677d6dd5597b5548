//! Requests and responses that the eBPF programs take for plain: the proxy's parsers understand each in the same way,
//! to the same last byte, regardless of what lies behind it in memory.
#![allow(unsafe_code, reason = "the programs are written in C")]

use std::collections::BTreeMap;

use bytes::BytesMut;
use fairmesh_headers::LOAD;
use fairmesh_http::{
    h1::{BorrowedRequest, RequestReader, ResponseReader, header_storage},
    path::RawPath,
};
use http::{HeaderMap, Method, header};

/// The longest message that the C is given, `REQUEST_BYTES` of `bpf/lib/shared.h`.
const LENGTH: usize = 2048;
/// Fields that it keeps, `HEADERS` of `bpf/lib/maps.h`.
const KEPT: usize = 32;
/// By their bits.
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// `struct parse_input` of `bpf/vectors/vectors.h`.
#[repr(C)]
struct Input {
    length: u64,
    message: [u8; LENGTH],
}

/// `struct parse_output`.
#[derive(Debug, Default, PartialEq)]
#[repr(C)]
struct RequestHead {
    is_plain: u32,
    end: u32,
    content_length: u32,
    method: u32,
    path_at: u32,
    path_length: u32,
    host_at: u32,
    host_length: u32,
}

/// `struct answer_output`.
#[derive(Debug, Default, PartialEq)]
#[repr(C)]
struct ResponseHead {
    is_plain: u32,
    end: u32,
    content_length: u32,
    status: u32,
    load_at: u32,
    load_length: u32,
}

/// `struct header` of `bpf/lib/maps.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Field {
    name: [u64; 3],
    at: u16,
    length: u16,
    is_long: u16,
    is_spaced: u16,
}

// SAFETY: `bpf/vectors/vectors.c` defines them, and they read and write these types alone.
unsafe extern "C" {
    safe fn fairmesh_parse_request(input: &Input, output: &mut RequestHead);
    safe fn fairmesh_parse_response(input: &Input, output: &mut ResponseHead);
    safe fn fairmesh_fields(fields: &mut [Field; KEPT]) -> u32;
}

/// Values by name, in their order.
type Fields = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

/// What must hold of these bytes: one that says which side sends, and what it sends.
pub fn run(data: &[u8]) {
    let Some((side, sent)) = data.split_first() else { return };
    if sent.len() > LENGTH {
        return;
    }
    if side % 2 == 0 {
        let head = decide(sent, fairmesh_parse_request);
        if head.is_plain != 0 && head.end as usize + head.content_length as usize <= LENGTH {
            compare_request(sent, &head);
        }
    } else {
        let head = decide(sent, fairmesh_parse_response);
        if head.is_plain != 0 {
            compare_response(sent, &head);
        }
    }
}

/// What the C makes of a message, behind which earlier ones may lie.
fn decide<H: Default + PartialEq + std::fmt::Debug>(sent: &[u8], parse: extern "C" fn(&Input, &mut H)) -> H {
    let [first, second] = [b':', 0].map(|behind| {
        let mut input = Input { length: sent.len() as u64, message: [behind; LENGTH] };
        input.message[..sent.len()].copy_from_slice(sent);
        let mut head = H::default();
        parse(&input, &mut head);
        head
    });
    assert_eq!(first, second, "it depends on what lies behind the message");
    first
}

fn part(sent: &[u8], at: u32, length: u32) -> &[u8] {
    &sent[at as usize..][..length as usize]
}

fn compare_request(sent: &[u8], head: &RequestHead) {
    let mut rest = BytesMut::from(sent);
    let read = RequestReader::default().read(&mut rest);
    let read = read.expect("it is well formed").expect("it is complete");
    assert_eq!(sent.len() - rest.len(), head.end as usize);
    assert!(read.persistent && !read.expects_continue && !read.may_switch);
    assert_eq!(read.body.left(), Some(head.content_length.into()));
    assert_eq!(read.head.method(), METHODS[head.method.ilog2() as usize]);
    let path = part(sent, head.path_at, head.path_length);
    if read.head.extensions().get::<RawPath>().is_none() {
        assert_eq!(read.head.uri().path().as_bytes(), path);
    }
    let host = part(sent, head.host_at, head.host_length).trim_ascii();
    compare_fields(sent, read.head.headers());
    let hosts: Vec<_> =
        read.head.headers().get_all(header::HOST).iter().map(|host| host.as_bytes()).collect();
    assert_eq!(hosts, [host]);

    // By this one the proxy reads requests whose responses it has not seen, all of which name services.
    let mut room = header_storage();
    let plain = BorrowedRequest::read_head(sent, &mut room, |_| false);
    assert!(plain.is_some() || !is_service(host), "the proxy's zero-copy parser does not take it");
    let Some(plain) = plain else { return };
    assert_eq!(plain.length, head.end as usize + head.content_length as usize);
    assert_eq!((plain.method, plain.host.as_bytes()), (read.head.method().as_str(), host));
    assert_eq!(plain.path.split('?').next().map(str::as_bytes), Some(path));
}

/// Whether this may be the host of a published service.
fn is_service(host: &[u8]) -> bool {
    host.split(|byte| *byte == b'.')
        .all(|label| !label.is_empty() && label.iter().all(u8::is_ascii_alphanumeric))
}

fn compare_response(sent: &[u8], head: &ResponseHead) {
    let mut rest = BytesMut::from(sent);
    let read = ResponseReader::new(&Method::GET).read(&mut rest);
    let read = read.expect("it is well formed").expect("it is complete");
    assert!(read.persistent);
    assert_eq!(sent.len() - rest.len(), head.end as usize);
    assert_eq!(rest.len(), head.content_length as usize, "nothing follows");
    assert_eq!(read.body.left(), Some(head.content_length.into()));
    assert_eq!(u32::from(read.head.status().as_u16()), head.status);
    compare_fields(sent, read.head.headers());
    let loads: Vec<_> = read.head.headers().get_all(&LOAD).iter().map(|load| load.as_bytes()).collect();
    let load = part(sent, head.load_at, head.load_length).trim_ascii();
    assert!(loads == [load] || (loads.is_empty() && load.is_empty()), "{loads:?}");
}

/// Compares the fields that the C has kept, by which routes are judged, with all that were read.
fn compare_fields(sent: &[u8], read: &HeaderMap) {
    let mut kept = [Field::default(); KEPT];
    let count = fairmesh_fields(&mut kept) as usize;
    let mut found = Fields::new();
    for field in kept.iter().take(count).filter(|field| field.is_long == 0) {
        let name: Vec<_> =
            field.name.iter().flat_map(|word| word.to_le_bytes()).filter(|byte| *byte != 0).collect();
        let value = part(sent, field.at.into(), field.length.into());
        assert_eq!(value.trim_ascii() != value, field.is_spaced != 0);
        found.entry(name).or_default().push(value.trim_ascii().to_vec());
    }
    if count <= KEPT {
        let names = read.keys().filter(|name| name.as_str().len() <= 24);
        let values = |name| read.get_all(name).iter().map(|value| value.as_bytes().to_vec()).collect();
        let read: Fields = names.map(|name| (name.as_str().into(), values(name))).collect();
        assert_eq!(found, read);
    }
}
