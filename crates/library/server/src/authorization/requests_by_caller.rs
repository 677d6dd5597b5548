//! Counts requests by caller, for processes that forward the requests of authorized connections to a program.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_signals::ServedCall;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};

use super::{Caller, ConnectionAuthorizer};
use crate::layer::{caller_counts::CountedCall, processed_call::ProcessedCall, refusal::Refusal};

/// A request on an accepted connection, counted for traffic reports: by its caller, and as processed by the program.
#[derive(Debug)]
pub struct CountedRequest {
    counted: CountedCall,
    processed: Option<ProcessedCall>,
    served: ServedCall,
}

/// The body of the response to a [`CountedRequest`]. Its bytes and gRPC status are counted too.
#[derive(Debug)]
pub struct CountedBody<B> {
    inner: B,
    counted: CountedCall,
}

impl ConnectionAuthorizer {
    /// Counts a request. The bytes of its body are counted by the [`RequestBytes`](crate::RequestBytes) in its
    /// extensions.
    pub fn count<B>(&self, request: &mut Request<B>, caller: Option<&Caller>) -> CountedRequest {
        let mut counted = self.callers.begin(caller, request.headers(), true);
        counted.count_body(request, true);
        let (processed, served) = self.served.begin(request, counted.origin());
        CountedRequest { counted, processed, served }
    }

    /// Counts a refused request of `peer`.
    pub fn count_refused(&self, peer: Option<&Caller>) {
        self.callers.begin(peer, &HeaderMap::new(), false).refuse(Refusal::Unauthorized);
    }
}

impl CountedRequest {
    /// Counts the response. A process in front of a program does not see how long the program waits for its own calls, so
    /// the planner fits no times to these calls.
    pub fn response<B>(self, response: Response<B>) -> Response<CountedBody<B>> {
        let Self { mut counted, processed, served } = self;
        if let Some(processed) = processed {
            processed.end(&served, None);
        }
        counted.respond(response.status(), response.headers());
        response.map(|inner| CountedBody { inner, counted })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref() {
                Some(data) => self.counted.record_bytes(data.len()),
                None => self.counted.end(frame.trailers_ref()),
            },
            Poll::Ready(None | Some(Err(_))) => self.counted.end(None),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
