//! Any bytes of a client: the server side of HTTP/1.1 ends the connection, and its responses are messages of HTTP/1.1, one for
//! each request and in their order; an incomplete one is recognisable as such. Only a requested upgrade switches protocols,
//! and the bytes that follow are those that the client sent after that request.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use fairmesh_edge::fuzzing::{self, RequestBody};
use fairmesh_http::h1::{Piece, RequestReader, ResponseReader};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header};
use tokio::io::duplex;

use crate::{
    cut,
    echo::{self, Steps, Wish},
    pipe::{self, Act, ROOM},
};

const NUMBER: &str = "x-number";
const MANNER: &str = "x-manner";
/// The manner of a server that accepts an upgrade to another protocol.
const SWITCHES: u8 = b'i';
/// The same, before it has read the request.
const SWITCHES_EARLY: u8 = b'j';
/// The same, while the client still reads it.
const SWITCHES_BESIDE: u8 = b'k';

/// A request as it was heard.
#[derive(Clone, Debug)]
struct Asked {
    method: Method,
    version: Version,
    may_switch: bool,
}

type Heard = Arc<Mutex<Vec<Asked>>>;

/// What must hold of these bytes: one that chooses how the program reads, and what it sends.
pub fn run(data: &[u8]) {
    let Some((begins, sent)) = data.split_first() else { return };
    let acts = cut::pieces(sent).into_iter().map(|piece| Act::Send(piece.to_vec())).collect();
    let heard = Heard::default();
    let hearing = Arc::clone(&heard);
    let came = pipe::run(async {
        let (near, far) = duplex(ROOM);
        let answer = move |request| answer(request, Arc::clone(&hearing));
        tokio::join!(fuzzing::serve(near, answer), pipe::play(far, acts, begins & 1 == 1)).1
    });
    let heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
    // What is answered to HTTP/2 is for another target.
    if !heard.iter().any(|asked| asked.version == Version::HTTP_2) && !sent.starts_with(b"PRI * HTTP/2.0") {
        check(&heard, sent, &came);
    }
}

async fn answer(request: Request<RequestBody>, heard: Heard) -> Response<Steps> {
    let number = {
        let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
        let (method, version) = (request.method().clone(), request.version());
        heard.push(Asked { method, version, may_switch: fuzzing::may_switch(&request) });
        heard.len() - 1
    };
    let manner = Wish::of(request.uri().path()).manner;
    let mut answer = echo::answer(request).await;
    if [SWITCHES, SWITCHES_EARLY, SWITCHES_BESIDE].contains(&manner) {
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        answer.headers_mut().insert(header::UPGRADE, HeaderValue::from_static("echo"));
    }
    answer.headers_mut().insert(NUMBER, number.into());
    answer.headers_mut().insert(MANNER, HeaderValue::from(u16::from(manner)));
    answer
}

fn check(heard: &[Asked], sent: &[u8], came: &[u8]) {
    let mut input = BytesMut::from(came);
    for number in 0.. {
        if input.is_empty() {
            return;
        }
        // A request that was refused was not heard.
        let (method, may_switch) =
            heard.get(number).map_or((&Method::GET, false), |asked| (&asked.method, asked.may_switch));
        let mut reader = ResponseReader::new(method).switching(may_switch);
        let read = reader.read(&mut input).expect("an answer is HTTP/1.1, and switches for who asked");
        // The program may have gone, or been given up, before it was whole.
        let Some(mut answer) = read else { return };
        while let Some(piece) = answer.body.decode(&mut input).expect("a body is framed as its head says") {
            drop::<Piece>(piece);
        }
        let Some(own) = answer.head.headers().get(NUMBER) else {
            assert!(!answer.head.status().is_success(), "who answered? {:?}", answer.head);
            assert!(input.is_empty(), "something follows a refusal: {input:?}");
            return;
        };
        assert_eq!(*own, HeaderValue::from(number), "answers change places: {:?}", answer.head);
        let status = answer.head.status();
        if status == StatusCode::SWITCHING_PROTOCOLS || *method == Method::CONNECT && status.is_success() {
            let said = after(sent, number + 1);
            assert!(said.starts_with(&input), "the tunnel says what nobody sent: {input:?}");
            return;
        }
        let broke_off = answer.head.headers()[MANNER] == HeaderValue::from(u16::from(b'e'));
        let has_body = *method != Method::HEAD;
        // What ends with the connection cannot look any other way: such a program speaks HTTP/1.0.
        let framed = answer.head.headers().contains_key(http::header::TRANSFER_ENCODING);
        assert!(
            !(broke_off && has_body && framed && answer.body.is_done()),
            "it looks whole: {:?}",
            answer.head
        );
    }
}

/// What was sent after so many requests, which were read to their ends.
fn after(sent: &[u8], requests: usize) -> BytesMut {
    let (mut input, mut reader) = (BytesMut::from(sent), RequestReader::default());
    for _ in 0..requests {
        let read = reader.read(&mut input).expect("it was understood");
        let mut body = read.expect("it was heard").body;
        while let Some(piece) = body.decode(&mut input).expect("it was read") {
            drop::<Piece>(piece);
        }
    }
    input
}
