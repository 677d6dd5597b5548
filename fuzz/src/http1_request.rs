//! Any bytes of an HTTP/1.1 client: the parser does not panic, its result does not depend on the pieces that they arrive in, no
//! body is longer than the input, and bytes after the message are left unchanged.

use bytes::BytesMut;
use fairmesh_http::h1::{Piece, ReceivedRequest, RequestError, RequestReader};
use http::{HeaderMap, Request};

use crate::cut;

/// A request that was read to its end.
#[derive(Debug)]
#[allow(dead_code, reason = "compared as it is shown, since heads cannot be compared")]
struct Read {
    head: Request<()>,
    persistent: bool,
    expects_continue: bool,
    may_switch: bool,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
}

/// All that was read, and what ended it.
type Outcome = (Vec<Read>, End);

#[derive(Debug, PartialEq)]
enum End {
    /// The input, so many bytes of which were not used.
    Input,
    Malformed,
    Refused,
    Http2(Vec<u8>),
}

/// What must hold of these bytes.
pub fn run(sent: &[u8]) {
    for pieces in cut::ways(sent) {
        compare(sent, read([sent].into_iter()), read(pieces.into_iter()));
    }
}

fn compare(sent: &[u8], (whole, ended): Outcome, (pieces, broke): Outcome) {
    let bodies: usize = whole.iter().map(|read| read.body.len()).sum();
    assert!(bodies <= sent.len());
    if let End::Http2(rest) = &ended {
        assert!(sent.ends_with(rest));
    }
    match (&ended, &broke) {
        // What follows an incomplete head in pieces is looked at only once it may be whole; of what is left to HTTP/2, no more
        // had come by then.
        (End::Refused, End::Input) => assert!(pieces.len() <= whole.len()),
        (End::Http2(rest), End::Http2(came)) => assert!(rest.starts_with(came)),
        _ => assert_eq!(ended, broke),
    }
    let both = whole.len().min(pieces.len());
    assert_eq!(format!("{:?}", &whole[..both]), format!("{:?}", &pieces[..both]));
    assert!(whole.len() == pieces.len() || ended != broke);
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let (mut input, mut reader) = (BytesMut::new(), RequestReader::default());
    let (mut all, mut current) = (Vec::new(), None::<(ReceivedRequest, Vec<u8>, Option<HeaderMap>)>);
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let Some((received, body, trailers)) = &mut current else {
                match reader.read(&mut input) {
                    Ok(Some(received)) => current = Some((received, Vec::new(), None)),
                    Ok(None) => break,
                    Err(RequestError::Http2) => return (all, End::Http2(input.to_vec())),
                    Err(RequestError::Refused { .. }) => return (all, End::Refused),
                }
                continue;
            };
            match received.body.decode(&mut input) {
                Ok(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(Piece::Trailers(map))) => *trailers = Some(map),
                Ok(None) if !received.body.is_done() => break,
                Ok(None) => {
                    let Some((received, body, trailers)) = current.take() else { break };
                    let ReceivedRequest { head, persistent, expects_continue, may_switch, .. } = received;
                    all.push(Read { head, persistent, expects_continue, may_switch, body, trailers });
                }
                Err(_) => return (all, End::Malformed),
            }
        }
    }
    (all, End::Input)
}
