use std::{
    fmt, mem,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_connections::{EndpointResponse, violates_protocol};
use fairmesh_headers::{CallerProtocol, LOAD, LOAD_BIN, WEB_TEXT};
use fairmesh_http::{BoxError, ResponseDeadline};
use fairmesh_router::EndpointTarget;
use http::{Response, header::CONTENT_LENGTH};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;

use super::{
    attempt_guard::{AttemptGuard, BodyTimeout},
    observer::{BodyEnd, BodyObserver, PendingObserver},
    source::BodySource,
    timeout_conclusion::{TimeoutConclusion, WebFrames},
    tunnel::Tunnel,
};
use crate::fault::{Fault, FaultKind};

/// The body of a response. It can also serve as a simple request body.
///
/// The attempt behind the body counts as outstanding until the body was read to its end, failed or is dropped.
pub struct Body {
    source: BodySource,
    attempt: Option<AttemptGuard>,
    observer: PendingObserver,
    conclusion: TimeoutConclusion,
    /// A value dropped with the body.
    held: Option<Box<dyn Send + Sync>>,
    /// Whether the load report is removed from the trailers before the reader gets them.
    hides_load: bool,
}

impl Body {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self::new(BodySource::Full(None), None)
    }

    fn new(source: BodySource, attempt: Option<AttemptGuard>) -> Self {
        let (observer, conclusion) = (PendingObserver::default(), TimeoutConclusion::default());
        Self { source, attempt, observer, conclusion, held: None, hides_load: false }
    }

    /// Returns the body in a form whose faults contain the status that a tonic client looks for.
    pub(crate) fn for_tonic(mut self) -> Self {
        self.conclusion = TimeoutConclusion::FaultForTonic;
        self
    }

    fn addressed(&self, fault: Fault) -> Fault {
        match self.conclusion {
            TimeoutConclusion::FaultForTonic => fault.for_tonic(),
            _ => fault,
        }
    }

    /// Converts a response to the form that the caller receives.
    pub(crate) fn from_response(response: EndpointResponse, attempt: Option<AttemptGuard>) -> Response<Self> {
        let mut response = match response {
            EndpointResponse::H1(response) => response.map(|body| Self::new(BodySource::H1(body), attempt)),
            EndpointResponse::H2(response) => response.map(|body| Self::new(BodySource::H2(body), attempt)),
        };
        // After 101 the attempt continues with the connection's new protocol.
        if response.body().source.is_end() && !response.body().source.is_switched() {
            response.body_mut().end();
        } else if let Some(deadline) = response.body().attempt.as_ref().and_then(AttemptGuard::deadline) {
            response.extensions_mut().insert(ResponseDeadline(deadline));
        }
        response
    }

    /// Returns the connection of a response with status 101, which carries the protocol that the request named; `None`
    /// for any other response. The call's deadline does not apply to it.
    pub fn into_tunnel(self) -> Option<Tunnel> {
        let (BodySource::H1(body), Some(attempt)) = (self.source, self.attempt) else { return None };
        Some(Tunnel::new(body.into_raw()?, attempt))
    }

    /// The endpoint that responded, and the number of attempts; `None` if the body belongs to no response, or failed.
    pub fn responder(&self) -> Option<(&EndpointTarget, usize)> {
        self.attempt.as_ref().map(|attempt| (attempt.pool().target(), attempt.attempts()))
    }

    /// Whether the polled frame is the last one.
    #[inline]
    fn is_final(&self, polled: &Poll<Option<Result<Frame<Bytes>, BoxError>>>) -> bool {
        match polled {
            Poll::Ready(Some(Ok(frame))) => frame.is_trailers() || self.source.is_end(),
            Poll::Ready(None) => true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        }
    }

    #[inline]
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let polled = self.source.poll_frame(context);
        // The last frame counts, together with the server's own status, even if this task polled late.
        if self.attempt.as_ref().is_some_and(AttemptGuard::is_late) && !self.is_final(&polled) {
            return Poll::Ready(Some(self.time_out(&BodyTimeout::Deadline)));
        }
        match polled {
            Poll::Ready(Some(Ok(mut frame))) => {
                self.conclusion.track(&frame);
                if let Some(attempt) = &mut self.attempt {
                    attempt.record_progress();
                    attempt.record_bytes(frame.data_ref().map_or(0, Bytes::len));
                    if let Some(trailers) = frame.trailers_ref() {
                        attempt.record_trailers(trailers);
                    }
                }
                if frame.is_trailers() || self.source.is_end() {
                    self.end();
                }
                if self.hides_load
                    && let Some(trailers) = frame.trailers_mut()
                {
                    [LOAD, LOAD_BIN].iter().for_each(|name| drop(trailers.remove(name)));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(cause))) => Poll::Ready(Some(Err(self.broken(cause)))),
            Poll::Pending => match self.poll_timeout(context) {
                None => Poll::Pending,
                Some(timeout) => Poll::Ready(Some(self.time_out(&timeout))),
            },
        }
    }

    /// Ends the attempt after the body was read to its end. Its connection may carry another call.
    fn end(&mut self) {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| !attempt.has_ended()) else { return };
        if let BodySource::H1(body) = &mut self.source {
            attempt.keep_connection(body);
        }
        // Without trailers there is no status, which counts as a failure.
        attempt.report_status(false);
        attempt.end();
    }

    /// Handles a broken connection or a protocol violation by the server.
    #[cold]
    fn broken(&mut self, cause: BoxError) -> Fault {
        let (kind, message) = match violates_protocol(&cause) {
            true => (FaultKind::Protocol, "the server violated the protocol in the middle of the response"),
            false => (
                FaultKind::Reset,
                "the connection broke in the middle of the response; the call may have been processed",
            ),
        };
        self.fail();
        self.addressed(Fault::new(kind, message).caused_by(cause))
    }

    /// Records a failure of the endpoint and closes the connection.
    fn fail(&mut self) {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.set_failed();
        }
        self.source = BodySource::Full(None);
    }

    /// Returns the body's timeout if it has expired while the server keeps the reader waiting.
    fn poll_timeout(&mut self, context: &mut Context<'_>) -> Option<BodyTimeout> {
        let attempt = self.attempt.as_mut()?;
        attempt.poll_timeout(self.source.last_moved(), context)
    }

    /// Returns the last frame of a body that timed out, or its fault.
    #[cold]
    fn time_out(&mut self, timeout: &BodyTimeout) -> Result<Frame<Bytes>, Fault> {
        let message = match timeout {
            BodyTimeout::Deadline => "the call timed out in the middle of the response".to_owned(),
            BodyTimeout::Idle(idle) => format!(
                "nothing moved for {idle:?} in the middle of the response; a deadline of the call, or idleTimeout \
                 of its route, allows more"
            ),
        };
        let fault = self.addressed(Fault::new(FaultKind::Deadline, message));
        let conclusion = mem::take(&mut self.conclusion);
        self.fail();
        conclusion.frame(&fault).ok_or(fault)
    }
}

/// Wraps the body of a response that did not come from a call of this library.
pub fn foreign_body<B>(body: B) -> Body
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    Body::new(BodySource::Foreign(Mutex::new(body.map_err(Into::into).boxed_unsync())), None)
}

/// Makes a gRPC or gRPC-Web response that times out midway end with its status instead of a fault, as far as its
/// protocol allows. `has_trailers` says whether its caller can receive trailers.
pub fn end_with_status(response: &mut Response<Body>, has_trailers: bool) {
    let is_framed = response.headers().contains_key(CONTENT_LENGTH);
    let caller = CallerProtocol::of(response.headers());
    let body = response.body_mut();
    if is_framed || body.source.is_end() {
        return;
    }
    body.conclusion = match caller {
        CallerProtocol::Grpc(_) if has_trailers => TimeoutConclusion::Trailers,
        CallerProtocol::GrpcWeb(kind) => {
            let is_text = kind.as_bytes().starts_with(WEB_TEXT.as_bytes());
            TimeoutConclusion::Web(Box::new(WebFrames::new(is_text)))
        }
        CallerProtocol::Grpc(_) | CallerProtocol::Http => TimeoutConclusion::Fault,
    };
}

/// Holds a value, such as a permit of a request in flight, until the body is dropped at the end of its response.
pub fn hold_with_body(body: &mut Body, held: impl Send + Sync + 'static) {
    body.held = Some(Box::new(held));
}

/// Removes the load report from the trailers of a response, for a reader outside the mesh.
pub fn hide_load_trailers(body: &mut Body) {
    body.hides_load = true;
}

/// Sets an observer for the frames and the end of a body. If the body is already at its end, the observer is notified
/// immediately.
pub fn observe_body(body: &mut Body, observer: Arc<dyn BodyObserver>) {
    match body.source.is_end() {
        true => observer.ended(BodyEnd::Complete),
        false => body.observer = PendingObserver(Some(observer)),
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = self.get_mut();
        let polled = this.poll(context);
        if let Poll::Ready(polled) = &polled
            && this.observer.0.is_some()
        {
            this.observer.report(polled.as_ref(), this.source.is_end());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.source.is_end()
    }

    fn size_hint(&self) -> SizeHint {
        self.source.size_hint()
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self::new(BodySource::Full(Some(bytes).filter(|bytes| !bytes.is_empty())), None)
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl From<String> for Body {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("source", &self.source.kind())
            .field("ended", &self.source.is_end())
            .finish_non_exhaustive()
    }
}

// Required by `reqwest::Body::wrap` and others.
const _: () = {
    const fn is_shareable<T: Send + Sync + Unpin + 'static>() {}
    is_shareable::<Body>();
};
