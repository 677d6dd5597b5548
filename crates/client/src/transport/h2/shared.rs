//! One connection, and the calls on it.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
};

use http::{HeaderMap, HeaderValue, Response, header};
use tokio::sync::Notify;

use super::{
    Incoming, Lent, Outgoing, Request, SendError, Slot, Times,
    wait::{Sending, Wait},
};
use crate::{BoxError, transport::Head};
use fairmesh_headers as headers;
use fairmesh_http::{
    h1,
    h2::{self, Call, CallError, Reason, RequestHead, StreamError},
};

/// Said of a request to switch protocols on a connection that other calls share.
const NO_UPGRADES: &str = "over HTTP/2 there are no upgrades; declare the service with protocol http1";

/// A connection that calls share.
pub(crate) struct Shared {
    session: h2::Shared,
    /// Calls on it.
    pub(super) streams: AtomicU32,
    /// Calls that the server allows on it.
    pub(super) limit: AtomicU32,
    /// It takes no more calls: the server said so, or it broke.
    pub(super) gone: AtomicBool,
    pub(super) used: AtomicBool,
    /// A call on it was answered.
    proven: AtomicBool,
    pub(super) idle_rounds: AtomicU32,
    /// Tells those who wait for a place, here or on another connection of the pool, that there may be one.
    freed: Arc<Notify>,
}

/// The head of an answer and where its body comes from.
pub(crate) type Reply = Response<Incoming>;

/// A call's place on its connection, until it is dropped.
pub(crate) struct Place(Arc<Shared>);

/// What comes of asking for a place.
pub(super) enum Begun {
    Call(Call<Outgoing>, Place),
    /// Others have taken all of them.
    Taken,
    /// The connection takes no more.
    None,
}

/// Waits for the head of the answer, as long as `times` allow.
pub(super) async fn answer(
    mut call: Call<Outgoing>,
    place: Place,
    times: Option<Times>,
) -> Result<Reply, SendError> {
    let mut bound = times.map(|times| (Wait::new(times), Lent::take()));
    let answered = poll_fn(|context| {
        let answered = Pin::new(&mut call).poll(context).map_err(unanswered);
        let Some((wait, alarm)) = &mut bound else { return answered };
        let sending = call.sending().map(|(pieces, unsent)| Sending { pieces, unsent });
        wait.bound(answered, sending, alarm.alarm(), context)
    });
    let (response, upload) = answered.await?;
    // Looked at first, so that the line stays in every processor's cache.
    if !place.0.proven.load(Relaxed) {
        place.0.proven.store(true, Relaxed);
    }
    Ok(response.map(|body| Incoming::new(body, upload, place)))
}

impl Shared {
    /// On a connection of which this is said.
    pub(super) fn new(session: h2::Shared, freed: Arc<Notify>) -> Self {
        let limit = h2::lock(&session).stream_limit().into();
        Self {
            session,
            limit,
            streams: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            used: AtomicBool::new(false),
            proven: AtomicBool::new(false),
            idle_rounds: AtomicU32::new(0),
            freed,
        }
    }

    /// A server that closes connections on which it has never answered anything is not one that goes in good order: it
    /// would else be called again and again, since whatever it does, it has no load.
    pub(super) fn judge(&self, error: SendError) -> SendError {
        match error {
            SendError::Stale(cause) if !self.proven.load(Relaxed) => SendError::Refused(cause),
            other => other,
        }
    }

    /// One call on this connection; `None` where it takes no more.
    pub(crate) async fn call(self: &Arc<Self>, slot: &mut Slot) -> Result<Option<Reply>, SendError> {
        match self.begin(slot)? {
            Begun::Call(call, place) => answer(call, place, None).await.map(Some),
            Begun::Taken | Begun::None => Ok(None),
        }
    }

    pub(super) fn refresh_limit(&self) {
        self.limit.store(h2::lock(&self.session).stream_limit(), Relaxed);
    }

    /// Begins to send the request in the slot, where it stays if there is no place for it.
    pub(super) fn begin(self: &Arc<Self>, slot: &mut Slot) -> Result<Begun, SendError> {
        let Some(mut request) = slot.take() else {
            return Err(SendError::Invalid("there is no request to send".into()));
        };
        let Request { head, body, left } = &mut request;
        if h1::requests_upgrade(&head.headers) {
            return Err(SendError::Invalid(NO_UPGRADES.into()));
        }
        headers::write_deadline(&mut head.headers, *left, head.grpc);
        prepare(&mut head.headers, body);
        // gRPC ends every request with DATA, of no bytes where there are no messages (PROTOCOL-HTTP2, Requests). Bodies of hyper
        // do not tell that from an end with the headers.
        let ends = !body.has_body && !head.grpc;
        // Nothing of the caller's is called or dropped while the session is locked: its body may be an answer on the same
        // connection, which locks it as well.
        let begun = self.begin_with(head, ends);
        match begun {
            Ok(Begun::Call(call, place)) => {
                Ok(Begun::Call(if ends { call } else { call.with(request.body) }, place))
            }
            other => {
                *slot = Some(request);
                other
            }
        }
    }

    fn begin_with(self: &Arc<Self>, head: &Head, ends: bool) -> Result<Begun, SendError> {
        let session = h2::lock(&self.session);
        self.limit.store(session.stream_limit(), Relaxed);
        match session.capacity() {
            h2::Capacity::Available => {}
            h2::Capacity::Full => return Ok(Begun::Taken),
            h2::Capacity::Closed => return Ok(Begun::None),
            h2::Capacity::Blocked => {
                return Err(SendError::Refused("it takes nothing of what waits to be sent to it".into()));
            }
        }
        // Before the session counts it: who finds fewer calls here than are allowed must find a place there.
        self.streams.fetch_add(1, Relaxed);
        let Head { method, authority, path, headers, .. } = head;
        let path = path.as_str();
        let call =
            Call::begin(&self.session, session, &RequestHead { method, authority, path, headers }, ends);
        Ok(Begun::Call(call, Place(Arc::clone(self))))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        h2::lock(&self.session).retire();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Relaxed);
        self.0.freed.notify_one();
    }
}

/// Takes out what HTTP/2 has no place for, and the host, which it says elsewhere, and tells the length where the caller did.
fn prepare(headers: &mut HeaderMap, body: &Outgoing) {
    h2::keep_allowed(headers);
    // Looked at in one pass first: nearly no request has any, and a hash for each would be in vain.
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

/// Of what its sender takes besides, HTTP/2 may say that of trailers alone.
fn keep_te(headers: &mut HeaderMap) {
    let mut words =
        headers.get_all(header::TE).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let takes_trailers = words.any(|word| word.trim_ascii().eq_ignore_ascii_case(b"trailers"));
    headers.remove(header::TE);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn unanswered(why: CallError<BoxError>) -> SendError {
    match why {
        CallError::Body(error) => SendError::Body(error),
        CallError::Stream(lost) => match lost {
            StreamError::Reset(Reason::REFUSED_STREAM) => SendError::Refused(lost.into()),
            StreamError::Unprocessed(Reason::NO_ERROR) => SendError::Stale(lost.into()),
            // Not for its own going, but for what it thinks of its clients, such as ENHANCE_YOUR_CALM.
            StreamError::Unprocessed(_) => SendError::Refused(lost.into()),
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
    fn what_http2_has_no_place_for_is_not_sent() {
        let mut sent = headers(&[
            ("host", "one.shop"),
            ("connection", "close"),
            ("keep-alive", "5"),
            ("te", "gzip"),
            ("x-a", "b"),
        ]);
        prepare(&mut sent, &Outgoing::empty());
        assert_eq!(sent, headers(&[("x-a", "b")]));
        for te in
            [&[("te", "trailers")][..], &[("te", "gzip, Trailers")], &[("te", "gzip"), ("te", "trailers")]]
        {
            let mut grpc = headers(&[&[("host", "one.shop")], te].concat());
            prepare(&mut grpc, &Outgoing::empty());
            assert_eq!(grpc, headers(&[("te", "trailers")]), "{te:?}");
        }
    }

    #[tokio::test]
    async fn a_length_that_is_known_is_told_but_not_to_grpc() {
        let body = async || Outgoing::take(http_body_util::Full::new("tea".into())).await.unwrap();
        let mut sent = HeaderMap::new();
        prepare(&mut sent, &body().await);
        assert_eq!(sent["content-length"], "3");
        let mut grpc = headers(&[("content-type", "application/grpc")]);
        prepare(&mut grpc, &body().await);
        assert!(!grpc.contains_key("content-length"));
    }
}
