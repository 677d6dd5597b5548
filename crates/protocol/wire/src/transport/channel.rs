//! gRPC calls to a mesh process.

mod connection;

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_http::h2::{CallError, Reason, StreamError};
use fairmesh_model::Identity;
use http::{HeaderMap, Method, Request, Response, header::AUTHORIZATION, uri::Authority};
use http_body_util::BodyExt as _;
use tokio::sync::Mutex;
use tonic::{
    Status,
    body::Body,
    metadata::{MetadataMap, MetadataValue},
};
use tower_service::Service;

use self::connection::ChannelConnection;
use super::{Address, BearerToken, ON_BEHALF_OF, STATEMENT, StatedCall, Transport};

/// Timeout for establishing a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Path prefixes of the services whose calls replicas forward.
const FORWARDED: [&str; 5] = [
    "/fairmesh.v1.Registry/",
    "/fairmesh.v1.Signals/",
    "/fairmesh.v1.Imbalance/",
    "/fairmesh.v1.Quota/",
    "/fairmesh.v1.Checker/",
];

/// The call that identifies the peer process. Sent without the user token, which is only for control planes.
const HELLO: &str = "/fairmesh.v1.Rib/Hello";

/// Length of the gRPC prefix before the message in a body, in bytes.
const FRAME: usize = 5;

/// A channel for calls to one process. Calls share a connection, which the first call opens. After a failure the next
/// call opens it again. Cheap to clone.
///
/// The channel uses our own HTTP/2, as calls to services do. tonic's channel was rejected: it brings hyper, h2 and
/// tower's balancer into every program that makes calls, for a few small calls a minute. Requests are sent as a
/// whole, since no call between mesh processes streams its request.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<ChannelState>,
}

struct ChannelState {
    transport: Transport,
    address: Address,
    /// The `:authority` of calls.
    authority: Authority,
    connection: Mutex<Option<Arc<ChannelConnection>>>,
}

/// A request with its complete body. It can be sent again if the server did not process it.
pub(super) struct CompleteRequest {
    pub(super) method: Method,
    pub(super) authority: Authority,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) message: Bytes,
}

/// Opens a channel and connects immediately. The channel reconnects by itself.
///
/// # Errors
/// If the connection is not established within [`CONNECT_TIMEOUT`].
pub async fn connect_channel(transport: &Transport, address: &Address) -> io::Result<Channel> {
    let channel = connect_channel_lazy(transport, address);
    channel.shared.connection().await?;
    Ok(channel)
}

/// Opens a channel that connects with the first call.
pub fn connect_channel_lazy(transport: &Transport, address: &Address) -> Channel {
    let authority = match address {
        Address::Tcp(authority) => Authority::try_from(authority.as_str()).ok(),
        Address::Unix(_) => None,
    };
    let authority = authority.unwrap_or_else(|| Authority::from_static("localhost"));
    let (transport, address) = (transport.clone(), address.clone());
    let shared = ChannelState { transport, address, authority, connection: Mutex::default() };
    Channel { shared: Arc::new(shared) }
}

impl ChannelState {
    /// Returns the open connection, or opens one. Concurrent calls wait for the same connection.
    async fn connection(&self) -> io::Result<Arc<ChannelConnection>> {
        let mut connection = self.connection.lock().await;
        if let Some(open) = connection.as_ref().filter(|open| !open.is_closed()) {
            return Ok(Arc::clone(open));
        }
        let socket = self.transport.dial_in_time(&self.address).await?;
        let peer = socket.identity().clone();
        let open = ChannelConnection::open(socket, peer);
        *connection = Some(Arc::clone(&open));
        Ok(open)
    }

    async fn call(&self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let (mut head, body) = request.into_parts();
        let message = body.collect().await?.to_bytes();
        if let Some(token) = self.transport.token().filter(|_| head.uri.path() != HELLO) {
            head.headers.insert(AUTHORIZATION, token.header());
        }
        let mut request = CompleteRequest {
            method: head.method,
            authority: self.authority.clone(),
            path: head.uri.path().to_owned(),
            headers: head.headers,
            message,
        };
        match self.send(&mut request).await {
            // The peer closed the connection gracefully without processing the call.
            Err(CallError::Stream(StreamError::Unprocessed(Reason::NO_ERROR))) => {
                self.send(&mut request).await
            }
            other => other,
        }
        .map_err(|error| match error {
            CallError::Stream(error) => lost(&error),
            CallError::Body(status) => status,
        })
    }

    /// Adds this process's statement to a call that other processes will forward. Does nothing if the call already
    /// carries another process's statement.
    fn sign(&self, request: &mut CompleteRequest, peer: &Identity) {
        let path = request.path.as_str();
        let is_forwarded = FORWARDED.iter().any(|service| path.starts_with(service));
        let Some(message) = request.message.get(FRAME..).filter(|_| is_forwarded) else { return };
        if request.headers.contains_key(STATEMENT) {
            return;
        }
        let on_behalf_of = request.headers.get(ON_BEHALF_OF).and_then(|value| value.to_str().ok());
        let call = StatedCall { path, on_behalf_of: on_behalf_of.unwrap_or_default(), message };
        if let Some(statement) = self.transport.sign_call(call, peer) {
            let mut metadata = MetadataMap::from_headers(std::mem::take(&mut request.headers));
            metadata.insert_bin(STATEMENT, MetadataValue::from_bytes(&statement));
            request.headers = metadata.into_headers();
        }
    }

    async fn send(&self, request: &mut CompleteRequest) -> Result<Response<Body>, CallError<Status>> {
        let unreachable =
            |error: io::Error| Status::unavailable(format!("cannot reach {}: {error}", self.address));
        let connection = self.connection().await.map_err(|error| CallError::Body(unreachable(error)))?;
        if request.headers.contains_key(AUTHORIZATION) {
            BearerToken::may_be_shown_to(connection.peer(), &self.address)
                .map_err(|why| CallError::Body(Status::unauthenticated(why)))?;
        }
        self.sign(request, connection.peer());
        connection.call(request).await
    }
}

/// The status of a call whose connection or stream failed.
fn lost(error: &StreamError) -> Status {
    match error {
        StreamError::Reset(Reason::CANCEL) | StreamError::Cancelled => Status::cancelled(error.to_string()),
        StreamError::Reset(Reason::ENHANCE_YOUR_CALM) => Status::resource_exhausted(error.to_string()),
        StreamError::Malformed(_) | StreamError::TooLarge | StreamError::Violation(_) => {
            Status::internal(error.to_string())
        }
        _ => Status::unavailable(error.to_string()),
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move { shared.call(request).await })
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("address", &self.shared.address).finish_non_exhaustive()
    }
}
