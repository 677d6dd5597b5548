//! Handles the requests of a connection.

use bytes::Bytes;
use fairmesh_client::BoxError;
use http::{Request, Response};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    http1::{connection::Connection, outcome::ConnectionError, request_body::IncomingBody},
    lifecycle::shutdown::Shutdown,
};

/// Who answers the requests of a connection.
pub(crate) trait RequestHandler<R> {
    type Body: Body<Data = Bytes, Error: Into<BoxError>>;

    async fn handle(&self, request: Request<IncomingBody<R>>) -> Response<Self::Body>;

    /// Whether [`pass`](Self::pass) may do anything.
    fn has_fast_path(&self) -> bool {
        false
    }

    /// Answers the request that lies first in what came, without taking it apart; whether the connection may carry another.
    /// `None` where that is not done, and nothing was.
    async fn try_fast_path<W>(
        &self,
        _connection: &mut Connection<R, W>,
        _shutdown: &Shutdown,
    ) -> Result<Option<bool>, ConnectionError>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin,
    {
        Ok(None)
    }
}

/// Whoever takes every request apart.
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
