use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::Fault;

/// The body of an answer; also a simple body for requests.
#[derive(Debug, Default)]
pub struct Body {
    whole: Option<Bytes>,
}

impl Body {
    /// A body without bytes.
    pub fn empty() -> Self {
        Self::default()
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self { whole: Some(bytes) }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        Poll::Ready(self.whole.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.whole.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.whole.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}
