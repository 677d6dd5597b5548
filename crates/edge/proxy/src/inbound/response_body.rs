//! Bodies of responses.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_calls::{Body, BoxError, forwarding::DirectBody};
use http_body::{Body as HttpBody, Frame, SizeHint};

use bytes::Bytes;

/// The body of a response: the program's, or the proxy's own.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    Program(DirectBody),
    Own(Body),
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Program(body) => Pin::new(body).poll_frame(context),
            Self::Own(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Program(body) => body.is_end_stream(),
            Self::Own(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Program(body) => body.size_hint(),
            Self::Own(body) => body.size_hint(),
        }
    }
}
