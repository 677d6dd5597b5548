//! The interface between a connection and the code that handles its requests.

use bytes::Bytes;
use fairmesh_calls::BoxError;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{
        connection::Connection, connection_end::ConnectionError, request_body::IncomingBody,
        request_offload::Offload,
    },
    shutdown::Shutdown,
};

/// Response extension: the connection reads no request after this response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClosesConnection;

/// Handles the requests of a connection.
pub(crate) trait RequestHandler<R> {
    type Body: Body<Data = Bytes, Error: Into<BoxError>>;

    async fn handle(&self, request: Request<IncomingBody<R>>) -> Response<Self::Body>;

    /// Whether [`try_fast_path`](Self::try_fast_path) may succeed.
    fn has_fast_path(&self) -> bool {
        false
    }

    /// Handles the first request in the read buffer without parsing it into a message. Returns whether the connection
    /// may carry another request. Returns `None`, and consumes nothing, if the request does not qualify.
    async fn try_fast_path<W, O>(
        &self,
        _connection: &mut Connection<R, W, O>,
        _shutdown: &Shutdown,
    ) -> Result<Option<bool>, ConnectionError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin,
        O: Offload,
    {
        Ok(None)
    }
}

/// Functions are handlers without a fast path.
impl<R, A, F, B> RequestHandler<R> for A
where
    A: Fn(Request<IncomingBody<R>>) -> F,
    F: Future<Output = Response<B>>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Body = B;

    async fn handle(&self, request: Request<IncomingBody<R>>) -> Response<B> {
        self(request).await
    }
}
