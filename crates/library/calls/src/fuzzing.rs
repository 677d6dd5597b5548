//! Entry points for fuzz targets: connections to servers over streams that the caller provides.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_connections::{EndpointResponse, Head, Request, RequestBody, SharedConnection};
use http::{
    HeaderMap, Method, Response,
    uri::{Authority, PathAndQuery},
};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{BoxError, response_body::Body};

/// Time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// An HTTP/2 connection to a server.
pub struct Http2(Arc<SharedConnection>);

impl fmt::Debug for Http2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http2").finish_non_exhaustive()
    }
}

impl Http2 {
    /// Starts the connection.
    pub fn start<I>(stream: I) -> Self
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        Self(fairmesh_connections::start(stream))
    }

    /// Makes a call. Returns `None` if the connection accepts no more calls.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn call<B>(&self, path: &'static str, body: B) -> Result<Option<Response<Body>>, BoxError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let response = self.0.call(&mut Some(request(path, body).await?)).await?;
        Ok(response.map(|response| Body::from_response(EndpointResponse::H2(response), None)))
    }
}

/// Makes a call over HTTP/1.1.
///
/// # Errors
/// Why there is no response.
pub async fn http1<I, B>(
    stream: I,
    path: &'static str,
    body: B,
) -> Result<Response<impl http_body::Body<Data = Bytes, Error = BoxError>>, BoxError>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    Ok(fairmesh_connections::call_over(stream, &mut Some(request(path, body).await?)).await?)
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
    Ok(Request { head, body: RequestBody::take(body).await?, left: Some(CALL_TIMEOUT) })
}
