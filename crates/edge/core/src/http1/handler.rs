//! The interface between a connection and its owner.

use bytes::Bytes;
use fairmesh_calls::BoxError;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{connection::Connection, offload::Offload, outcome::ConnectionError, request_body::IncomingBody},
    shutdown::Shutdown,
};

/// An extension of a response after which the connection reads no further request.
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

    /// Handles the first request of the read buffer without parsing it into a message; returns whether the connection
    /// may carry another. `None` if the request does not qualify; then nothing was consumed.
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

/// A handler without a fast path.
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
