//! Any bytes of an HTTP/1.1 server: the parser does not panic, and its result depends neither on the pieces that they arrive in
//! nor loses a byte: message and remainder together are no longer than the input.

use bytes::{Bytes, BytesMut};
use fairmesh_http::h1::{Malformed, Piece, ResponseReader};
use http::{HeaderMap, Method, Response};

use crate::cut;

/// What came out so far.
#[derive(Debug, Default)]
struct Read {
    head: Option<Response<()>>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    done: bool,
    rest: Bytes,
}

/// What must hold of these bytes: one that chooses what was asked, and what came.
pub fn run(data: &[u8]) {
    let Some((method, sent)) = data.split_first() else { return };
    let method = [Method::GET, Method::HEAD, Method::CONNECT][usize::from(*method) % 3].clone();
    for pieces in cut::ways(sent) {
        match (read(&method, [sent].into_iter()), read(&method, pieces.into_iter())) {
            (Ok(whole), Ok(pieces)) => {
                assert!(whole.body.len() + whole.rest.len() <= sent.len());
                assert_eq!(format!("{whole:?}"), format!("{pieces:?}"));
            }
            (Err(_), Err(_)) => {}
            // A head that comes in pieces is looked at again only once it may be whole.
            (Err(_), Ok(pieces)) if pieces.head.is_none() => {}
            (whole, pieces) => panic!("at once {whole:?}, in pieces {pieces:?}"),
        }
    }
}

fn read<'a>(method: &Method, pieces: impl Iterator<Item = &'a [u8]>) -> Result<Read, Malformed> {
    let (mut input, mut reader) = (BytesMut::new(), ResponseReader::new(method));
    let (mut read, mut body) = (Read::default(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if body.is_none()
            && let Some(answer) = reader.read(&mut input)?
        {
            read.head = Some(answer.head);
            body = Some(answer.body);
        }
        while let Some(piece) = body.as_mut().map(|body| body.decode(&mut input)).transpose()?.flatten() {
            match piece {
                Piece::Data(data) => read.body.extend_from_slice(&data),
                Piece::Trailers(trailers) => read.trailers = Some(trailers),
            }
        }
    }
    read.done = body.is_some_and(|mut body| body.close());
    // How far an incomplete response was read does not matter.
    if read.done {
        read.rest = input.freeze();
    }
    Ok(read)
}
