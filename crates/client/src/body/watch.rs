//! Who sees the body of an answer go by.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http_body::Frame;

use crate::Fault;

/// Sees the body of an answer go by: see [`Body::watch`](crate::Body::watch). It is called on the way of the body, so it must
/// not wait.
pub trait Watch: fmt::Debug + Send + Sync {
    /// A piece of it, or its trailers.
    fn frame(&self, frame: &Frame<Bytes>);

    /// There is no more; said once.
    fn ended(&self, end: BodyEnd);
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// It was read to its end.
    Whole,
    /// It broke off.
    Broken,
    /// Whoever read it gave up.
    GivenUp,
}

/// A watch that is still to be told of the end, where there is one.
#[derive(Default)]
pub(super) struct Watched(pub(super) Option<Arc<dyn Watch>>);

impl Watched {
    /// Tells what was read; `last` where nothing follows.
    pub(super) fn see(&mut self, polled: Option<&Result<Frame<Bytes>, Fault>>, last: bool) {
        if let (Some(watch), Some(Ok(frame))) = (&self.0, polled) {
            watch.frame(frame);
        }
        match polled {
            Some(Err(_)) => self.tell(BodyEnd::Broken),
            None => self.tell(BodyEnd::Whole),
            Some(Ok(frame)) if last || frame.is_trailers() => self.tell(BodyEnd::Whole),
            Some(Ok(_)) => {}
        }
    }

    fn tell(&mut self, end: BodyEnd) {
        if let Some(watch) = self.0.take() {
            watch.ended(end);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.tell(BodyEnd::GivenUp);
    }
}
