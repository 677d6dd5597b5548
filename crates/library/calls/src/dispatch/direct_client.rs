//! Requests to one server that is not an endpoint of a service, such as the program behind a proxy.
//!
//! They use the transport of calls, but no records: nothing is picked, counted or judged. Rejected: a service of its
//! own for the server, because its policy would have to disable all of that.

use std::{
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use fairmesh_connections::{AddressPool, EndpointResponse, H1Body, H2Body, RequestBody};
use fairmesh_headers::Deadline;
use fairmesh_http::BoxError;
use fairmesh_model::{Invalid, Protocol};
use http::{Request, Response, uri::Authority};
use http_body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{body_error, classify::send_fault, request::take_head_for};
use crate::fault::Fault;

/// Sends plaintext requests to one server over pooled connections. Cheap to clone.
#[derive(Clone)]
pub struct DirectClient {
    pool: Arc<AddressPool>,
    /// Host used for requests that name none.
    host: Authority,
    /// Name of the server in faults.
    server: Arc<str>,
}

/// The body of a response from the server. After it is read to its end, its connection carries further requests.
pub struct DirectBody {
    source: Source,
    /// Pool to which the connection returns; `None` after the end of the body.
    pool: Option<Arc<AddressPool>>,
}

enum Source {
    H1(H1Body),
    H2(H2Body),
}

impl DirectClient {
    /// Creates a client for the server at `address`. Faults name the server as `server`, for example "the program".
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is not a valid URI host, such as an IPv6 address with a zone.
    pub fn start(server: &str, address: SocketAddr, protocol: Protocol) -> Result<Self, Invalid> {
        let host = address.to_string().parse().map_err(|_| {
            Invalid::new("", format!("{address} is no host of a URI"), "use an address without a zone")
        })?;
        let pool = AddressPool::start(address, protocol.is_multiplexed());
        Ok(Self { pool, host, server: format!("{server} at {address}").into() })
    }

    /// Sends a request and waits for the headers of the response. Dropping the future cancels the request. The host
    /// comes from the header `host`, otherwise from the URI. A [`Deadline`] in the request's extensions is sent to the
    /// server, but not enforced here.
    ///
    /// Informational responses are delivered as those of calls are. An idempotent request is sent once more if the
    /// server closes an idle connection at the same time.
    ///
    /// # Errors
    /// There is no response, or the request cannot be sent.
    pub async fn send<B>(&self, request: Request<B>) -> Result<Response<DirectBody>, Fault>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let left = parts.extensions.get::<Deadline>().map(|deadline| deadline.left());
        let body = RequestBody::take_unpin(body).await.map_err(body_error)?;
        let head = take_head_for(&self.host, &mut parts)?;
        match self.pool.send(fairmesh_connections::Request { head, body, left }).await {
            Ok(EndpointResponse::H1(response)) => Ok(response.map(|body| self.body(Source::H1(body)))),
            Ok(EndpointResponse::H2(response)) => Ok(response.map(|body| self.body(Source::H2(body)))),
            Err(error) => Err(send_fault(&self.server, error)),
        }
    }

    /// Opens a connection to the server for any protocol.
    ///
    /// # Errors
    /// The server is unreachable.
    pub async fn open(&self) -> Result<impl AsyncRead + AsyncWrite + Unpin + Send + 'static, Fault> {
        self.pool.open_raw().await.map_err(|error| send_fault(&self.server, error))
    }

    fn body(&self, source: Source) -> DirectBody {
        let mut body = DirectBody { source, pool: Some(Arc::clone(&self.pool)) };
        body.keep_ended();
        body
    }
}

impl DirectBody {
    /// Returns the connection of a response with status 101, which carries the protocol that the request named; `None`
    /// for any other response.
    pub fn into_tunnel(self) -> Option<impl AsyncRead + AsyncWrite + Unpin + Send + 'static> {
        let Source::H1(body) = self.source else { return None };
        body.into_raw()
    }

    /// Returns the connection of a body that has ended to the pool.
    fn keep_ended(&mut self) {
        let Source::H1(body) = &mut self.source else { return };
        if body.is_end_stream()
            && !body.is_switched()
            && let Some(pool) = self.pool.take()
        {
            pool.keep(body);
        }
    }
}

impl Body for DirectBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = match &mut self.source {
            Source::H1(body) => ready!(Pin::new(body).poll_frame(context)),
            Source::H2(body) => ready!(Pin::new(body).poll_frame(context)),
        };
        self.keep_ended();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::H1(body) => body.is_end_stream(),
            Source::H2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::H1(body) => body.size_hint(),
            Source::H2(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for DirectClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectClient").field("server", &self.server).finish_non_exhaustive()
    }
}

impl fmt::Debug for DirectBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectBody").field("ended", &self.is_end_stream()).finish_non_exhaustive()
    }
}
