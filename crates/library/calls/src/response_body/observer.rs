use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body::Frame;

use crate::fault::Fault;

/// Receives the frames of a response's body: see [`observe_body`](crate::forwarding::observe_body). It runs on the path of the
/// body, so it must not block.
pub trait BodyObserver: fmt::Debug + Send + Sync {
    /// A frame of data, or the trailers.
    fn frame(&self, frame: &Frame<Bytes>);

    /// The end of the body; called once.
    fn ended(&self, end: BodyEnd);
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// It was read to its end.
    Complete,
    /// It failed.
    Failed,
    /// It was dropped before its end.
    Cancelled,
}

/// An observer, until it has received the end of the body.
#[derive(Default)]
pub(super) struct PendingObserver(pub(super) Option<Arc<dyn BodyObserver>>);

impl PendingObserver {
    /// Reports a polled frame; `last` where none follows.
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
