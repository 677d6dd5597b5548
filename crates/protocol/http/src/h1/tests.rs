mod encoding;
mod requests;
mod responses;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};

use super::*;

/// Result of parsing all bytes from a server until it closes the connection.
#[derive(Debug, PartialEq)]
struct ParsedResponse {
    status: StatusCode,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    persistent: bool,
    /// Remaining bytes, which belong to the next message.
    rest: Bytes,
}

/// Parses these pieces. Returns `None` if the message is incomplete.
fn read<'a>(
    method: &Method,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<Option<ParsedResponse>, Malformed> {
    let (mut input, mut reader) = (BytesMut::new(), ResponseReader::new(method));
    let mut response: Option<ReceivedResponse> = None;
    let (mut body, mut trailers) = (Vec::new(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if response.is_none() {
            response = reader.read(&mut input)?;
        }
        while let Some(response) = &mut response
            && let Some(piece) = response.body.decode(&mut input)?
        {
            match piece {
                Piece::Data(data) => body.extend_from_slice(&data),
                Piece::Trailers(map) => trailers = Some(map),
            }
        }
    }
    // The connection is closed.
    let whole = response.filter(|response| response.body.is_done() || response.body.is_until_close());
    Ok(whole.map(|response| ParsedResponse {
        status: response.head.status(),
        body,
        trailers,
        persistent: response.persistent,
        rest: input.freeze(),
    }))
}

/// Parses a text at once and byte by byte, and checks that both give the same result.
fn read_at_once_and_bytewise(method: &Method, text: &str) -> Result<Option<ParsedResponse>, Malformed> {
    let whole = read(method, std::iter::once(text.as_bytes()));
    let pieces = read(method, text.as_bytes().chunks(1));
    assert_eq!(whole, pieces, "{text}");
    whole
}

/// Parses all bytes from a client. Returns the requests, and the error that ended parsing.
fn receive<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<String>, Option<RequestError>) {
    let (mut input, mut reader) = (BytesMut::new(), RequestReader::default());
    let (mut requests, mut current) = (Vec::new(), None::<(ReceivedRequest, Vec<u8>)>);
    for piece in pieces {
        input.extend_from_slice(piece);
        loop {
            let Some((received, body)) = &mut current else {
                match reader.read(&mut input) {
                    Ok(Some(received)) => current = Some((received, Vec::new())),
                    Ok(None) => break,
                    Err(why) => return (requests, Some(why)),
                }
                continue;
            };
            match received.body.decode(&mut input) {
                Ok(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                Ok(Some(Piece::Trailers(_))) => {}
                Ok(None) if received.body.is_done() => {
                    let ReceivedRequest { head, persistent, expects_continue, .. } = received;
                    let body = String::from_utf8_lossy(body);
                    let goes_on = if *persistent { "stays" } else { "closes" };
                    let waits = if *expects_continue { " waits" } else { "" };
                    requests.push(format!("{} {} {body} {goes_on}{waits}", head.method(), head.uri()));
                    current = None;
                }
                Ok(None) => break,
                Err(_) => return (requests, None),
            }
        }
    }
    (requests, None)
}

/// Parses the text at once and byte by byte, and checks that both give the same result.
fn receive_at_once_and_bytewise(text: &str) -> (Vec<String>, Option<RequestError>) {
    let whole = receive(std::iter::once(text.as_bytes()));
    assert_eq!(whole, receive(text.as_bytes().chunks(1)), "{text}");
    whole
}
