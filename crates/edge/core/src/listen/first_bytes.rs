//! Detects the protocol from the first bytes of a connection, for listeners whose clients did not choose the
//! listener.

use fairmesh_http::{h1::lower_version, h2::PREFACE};
use http::Uri;

/// Maximum number of bytes examined; it is also the maximum size of request headers.
pub const MAX_FIRST_BYTES: usize = 64 * 1024;
const MAX_HEADERS: usize = 128;

/// The protocol of a connection.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// HTTP/1.1, with the host of the first request.
    Http1(String),
    /// HTTP/2.
    Http2,
    /// Another protocol.
    Other,
}

impl FirstBytes {
    /// Classifies a copy of the first bytes, which may be modified. `None` if more bytes are needed.
    pub fn classify(bytes: &mut [u8]) -> Option<Self> {
        let len = bytes.len().min(PREFACE.len());
        if bytes[..len] == PREFACE[..len] {
            return (len == PREFACE.len()).then_some(Self::Http2);
        }
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Partial) if bytes.len() < MAX_FIRST_BYTES => None,
            Ok(httparse::Status::Complete(_)) => {
                Some(request_host(&request).map_or(Self::Other, Self::Http1))
            }
            Err(httparse::Error::Version) if lower_version(bytes) => Self::classify(bytes),
            _ => Some(Self::Other),
        }
    }
}

/// The host of a request: from the request target, or else from the header (RFC 9112 3.2.2).
fn request_host(request: &httparse::Request<'_, '_>) -> Option<String> {
    let target: Option<Uri> = request.path.and_then(|target| authority_part(target).parse().ok());
    if let Some(authority) = target.as_ref().and_then(Uri::authority) {
        return Some(authority.to_string());
    }
    let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("host"))?;
    std::str::from_utf8(header.value).ok().map(|host| host.trim().to_owned())
}

/// An absolute URI without its path, which may contain bytes that `Uri` refuses.
fn authority_part(target: &str) -> &str {
    let begin = target.find("://").map_or(0, |at| at + 3);
    let end = target[begin..].find(['/', '?', '#']).filter(|_| begin > 0);
    end.map_or(target, |end| &target[..begin + end])
}
