//! What fields make of a message (RFC 9113 8).

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, Scheme},
};

use crate::hpack::Field;
use crate::{
    h1::{MOST_FIELDS, MOST_HEAD, content_length},
    path::Path,
};

/// What the fields of a head or of trailers may take, as RFC 9113 6.5.2 counts it, in bytes: no less than what is taken over HTTP/1.1.
pub(super) const MOST: usize = MOST_HEAD + 1 + 32 * MOST_FIELDS;
/// Bytes that RFC 9113 6.5.2 counts for each field besides those that HTTP/1.1 writes.
const BEYOND: usize = 32 - ": \r\n".len();

/// Fields of HTTP/1.1 that say how a message is framed (RFC 9113 8.2.2).
static FORBIDDEN: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Takes out of what is to be said what HTTP/2 has no place for.
pub fn keep_allowed(headers: &mut HeaderMap) {
    // Looked at in one pass first: nearly no message has any, and a hash for each would be in vain.
    if headers.keys().any(|name| FORBIDDEN.contains(name)) {
        for name in &FORBIDDEN {
            headers.remove(name);
        }
    }
}

/// The fields of one block, as they come.
#[derive(Debug, Default)]
pub(super) struct Fields {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<Path>,
    status: Option<StatusCode>,
    protocol: Option<Bytes>,
    headers: HeaderMap,
    /// Fields that came, all and those that count: a cookie that is cut into several is one (RFC 9113 8.2.3).
    came: usize,
    counted: usize,
    has_cookie: bool,
    size: usize,
    /// What is wrong with the message, if anything.
    wrong: Option<&'static str>,
    /// A field came that is none of HTTP/2's own, which come first.
    is_beyond: bool,
}

/// What is made of a block.
#[derive(Debug)]
pub(super) enum Made<T> {
    Whole(T),
    /// The fields take more than they may.
    TooLarge,
    Malformed(&'static str),
}

/// A request, and how long it says its body is.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Request<()>,
    pub(super) length: Option<u64>,
}

/// An answer, and how long it says its body is.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) answer: Response<()>,
    pub(super) length: Option<u64>,
}

/// Puts the first value there, and tells of a second.
fn once<T>(place: &mut Option<T>, value: T) -> Option<&'static str> {
    place.replace(value).map(|_| "a field of HTTP/2's own comes twice")
}

/// The length of a body, which is told once from here on, and as a number: others may take a list for something else (RFC 9110 8.6).
fn told_once(headers: &mut HeaderMap) -> Result<Option<u64>, &'static str> {
    let length = content_length(headers).map_err(|_| "the length is none, or two")?;
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    Ok(length)
}

impl Fields {
    pub(super) fn add(&mut self, field: Field) {
        self.size = self.size.saturating_add(field.size());
        self.came += 1;
        let is_own = !matches!(field, Field::Header(..) | Field::Malformed(..));
        let is_cookie = matches!(&field, Field::Header(name, _) if *name == header::COOKIE);
        // The pieces of a cookie become one header.
        let is_piece = is_cookie && std::mem::replace(&mut self.has_cookie, true);
        self.counted += usize::from(!is_own && !is_piece);
        if self.is_too_large() || self.wrong.is_some() {
            return;
        }
        self.wrong = match field {
            _ if is_own && self.is_beyond => Some("a field of HTTP/2's own comes after another"),
            Field::Header(name, value) => self.header(name, value),
            Field::Malformed(_, why) => Some(why),
            Field::Method(method) => once(&mut self.method, method),
            Field::Scheme(scheme) => once(&mut self.scheme, scheme),
            Field::Authority(authority) => once(&mut self.authority, authority),
            Field::Path(path) => once(&mut self.path, path),
            Field::Status(status) => once(&mut self.status, status),
            Field::Protocol(protocol) => once(&mut self.protocol, protocol),
        };
    }

    fn header(&mut self, name: HeaderName, value: HeaderValue) -> Option<&'static str> {
        self.is_beyond = true;
        if FORBIDDEN.contains(&name) {
            return Some("a field is about a connection of HTTP/1.1");
        }
        if name == header::TE && value != "trailers" {
            return Some("'te' says something else than 'trailers'");
        }
        match self.headers.try_append(name, value) {
            Ok(_) => None,
            Err(_) => Some("there are too many fields"),
        }
    }

    /// How many bytes HTTP/1.1 would write, but for its first line.
    pub(super) fn length(&self) -> usize {
        self.size.saturating_sub(self.came * BEYOND)
    }

    fn is_too_large(&self) -> bool {
        self.counted > MOST_FIELDS || self.size > MOST || self.length() > MOST_HEAD
    }

    fn checked(self) -> Made<Self> {
        match self.wrong {
            _ if self.is_too_large() => Made::TooLarge,
            Some(why) => Made::Malformed(why),
            None => Made::Whole(self),
        }
    }

    fn has_own(&self) -> bool {
        let Self { method, scheme, authority, path, status, protocol, .. } = self;
        method.is_some()
            || scheme.is_some()
            || authority.is_some()
            || path.is_some()
            || status.is_some()
            || protocol.is_some()
    }

    /// The fields after a body.
    pub(super) fn trailers(self) -> Made<HeaderMap> {
        match self.checked() {
            Made::Whole(fields) if fields.has_own() => {
                Made::Malformed("trailers have a field of HTTP/2's own")
            }
            Made::Whole(fields) => Made::Whole(fields.headers),
            Made::TooLarge => Made::TooLarge,
            Made::Malformed(why) => Made::Malformed(why),
        }
    }

    /// The head of a request; `ends` where nothing comes after it.
    pub(super) fn request(self, ends: bool) -> Made<Asked> {
        match self.checked() {
            Made::Whole(fields) => match fields.asked(ends) {
                Ok(asked) => Made::Whole(asked),
                Err(why) => Made::Malformed(why),
            },
            Made::TooLarge => Made::TooLarge,
            Made::Malformed(why) => Made::Malformed(why),
        }
    }

    /// The head of an answer.
    pub(super) fn answer(self) -> Made<Answered> {
        match self.checked() {
            Made::Whole(fields) => match fields.answered() {
                Ok(answered) => Made::Whole(answered),
                Err(why) => Made::Malformed(why),
            },
            Made::TooLarge => Made::TooLarge,
            Made::Malformed(why) => Made::Malformed(why),
        }
    }

    fn answered(self) -> Result<Answered, &'static str> {
        let Self { method, scheme, authority, path, protocol, .. } = &self;
        if method.is_some() || scheme.is_some() || authority.is_some() || path.is_some() || protocol.is_some()
        {
            return Err("an answer has a field of a request");
        }
        let mut answer = Response::new(());
        *answer.status_mut() = self.status.ok_or("an answer has no status")?;
        *answer.version_mut() = Version::HTTP_2;
        *answer.headers_mut() = self.headers;
        let length = told_once(answer.headers_mut())?;
        Ok(Answered { answer, length })
    }

    fn asked(self, ends: bool) -> Result<Asked, &'static str> {
        if self.status.is_some() {
            return Err("a request has a status");
        }
        if self.protocol.is_some() {
            // Nobody was told that it is spoken here (RFC 8441 3).
            return Err("a request asks for another protocol, which was not offered");
        }
        let mut headers = self.headers;
        let length = told_once(&mut headers)?;
        if ends && length.is_some_and(|length| length > 0) {
            return Err("the body is shorter than was said");
        }
        let method = self.method.ok_or("a request has no method")?;
        let mut uri = http::uri::Parts::default();
        let mut request = Request::new(());
        if method == Method::CONNECT {
            if self.scheme.is_some() || self.path.is_some() || self.authority.is_none() {
                return Err("CONNECT names a host, and nothing else (RFC 9113 8.5)");
            }
        } else {
            let scheme = self.scheme.ok_or("a request has no scheme")?;
            let path = self.path.ok_or("a request has no path")?;
            if path.as_str() == "*" && method != Method::OPTIONS {
                return Err("only OPTIONS is of no path (RFC 9113 8.3.1)");
            }
            uri.path_and_query = Some(path.into_parts(request.extensions_mut()));
            // There is no URI with a scheme, a path and no host; a header may name it.
            uri.scheme = self.authority.is_some().then_some(scheme);
        }
        uri.authority = self.authority;
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| "a request has no URI")?;
        *request.method_mut() = method;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        Ok(Asked { request, length })
    }
}
