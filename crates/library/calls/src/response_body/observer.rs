use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body::Frame;

use crate::fault::Fault;

/// Receives the frames of a response body: see [`observe_body`](crate::forwarding::observe_body). It runs on the
/// request path, so it must not block.
pub trait BodyObserver: fmt::Debug + Send + Sync {
    /// Called for each frame: data or trailers.
    fn frame(&self, frame: &Frame<Bytes>);

    /// Called once at the end of the body.
    fn ended(&self, end: BodyEnd);
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// The body was read to its end.
    Complete,
    /// The body failed.
    Failed,
    /// The body was dropped before its end.
    Cancelled,
}

/// An observer that has not yet been notified of the end of the body.
#[derive(Default)]
pub(super) struct PendingObserver(pub(super) Option<Arc<dyn BodyObserver>>);

impl PendingObserver {
    /// Reports a polled frame. `last` means that none follows.
    pub(super) fn report(&mut self, polled: Option<&Result<Frame<Bytes>, Fault>>, last: bool) {
        if let (Some(observer), Some(Ok(frame))) = (&self.0, polled) {
            observer.frame(frame);
        }
        match polled {
            Some(Err(_)) => self.end(BodyEnd::Failed),
            None => self.end(BodyEnd::Complete),
            Some(Ok(frame)) if last || frame.is_trailers() => self.end(BodyEnd::Complete),
            Some(Ok(_)) => {}
        }
    }

    fn end(&mut self, end: BodyEnd) {
        if let Some(observer) = self.0.take() {
            observer.ended(end);
        }
    }
}

impl Drop for PendingObserver {
    fn drop(&mut self) {
        self.end(BodyEnd::Cancelled);
    }
}
