//! Converts header fields to requests, responses and trailers (RFC 9113 8).

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version, header,
    uri::{Authority, Scheme},
};

use crate::hpack::Field;
use crate::{
    h1::{MAX_FIELDS, MAX_HEAD_BYTES, normalize_length},
    path::Path,
};

/// Maximum size of a header list as RFC 9113 6.5.2 counts it, in bytes. It admits everything that HTTP/1.1 allows.
pub(super) const HEADER_LIST_LIMIT: usize = MAX_HEAD_BYTES + 1 + 32 * MAX_FIELDS;
/// Bytes that RFC 9113 6.5.2 counts for each field in addition to its HTTP/1.1 form.
const EXTRA_PER_FIELD: usize = 32 - ": \r\n".len();

/// Error for a message whose length is invalid or ambiguous.
const AMBIGUOUS_LENGTH: &str = "content-length is invalid or ambiguous";

/// Connection-specific headers of HTTP/1.1 (RFC 9113 8.2.2).
static FORBIDDEN: [HeaderName; 5] = [
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Removes the headers that HTTP/2 does not allow.
pub fn keep_allowed(headers: &mut HeaderMap) {
    // One pass searches first: almost no message has such a header, and hashing five names would be wasted.
    if headers.keys().any(|name| FORBIDDEN.contains(name)) {
        for name in &FORBIDDEN {
            headers.remove(name);
        }
    }
}

/// Converts the headers of a response from another protocol to HTTP/2: removes the headers that HTTP/2 forbids, and
/// leaves at most one `content-length`, which clients require.
pub(super) fn normalize_response(status: StatusCode, headers: &mut HeaderMap) {
    keep_allowed(headers);
    // `te` belongs to requests, and clients reject values other than `trailers` (RFC 9113 8.2.2).
    if headers.contains_key(header::TE) {
        headers.remove(header::TE);
    }
    // Responses with these statuses have no body, and must not have a length (RFC 9110 8.6).
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        headers.remove(header::CONTENT_LENGTH);
    } else if normalize_length(headers).is_err() {
        // Only a response without a body arrives with an invalid length; HTTP/1.1 parsers reject the others.
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// The fields of one header block.
#[derive(Debug, Default)]
pub(super) struct Fields {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<Authority>,
    path: Option<Path>,
    status: Option<StatusCode>,
    protocol: Option<Bytes>,
    headers: HeaderMap,
    /// Number of fields received, and the number that counts towards the limit: a cookie split into several fields
    /// counts once (RFC 9113 8.2.3).
    received: usize,
    counted: usize,
    has_cookie: bool,
    has_host: bool,
    size: usize,
    /// The first error in the message, if any.
    error: Option<&'static str>,
    /// Whether a regular field was received. Pseudo-headers must come before all regular fields.
    has_regular: bool,
}

/// Result of validating a header block.
#[derive(Debug)]
pub(super) enum Checked<T> {
    Valid(T),
    /// The header block exceeds the limits.
    TooLarge,
    Malformed(&'static str),
}

/// A request and its `content-length`.
#[derive(Debug)]
pub(super) struct DecodedRequest {
    pub(super) request: Request<()>,
    pub(super) length: Option<u64>,
}

/// A response and its `content-length`.
#[derive(Debug)]
pub(super) struct DecodedResponse {
    pub(super) response: Response<()>,
    pub(super) length: Option<u64>,
}

/// Sets a pseudo-header, and returns an error if it was already set.
fn once<T>(slot: &mut Option<T>, value: T) -> Option<&'static str> {
    slot.replace(value).map(|_| "a pseudo-header is repeated")
}

impl Fields {
    pub(super) fn add(&mut self, field: Field) {
        self.size = self.size.saturating_add(field.size());
        self.received += 1;
        let is_pseudo = !matches!(field, Field::Header(..) | Field::Malformed(..));
        let is_cookie = matches!(&field, Field::Header(name, _) if *name == header::COOKIE);
        // The pieces of a cookie are joined into one header.
        let is_piece = is_cookie && std::mem::replace(&mut self.has_cookie, true);
        self.counted += usize::from(!is_pseudo && !is_piece);
        if self.is_too_large() || self.error.is_some() {
            return;
        }
        self.error = match field {
            _ if is_pseudo && self.has_regular => Some("a pseudo-header follows a regular header"),
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
        self.has_regular = true;
        if FORBIDDEN.contains(&name) {
            return Some("a connection-specific header of HTTP/1.1");
        }
        if name == header::HOST && std::mem::replace(&mut self.has_host, true) {
            // Servers differ in which of several hosts they choose (RFC 9112 3.2).
            return Some("more than one host");
        }
        if name == header::TE && value != "trailers" {
            return Some("'te' has a value other than 'trailers'");
        }
        match self.headers.try_append(name, value) {
            Ok(_) => None,
            Err(_) => Some("too many headers"),
        }
    }

    /// Size of the fields in HTTP/1.1 form, in bytes, without the first line.
    pub(super) fn length(&self) -> usize {
        self.size.saturating_sub(self.received * EXTRA_PER_FIELD)
    }

    fn is_too_large(&self) -> bool {
        self.counted > MAX_FIELDS || self.size > HEADER_LIST_LIMIT || self.length() > MAX_HEAD_BYTES
    }

    fn checked(self) -> Checked<Self> {
        match self.error {
            _ if self.is_too_large() => Checked::TooLarge,
            Some(why) => Checked::Malformed(why),
            None => Checked::Valid(self),
        }
    }

    fn has_pseudo_header(&self) -> bool {
        let Self { method, scheme, authority, path, status, protocol, .. } = self;
        method.is_some()
            || scheme.is_some()
            || authority.is_some()
            || path.is_some()
            || status.is_some()
            || protocol.is_some()
    }

    /// Validates the fields as trailers.
    pub(super) fn trailers(self) -> Checked<HeaderMap> {
        match self.checked() {
            Checked::Valid(fields) if fields.has_pseudo_header() => {
                Checked::Malformed("a pseudo-header in trailers")
            }
            Checked::Valid(fields) => Checked::Valid(fields.headers),
            Checked::TooLarge => Checked::TooLarge,
            Checked::Malformed(why) => Checked::Malformed(why),
        }
    }

    /// Validates the fields as a request. `ends` means that the block has END_STREAM.
    pub(super) fn request(self, ends: bool) -> Checked<DecodedRequest> {
        match self.checked() {
            Checked::Valid(fields) => match fields.into_request(ends) {
                Ok(request) => Checked::Valid(request),
                Err(why) => Checked::Malformed(why),
            },
            Checked::TooLarge => Checked::TooLarge,
            Checked::Malformed(why) => Checked::Malformed(why),
        }
    }

    /// Validates the fields as a response.
    pub(super) fn response(self) -> Checked<DecodedResponse> {
        match self.checked() {
            Checked::Valid(fields) => match fields.into_response() {
                Ok(response) => Checked::Valid(response),
                Err(why) => Checked::Malformed(why),
            },
            Checked::TooLarge => Checked::TooLarge,
            Checked::Malformed(why) => Checked::Malformed(why),
        }
    }

    fn into_response(self) -> Result<DecodedResponse, &'static str> {
        let Self { method, scheme, authority, path, protocol, .. } = &self;
        if method.is_some() || scheme.is_some() || authority.is_some() || path.is_some() || protocol.is_some()
        {
            return Err("a response has a pseudo-header of a request");
        }
        let mut response = Response::new(());
        *response.status_mut() = self.status.ok_or("a response has no :status")?;
        *response.version_mut() = Version::HTTP_2;
        *response.headers_mut() = self.headers;
        let length = normalize_length(response.headers_mut()).map_err(|_| AMBIGUOUS_LENGTH)?;
        Ok(DecodedResponse { response, length })
    }

    fn into_request(self, ends: bool) -> Result<DecodedRequest, &'static str> {
        if self.status.is_some() {
            return Err("a request has a :status");
        }
        if self.protocol.is_some() {
            // Extended CONNECT was not announced in SETTINGS (RFC 8441 3).
            return Err("extended CONNECT, which was not offered");
        }
        let mut headers = self.headers;
        let length = normalize_length(&mut headers).map_err(|_| AMBIGUOUS_LENGTH)?;
        if ends && length.is_some_and(|length| length > 0) {
            return Err("the body is shorter than its content-length");
        }
        let method = self.method.ok_or("a request has no :method")?;
        let mut uri = http::uri::Parts::default();
        let mut request = Request::new(());
        if method == Method::CONNECT {
            if self.scheme.is_some() || self.path.is_some() || self.authority.is_none() {
                return Err("CONNECT must have :authority, and neither :scheme nor :path (RFC 9113 8.5)");
            }
        } else {
            let scheme = self.scheme.ok_or("a request has no :scheme")?;
            let path = self.path.ok_or("a request has no :path")?;
            if path.as_str() == "*" && method != Method::OPTIONS {
                return Err("only OPTIONS may have the path '*' (RFC 9113 8.3.1)");
            }
            uri.path_and_query = Some(path.into_parts(request.extensions_mut()));
            // `http::Uri` cannot represent a scheme and a path without an authority. `host` may still provide the
            // authority.
            uri.scheme = self.authority.is_some().then_some(scheme);
        }
        uri.authority = self.authority;
        *request.uri_mut() = Uri::from_parts(uri).map_err(|_| "a request has no valid URI")?;
        *request.method_mut() = method;
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        Ok(DecodedRequest { request, length })
    }
}
