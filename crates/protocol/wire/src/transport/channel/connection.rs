use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use fairmesh_http::h2::{
    Call, CallError, Capacity, ClientConnection, DrainRead, RequestHead, ResponseBody, Shared, lock,
};
use fairmesh_model::Identity;
use http::Response;
use http_body::{Body as HttpBody, Frame};
use http_body_util::Full;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::{sleep, timeout},
};
use tonic::{Status, body::Body};

use super::{CompleteRequest, lost};

/// Idle time after which the peer is probed, and timeout of its response. A vanished peer is detected within their
/// sum.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

/// Interval at which a call that waits for a stream checks for a free one: the peer may raise its limit without
/// ending a stream.
const CAPACITY_INTERVAL: Duration = Duration::from_millis(100);

/// An open connection. It closes once neither its channel nor a call uses it.
pub(super) struct ChannelConnection {
    session: Shared,
    stream_freed: Notify,
    peer: Identity,
}

impl ChannelConnection {
    /// Starts driving a new connection.
    pub(super) fn open<I>(socket: I, peer: Identity) -> Arc<Self>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = ClientConnection::new(DrainRead(socket));
        let session = connection.session();
        tokio::spawn(drive(connection, Shared::clone(&session)));
        Arc::new(Self { session, stream_freed: Notify::new(), peer })
    }

    /// The identity of the peer.
    pub(super) const fn peer(&self) -> &Identity {
        &self.peer
    }

    /// Whether the connection accepts no more calls.
    pub(super) fn is_closed(&self) -> bool {
        matches!(lock(&self.session).capacity(), Capacity::Closed)
    }

    /// Sends a request. Returns once the response headers have arrived.
    pub(super) async fn call(
        self: Arc<Self>,
        request: &CompleteRequest,
    ) -> Result<Response<Body>, CallError<Status>> {
        let call = loop {
            if let Some(call) = self.begin(request)? {
                break call;
            }
            let _ = timeout(CAPACITY_INTERVAL, self.stream_freed.notified()).await;
        };
        let permit = StreamPermit(self);
        let (response, _) = call.await.map_err(|error| match error {
            CallError::Stream(error) => CallError::Stream(error),
            CallError::Body(never) => match never {},
        })?;
        Ok(response.map(|body| Body::new(ChannelResponseBody { body, _permit: permit })))
    }

    /// Starts a call if a stream is available.
    fn begin(&self, request: &CompleteRequest) -> Result<Option<Call<Full<Bytes>>>, CallError<Status>> {
        let CompleteRequest { method, authority, path, headers, message } = request;
        let session = lock(&self.session);
        let refused = |why: &str| Err(CallError::Body(Status::unavailable(why)));
        match session.capacity() {
            // A call that waits for flow control is bounded by its deadline.
            Capacity::Available | Capacity::HeldBack => {}
            Capacity::Full => return Ok(None),
            Capacity::Closed => return refused("the connection was closed; retry"),
            Capacity::Blocked => return refused("the peer does not read what is queued for it"),
        }
        let head = RequestHead { method, authority, path, headers };
        let call = Call::begin(&self.session, session, &head, false);
        Ok(Some(call.with(Full::new(message.clone()))))
    }
}

impl Drop for ChannelConnection {
    fn drop(&mut self) {
        lock(&self.session).retire();
    }
}

/// Drives a connection until it ends. Ends the connection if the peer does not respond to a probe.
async fn drive(connection: impl Future, session: Shared) {
    let mut connection = pin!(connection);
    let (interval, patience) = KEEP_ALIVE;
    let mut wait = interval;
    let mut is_probed = false;
    loop {
        tokio::select! {
            biased;
            _ = &mut connection => return,
            () = sleep(wait) => {}
        }
        let is_alive = lock(&session).take_activity();
        match (is_alive, is_probed) {
            (true, _) => (wait, is_probed) = (interval, false),
            (false, false) => {
                lock(&session).send_ping();
                (wait, is_probed) = (patience, true);
            }
            // Dropping the connection ends its calls.
            (false, true) => return,
        }
    }
}

/// Holds a stream until the response is read or dropped.
struct StreamPermit(Arc<ChannelConnection>);

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.stream_freed.notify_one();
    }
}

/// The body of a response.
struct ChannelResponseBody {
    body: ResponseBody,
    _permit: StreamPermit,
}

impl HttpBody for ChannelResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context).map_err(|error| lost(&error))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
