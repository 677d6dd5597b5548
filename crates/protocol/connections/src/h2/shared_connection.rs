use std::{
    future::poll_fn,
    io::ErrorKind,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use http::{HeaderMap, HeaderValue, Response, header};
use tokio::sync::Notify;

use super::response_body::ResponseBody;
use crate::{
    error::SendError,
    request::{Head, PendingRequest, Request},
    request_body::RequestBody,
    timer::PooledTimer,
    wait::{AttemptTimeouts, ResponseWait, SendProgress},
};
use fairmesh_headers as headers;
use fairmesh_http::{
    BoxError, h1,
    h2::{self, Call, CallError, Reason, RequestHead, StreamError},
};

/// The error of a request to switch protocols on a connection that other calls share.
const NO_UPGRADES: &str = "over HTTP/2 there are no upgrades; declare the service with protocol http1";

/// A connection that calls share.
pub struct SharedConnection {
    session: h2::Shared,
    /// Calls on it.
    pub(super) streams: AtomicU32,
    /// The concurrent calls that the server allows on it; 0 while the server holds it back.
    pub(super) limit: AtomicU32,
    /// It accepts no more calls: the server sent GOAWAY, or it broke.
    pub(super) closing: AtomicBool,
    pub(super) used: AtomicBool,
    /// Whether a call on it got a response.
    proven: AtomicBool,
    pub(super) idle_checks: AtomicU32,
    /// Wakes calls that wait for a stream, here or on another connection of the pool.
    stream_freed: Arc<Notify>,
}

/// The stream of a call, which counts on its connection until this is dropped.
pub(crate) struct StreamPermit(Arc<SharedConnection>);

/// The result of beginning a call.
pub(super) enum Begun {
    Call(Call<RequestBody>, StreamPermit),
    /// All streams are in use.
    AtCapacity,
    /// The connection accepts no more calls.
    Closing,
}

/// Waits for the head of the response, within `timeouts`.
pub(super) async fn response(
    mut call: Call<RequestBody>,
    stream: StreamPermit,
    timeouts: Option<AttemptTimeouts>,
) -> Result<Response<ResponseBody>, SendError> {
    let mut bound = timeouts.map(|timeouts| (ResponseWait::new(timeouts), PooledTimer::take()));
    let responded = poll_fn(|context| {
        let polled = Pin::new(&mut call).poll(context).map_err(send_error);
        let Some((wait, timer)) = &mut bound else { return polled };
        let progress = call.sending().map(|(pieces, unsent)| SendProgress { pieces, unsent });
        wait.bound(polled, progress, timer.timer(), context)
    });
    let (response, upload) = responded.await?;
    // Read first, so that the cache line stays shared between processors.
    if !stream.0.proven.load(Relaxed) {
        stream.0.proven.store(true, Relaxed);
    }
    Ok(response.map(|body| ResponseBody::new(body, upload, stream)))
}

impl SharedConnection {
    /// Over the connection of this session.
    pub(super) fn new(session: h2::Shared, stream_freed: Arc<Notify>) -> Self {
        let limit = h2::lock(&session).stream_limit().into();
        Self {
            session,
            limit,
            streams: AtomicU32::new(0),
            closing: AtomicBool::new(false),
            used: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            idle_checks: AtomicU32::new(0),
            stream_freed,
        }
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Relaxed)
    }

    /// A server that closes a connection without ever having responded on it is not shutting down gracefully: it
    /// would else be called again and again, since it never has load.
    pub(super) fn reclassify(&self, error: SendError) -> SendError {
        match error {
            SendError::Stale(cause) if !self.proven.load(Relaxed) => SendError::Refused(cause),
            other => other,
        }
    }

    /// One call on this connection; `None` where it accepts no more.
    ///
    /// # Errors
    /// There is no response, or the request cannot be sent.
    pub async fn call(
        self: &Arc<Self>,
        pending: &mut PendingRequest,
    ) -> Result<Option<Response<ResponseBody>>, SendError> {
        match self.begin(pending)? {
            Begun::Call(call, stream) => response(call, stream, None).await.map(Some),
            Begun::AtCapacity | Begun::Closing => Ok(None),
        }
    }

    pub(super) fn refresh_limit(&self) {
        self.limit.store(limit(&h2::lock(&self.session)), Relaxed);
    }

    /// Begins to send the pending request, which stays pending where there is no stream for it, or the server holds the connection back.
    pub(super) fn begin(self: &Arc<Self>, pending: &mut PendingRequest) -> Result<Begun, SendError> {
        self.begin_where(pending, false)
    }

    /// The same on a connection that the server may hold back, of a request without a body: that needs none of its window.
    pub(super) fn begin_held_back(
        self: &Arc<Self>,
        pending: &mut PendingRequest,
    ) -> Result<Begun, SendError> {
        self.begin_where(pending, true)
    }

    fn begin_where(
        self: &Arc<Self>,
        pending: &mut PendingRequest,
        may_be_held_back: bool,
    ) -> Result<Begun, SendError> {
        let Some(mut request) = pending.take() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let Request { head, body, left } = &mut request;
        if h1::requests_upgrade(&head.headers) {
            return Err(SendError::Invalid(NO_UPGRADES.into()));
        }
        headers::write_deadline(&mut head.headers, *left, head.grpc);
        prepare(&mut head.headers, body);
        // gRPC ends every request with DATA, which is empty where there are no messages (PROTOCOL-HTTP2, Requests).
        // Bodies of hyper do not distinguish that from an end with the headers.
        let ends = !body.has_body && !head.grpc;
        // The caller's body is neither polled nor dropped while the session is locked: it may be a response on the same
        // connection, which locks it as well.
        let begun = self.begin_with(head, ends, may_be_held_back && ends);
        match begun {
            Ok(Begun::Call(call, stream)) => {
                Ok(Begun::Call(if ends { call } else { call.with(request.body) }, stream))
            }
            other => {
                *pending = Some(request);
                other
            }
        }
    }

    fn begin_with(
        self: &Arc<Self>,
        head: &Head,
        ends: bool,
        may_be_held_back: bool,
    ) -> Result<Begun, SendError> {
        let session = h2::lock(&self.session);
        self.limit.store(limit(&session), Relaxed);
        match session.capacity() {
            h2::Capacity::Available => {}
            h2::Capacity::HeldBack if may_be_held_back => {}
            h2::Capacity::Full | h2::Capacity::HeldBack => return Ok(Begun::AtCapacity),
            h2::Capacity::Closed => return Ok(Begun::Closing),
            h2::Capacity::Blocked => {
                return Err(SendError::Refused("it reads nothing of what is queued for it".into()));
            }
        }
        // Before the session counts it: fewer calls here than the limit must mean a free stream there.
        self.streams.fetch_add(1, Relaxed);
        let Head { method, authority, path, headers, .. } = head;
        let path = path.as_str();
        let call =
            Call::begin(&self.session, session, &RequestHead { method, authority, path, headers }, ends);
        Ok(Begun::Call(call, StreamPermit(Arc::clone(self))))
    }
}

impl Drop for SharedConnection {
    fn drop(&mut self) {
        h2::lock(&self.session).retire();
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
        self.0.stream_freed.notify_one();
    }
}

/// The calls that may be on a connection. A server whose window for the whole connection is used up by requests that it
/// does not read would stall further ones: they get a connection of their own.
fn limit(session: &h2::Session) -> u32 {
    if session.capacity() == h2::Capacity::HeldBack { 0 } else { session.stream_limit() }
}

/// Removes headers that HTTP/2 does not allow, and the host, which is in `:authority`, and adds the length that the
/// caller declared.
fn prepare(headers: &mut HeaderMap, body: &RequestBody) {
    h2::keep_allowed(headers);
    // The body has its own length where the header is ambiguous.
    if h1::normalize_length(headers).is_err() {
        headers.remove(header::CONTENT_LENGTH);
    }
    // One pass first: nearly no request has any, and hashing each name would be wasted.
    if headers.keys().any(|name| *name == header::HOST || *name == header::TE) {
        headers.remove(header::HOST);
        keep_te(headers);
    }
    if let Some(length) = body.declared.filter(|length| *length > 0)
        && !headers::is_grpc(headers)
        && !headers.contains_key(header::CONTENT_LENGTH)
    {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// `TE` may only be `trailers` in HTTP/2 (RFC 9113 8.2.2).
fn keep_te(headers: &mut HeaderMap) {
    let mut words =
        headers.get_all(header::TE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let takes_trailers = words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    headers.remove(header::TE);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn send_error(why: CallError<BoxError>) -> SendError {
    match why {
        CallError::Body(error) => SendError::Body(error),
        CallError::Stream(lost) => match lost {
            StreamError::Reset(Reason::REFUSED_STREAM) => SendError::Refused(lost.into()),
            // The request is malformed in the eyes of the server (RFC 9113 8.1.1).
            StreamError::Reset(Reason::PROTOCOL_ERROR) => SendError::Rejected(lost.into()),
            StreamError::Unprocessed(Reason::NO_ERROR) => SendError::Stale(lost.into()),
            // Not a graceful shutdown, but an error of its clients, such as ENHANCE_YOUR_CALM.
            StreamError::Unprocessed(_) => SendError::Refused(lost.into()),
            // The server rejected the certificate of this program before it read the request.
            StreamError::Io(ErrorKind::ConnectionRefused) => SendError::Refused(lost.into()),
            _ => SendError::Broken(lost.into()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter();
        fields.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn headers_that_http2_forbids_are_not_sent() {
        let mut sent = headers(&[
            ("host", "one.shop"),
            ("connection", "close"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("x-a", "b"),
        ]);
        prepare(&mut sent, &RequestBody::empty());
        assert_eq!(sent, headers(&[("x-a", "b")]));
        for te in
            [&[("te", "trailers")][..], &[("te", "gzip, Trailers")], &[("te", "gzip"), ("te", "trailers")]]
        {
            let mut grpc = headers(&[&[("host", "one.shop")], te].concat());
            prepare(&mut grpc, &RequestBody::empty());
            assert_eq!(grpc, headers(&[("te", "trailers")]), "{te:?}");
        }
    }

    #[tokio::test]
    async fn a_known_length_is_sent_except_in_grpc() {
        let body = async || RequestBody::take(http_body_util::Full::new("tea".into())).await.unwrap();
        let mut sent = HeaderMap::new();
        prepare(&mut sent, &body().await);
        assert_eq!(sent["content-length"], "3");
        let mut grpc = headers(&[("content-type", "application/grpc")]);
        prepare(&mut grpc, &body().await);
        assert!(!grpc.contains_key("content-length"));
    }
}
