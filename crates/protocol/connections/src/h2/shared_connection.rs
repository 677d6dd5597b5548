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
    attempt_waits::{AttemptTimeouts, ResponseWait, SendProgress},
    error::SendError,
    request::{Head, PendingRequest, Request},
    request_body::RequestBody,
    timer::PooledTimer,
};
use fairmesh_headers as headers;
use fairmesh_http::{
    BoxError, h1,
    h2::{self, Call, CallError, Reason, RequestHead, StreamError},
};

/// Error message for a request to switch protocols over HTTP/2, whose connections are shared with other calls.
const NO_UPGRADES: &str = "over HTTP/2 there are no upgrades; declare the service with protocol http1";

/// An HTTP/2 connection that calls share.
pub struct SharedConnection {
    session: h2::Shared,
    /// Number of calls on the connection.
    pub(super) streams: AtomicU32,
    /// Number of concurrent calls that the server allows; 0 while the server holds the connection back.
    pub(super) limit: AtomicU32,
    /// The connection accepts no more calls, because the server sent GOAWAY or the connection broke.
    pub(super) closing: AtomicBool,
    pub(super) used: AtomicBool,
    /// Whether any call on the connection got a response.
    proven: AtomicBool,
    pub(super) idle_checks: AtomicU32,
    /// Wakes calls that are waiting for a stream, on this or another connection of the pool.
    stream_freed: Arc<Notify>,
}

/// Permit for one stream. The stream counts on its connection until the permit is dropped.
pub(crate) struct StreamPermit(Arc<SharedConnection>);

/// Result of beginning a call.
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
    // Reading first keeps the cache line shared between processors.
    if !stream.0.proven.load(Relaxed) {
        stream.0.proven.store(true, Relaxed);
    }
    Ok(response.map(|body| ResponseBody::new(body, upload, stream)))
}

impl SharedConnection {
    /// Wraps the connection of this session.
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

    /// Changes the error of a connection that closed without ever having delivered a response. Such a server is not
    /// shutting down gracefully. Otherwise it would be called again and again, since it never has load.
    pub(super) fn reclassify(&self, error: SendError) -> SendError {
        match error {
            SendError::Stale(cause) if !self.proven.load(Relaxed) => SendError::Refused(cause),
            other => other,
        }
    }

    /// Makes one call on this connection. Returns `None` if the connection accepts no more calls.
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

    /// Begins to send the pending request. The request stays pending if no stream is free or the server holds the
    /// connection back.
    pub(super) fn begin(self: &Arc<Self>, pending: &mut PendingRequest) -> Result<Begun, SendError> {
        self.begin_where(pending, false)
    }

    /// Begins a request without a body, even if the server holds the connection back: such a request needs none of its
    /// window.
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
        // gRPC ends every request with DATA, which is empty if there are no messages (PROTOCOL-HTTP2, Requests).
        // hyper's bodies do not distinguish this from END_STREAM in the headers.
        let ends = !body.has_body && !head.grpc;
        // The caller's body is neither polled nor dropped while the session is locked: it may be a response on the same
        // connection, and would lock the session too.
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
        // Counted here before the session counts the stream: if this count is below the limit, the session must have a
        // free stream.
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

/// Returns the number of calls allowed on the connection. If the server has used up the connection's window by not
/// reading requests, further calls would stall, so they get another connection.
fn limit(session: &h2::Session) -> u32 {
    if session.capacity() == h2::Capacity::HeldBack { 0 } else { session.stream_limit() }
}

/// Removes the headers that HTTP/2 does not allow, and `host`, which `:authority` replaces. Adds the length that the
/// caller declared.
fn prepare(headers: &mut HeaderMap, body: &RequestBody) {
    h2::keep_allowed(headers);
    // If the header is ambiguous, the body's own length is used.
    if h1::normalize_length(headers).is_err() {
        headers.remove(header::CONTENT_LENGTH);
    }
    // One pass searches first: almost no request has such headers, and hashing each name would be wasted.
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

/// `te` may only be `trailers` in HTTP/2 (RFC 9113 8.2.2).
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
            // The server considers the request malformed (RFC 9113 8.1.1).
            StreamError::Reset(Reason::PROTOCOL_ERROR) => SendError::Rejected(lost.into()),
            StreamError::Unprocessed(Reason::NO_ERROR) => SendError::Stale(lost.into()),
            // Not a graceful shutdown but an error attributed to clients, such as ENHANCE_YOUR_CALM.
            StreamError::Unprocessed(_) => SendError::Refused(lost.into()),
            // The server rejected this program's certificate before it read the request.
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
    fn headers_forbidden_in_http2_are_not_sent() {
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
    async fn content_length_is_sent_if_known_except_in_grpc() {
        let body = async || RequestBody::take(http_body_util::Full::new("tea".into())).await.unwrap();
        let mut sent = HeaderMap::new();
        prepare(&mut sent, &body().await);
        assert_eq!(sent["content-length"], "3");
        let mut grpc = headers(&[("content-type", "application/grpc")]);
        prepare(&mut grpc, &body().await);
        assert!(!grpc.contains_key("content-length"));
    }
}
