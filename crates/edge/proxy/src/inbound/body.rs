//! Bodies of requests and responses.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use fairmesh_calls::{Body, BoxError};
use http::Method;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};

/// The body of a request.
///
/// hyper does not distinguish a request whose headers had END_STREAM from one that ended with an empty DATA frame if
/// both frames arrived together, and gRPC servers accept only DATA as half-close. So over HTTP/2, requests whose
/// methods have bodies always end with DATA.
pub(crate) struct ForwardedBody {
    body: Incoming,
    /// Reports an open body until the first poll.
    is_open: bool,
}

impl ForwardedBody {
    /// `over_http2` is the method of a request that is forwarded over HTTP/2, and `None` over HTTP/1.1.
    pub(crate) fn new(body: Incoming, over_http2: Option<&Method>) -> Self {
        let is_open =
            over_http2.is_some_and(|method| matches!(*method, Method::POST | Method::PUT | Method::PATCH));
        Self { body, is_open }
    }
}

impl HttpBody for ForwardedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, is_open } = self.get_mut();
        *is_open = false;
        Pin::new(body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        !self.is_open && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // No length is added that the client did not send: gRPC has none.
        if self.is_open { SizeHint::default() } else { self.body.size_hint() }
    }
}

/// The body of a response: the program's, or the proxy's own.
pub(crate) enum ResponseBody {
    Program(Incoming),
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
            Self::Program(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
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
