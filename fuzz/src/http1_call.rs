//! Any bytes of an HTTP/1.1 server: a call ends, with the response that the bytes contain, or with an error.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fairmesh_calls::fuzzing;
use fairmesh_http::h1::{Piece, ResponseReader};
use http::{Method, StatusCode};
use http_body_util::BodyExt as _;
use tokio::io::duplex;

use crate::{
    cut,
    echo::{Step, Steps},
    pipe::{self, Act, ROOM},
};

type Answer = (StatusCode, Vec<u8>);

/// What must hold of these bytes: one that chooses what is asked, and what comes.
pub fn run(data: &[u8]) {
    let Some((asked, sent)) = data.split_first() else { return };
    let (method, body) = request(asked >> 1);
    let acts = cut::pieces(sent).into_iter().map(|piece| Act::Send(piece.to_vec())).collect();
    let answer = pipe::run(async {
        let (near, far) = duplex(ROOM);
        let (answer, _) = tokio::join!(call(near, body), pipe::play(far, acts, asked & 1 == 1));
        answer
    });
    if let Some(answer) = answer {
        assert_eq!(Some(answer), alone(&method, sent), "of {sent:?}");
    }
}

fn request(asked: u8) -> (Method, Steps) {
    let data = |size| Step::Data(Bytes::from(vec![b'x'; size]));
    let steps = match asked % 4 {
        0 => return (Method::GET, Steps::of(vec![])),
        1 => vec![data(10)],
        2 => vec![data(10), Step::Wait(Duration::from_secs(1)), data(10)],
        _ => vec![data(200_000), Step::Wait(Duration::ZERO), data(1)],
    };
    (Method::POST, Steps::of(steps))
}

async fn call(stream: tokio::io::DuplexStream, body: Steps) -> Option<Answer> {
    let (head, body) = fuzzing::http1(stream, "/", body).await.ok()?.into_parts();
    // What follows is no HTTP.
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return None;
    }
    let body = body.collect().await.ok()?.to_bytes();
    Some((head.status, body.to_vec()))
}

/// The answer that comes first in what is sent, where it is whole.
fn alone(method: &Method, sent: &[u8]) -> Option<Answer> {
    let (mut input, mut all) = (BytesMut::from(sent), Vec::new());
    let mut answer = ResponseReader::new(method).read(&mut input).ok()??;
    while let Some(piece) = answer.body.decode(&mut input).ok()? {
        if let Piece::Data(data) = piece {
            all.extend_from_slice(&data);
        }
    }
    answer.body.close().then(|| (answer.head.status(), all))
}
