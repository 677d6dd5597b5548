//! What fuzz targets reach and nobody else should: connections to servers over streams of the caller's making.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, Method, Response,
    uri::{Authority, PathAndQuery},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Body, BoxError,
    transport::{self, Head, Outgoing, Reply, Request},
};

/// What a call may take.
const TIME: Duration = Duration::from_secs(60);

/// A connection of HTTP/2 to a server.
pub struct Http2(Arc<transport::Shared>);

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2").finish_non_exhaustive()
    }
}

impl Http2 {
    /// Begins to speak.
    pub fn begin<I>(stream: I) -> Self
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self(transport::over(stream))
    }

    /// Makes a call; `None` where the connection takes no more.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn call<B>(&self, path: &'static str, body: B) -> Result<Option<Response<Body>>, BoxError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let reply = self.0.call(&mut Some(request(path, body).await?)).await?;
        Ok(reply.map(|reply| Body::answer(Reply::H2(reply), None)))
    }
}

/// Makes a call over HTTP/1.1.
///
/// # Errors
/// Why there is no answer.
pub async fn http1<I, B>(
    stream: I,
    path: &'static str,
    body: B,
) -> Result<Response<impl http_body::Body<Data = Bytes, Error = BoxError>>, BoxError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    Ok(transport::call_over(stream, &mut Some(request(path, body).await?)).await?)
}

async fn request<B>(path: &'static str, body: B) -> Result<Request, BoxError>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let head = Head {
        method: if body.is_end_stream() { Method::GET } else { Method::POST },
        authority: Authority::from_static("cart.shop"),
        path: PathAndQuery::from_static(path).into(),
        headers: HeaderMap::new(),
        grpc: false,
    };
    Ok(Request { head, body: Outgoing::take(body).await?, left: Some(TIME) })
}
