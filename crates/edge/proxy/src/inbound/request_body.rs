//! Bodies of requests.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use fairmesh_edge::observe::served_requests::ReceivedBytes;
use fairmesh_server::RequestBytes;
use http_body::{Body, Frame, SizeHint};

use crate::inbound::caller_headers;

/// The body of a request. It is counted, and trailers that claim an identity are removed: some programs merge
/// trailers into the headers.
#[derive(Debug)]
pub(crate) struct RequestBody<B> {
    pub(crate) body: B,
    /// Counts bytes for the observation; `None` if the request is not observed.
    pub(crate) received: Option<ReceivedBytes>,
    /// Counts bytes for reports.
    pub(crate) counted: Option<RequestBytes>,
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let Self { body, received, counted } = &mut *self;
        Pin::new(body).poll_frame(context).map_ok(|mut frame| {
            if let Some(received) = received {
                received.count(&frame);
            }
            if let Some(counted) = counted {
                counted.count(&frame);
            }
            if let Some(trailers) = frame.trailers_mut() {
                caller_headers::remove_claims(trailers);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn inbound_proxy_removes_trailers_that_claim_identity() {
        let names = ["x-fairmesh-caller", "x_forwarded_client_cert", "x-checksum"];
        let trailers: HeaderMap =
            names.map(|name| (name.parse().unwrap(), HeaderValue::from_static("1"))).into_iter().collect();
        let body =
            Full::new(Bytes::from_static(b"tea")).with_trailers(std::future::ready(Some(Ok(trailers))));
        let received = RequestBody { body, received: None, counted: None }.collect().await.unwrap();
        let trailers = received.trailers().unwrap();
        assert_eq!(trailers.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["x-checksum"]);
        assert_eq!(received.to_bytes(), "tea");
    }
}
