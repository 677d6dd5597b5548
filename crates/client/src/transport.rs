//! Connections: one [`Line`] an endpoint, by HTTP/1.1 or by HTTP/2.
//!
//! Both do without hyper, whose client wraps every connection in a task and every request in a channel: here a call itself
//! writes and reads, or those that share a connection do so together.

mod alarm;
mod h1;
mod h2;
mod outgoing;
mod own_addresses;
mod request;
mod wait;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fairmesh_balancer::poll::PollState;
use fairmesh_router::{EndpointRef, EndpointTarget};
use fairmesh_wire::transport::{Plaintext, Transport};
use http::{HeaderMap, StatusCode, response};
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use self::alarm::Alarm;
pub(crate) use self::{
    alarm::Lent,
    h1::{Got, Incoming, Plain, Reply as H1Reply, call_over},
    h2::{Incoming as H2Incoming, Reply as H2Reply, Shared, over},
    outgoing::{Outgoing, Replay},
    own_addresses::OwnAddresses,
    request::{Head, Request, Slot},
    wait::{Silence, Times},
};
use crate::{
    BoxError,
    core::{Clock, Lane},
    cores::PerCore,
    stats::{Counters, OpenConnection},
};
use fairmesh_http::socket;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Whoever did not take a connection in this time is taken for gone. Shorter waits say more about the call's deadline.
const ENOUGH: Duration = Duration::from_millis(250);

/// What systems say that have no file descriptor left for anybody (`ENFILE`) or for this process (`EMFILE`), for which the
/// standard library has no words.
const NO_DESCRIPTOR: [i32; 2] = [23, 24];

/// After how many rounds of tidying without a call a connection is closed. The resolver tidies every 30 s, so: 90 s.
const IDLE_ROUNDS: u32 = 3;

/// What all lines of a mesh share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wiring {
    pub(crate) counters: Arc<Counters>,
    /// The address that connections are made from; the system's choice where none is given.
    pub(crate) local: Option<IpAddr>,
    /// Addresses to which no connection is made.
    pub(crate) own_addresses: OwnAddresses,
    /// Event loops that call.
    pub(crate) cores: usize,
}

/// All connections to one endpoint.
pub(crate) struct Line {
    endpoint: EndpointRef,
    address: SocketAddr,
    local: Option<IpAddr>,
    own_addresses: OwnAddresses,
    multiplexed: bool,
    h1: PerCore<h1::Pool>,
    h2: PerCore<h2::Pool>,
    retired: AtomicBool,
    counters: Arc<Counters>,
    poll_state: Arc<PollState>,
}

/// The head of an answer and where its body comes from.
pub(crate) enum Reply {
    /// Over HTTP/1.1.
    H1(H1Reply),
    /// Over HTTP/2.
    H2(H2Reply),
}

impl Reply {
    /// Its status and headers.
    pub(crate) fn head(&self) -> (StatusCode, &HeaderMap) {
        match self {
            Self::H1(reply) => (reply.response.status(), reply.response.headers()),
            Self::H2(reply) => (reply.status(), reply.headers()),
        }
    }
}

/// What came of a try.
pub(crate) type Sent = Result<Reply, SendError>;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    /// No connection.
    #[error("no connection")]
    Unreachable(#[source] io::Error),
    /// No connection within the little time that the call could wait for one.
    #[error("no connection in the time that there was")]
    NoTime,
    /// No connection, since this machine has no descriptor or port left for one: says nothing of the server.
    #[error(
        "this machine has no file descriptor or port left; raise its limits (ulimit -n), or have fewer connections"
    )]
    Exhausted(#[source] io::Error),
    /// The server refused to look at the request.
    #[error("the server refused the request unseen")]
    Refused(#[source] BoxError),
    /// The connection was closing, and the server has not seen the request.
    #[error("the connection was closing")]
    Stale(#[source] BoxError),
    /// The connection broke when the request may have been carried out.
    #[error("the connection broke")]
    Broken(#[source] BoxError),
    /// There was none in the time that the try has.
    #[error("no answer in time")]
    OutOfTime,
    /// Nothing moved for longer than it may.
    #[error("nothing moved for {:?}", .0.duration())]
    Silent(Silence),
    /// The caller's body failed.
    #[error("the request's body failed")]
    Body(#[source] BoxError),
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent")]
    Invalid(#[source] BoxError),
}

impl Line {
    /// Sends a request as the protocol wants it, and waits for the head of the answer. Dropping the future cancels the
    /// request. Where no connection comes about until `connected_by`, which leaves time to try elsewhere, it gives up.
    pub(crate) async fn send(self: &Arc<Self>, request: &mut Slot, times: Times) -> Sent {
        if !self.multiplexed {
            return self.h1.here().send(self, request, times).await.map(Reply::H1);
        }
        self.h2.here().send(self, request, times).await.map(Reply::H2)
    }

    async fn connect(&self) -> Result<TcpStream, SendError> {
        let stream = self.reach().await?;
        if self.multiplexed {
            socket::limit_unacknowledged(&stream);
        }
        Ok(stream)
    }

    /// A connection for whatever its user makes of it, whichever protocol is declared; `connected_by` as for
    /// [`send`](Self::send).
    pub(crate) async fn open_raw(
        &self,
        connected_by: Instant,
    ) -> Result<(TcpStream, OpenConnection), SendError> {
        let stream = by(connected_by, self.reach()).await?;
        Ok((stream, self.counters.open_connection()))
    }

    async fn reach(&self) -> Result<TcpStream, SendError> {
        if self.own_addresses.contains(self.address) {
            let own = format!("{} is an address of this process itself", self.address);
            return Err(SendError::Unreachable(io::Error::other(own)));
        }
        let reached = Plaintext.connect_endpoint(self.address, self.local);
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, reached).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no connection within 2 s");
        let stream = connected.unwrap_or_else(|_| Err(late())).map_err(unconnected)?;
        socket::configure(&stream);
        Ok(stream)
    }

    /// Keeps how long it took from `since` to an answer, where there is one and picks go by that.
    #[inline]
    pub(crate) fn answered(&self, is_answer: bool, since: u64, clock: Clock) {
        if is_answer && self.target().by_latency {
            let now = clock.now();
            self.endpoint().record_latency(now.saturating_sub(since), now);
        }
    }

    /// Whether a request could be sent at once, over a connection that is open already.
    pub(crate) fn is_connected(&self) -> bool {
        if self.multiplexed { self.h2.here().has_room() } else { self.h1.here().has_idle() }
    }

    /// Sends a request that is no try over a connection that is open already, and waits for the head of the answer; `None`
    /// where nothing was sent, since there is no such connection. One that is used for nothing else stays idle all the same.
    pub(crate) async fn ask(&self, request: Request) -> Option<Result<response::Parts, SendError>> {
        let mut slot = Some(request);
        if self.multiplexed {
            return self.h2.here().ask(&mut slot).await;
        }
        let answer = self.h1.here().ask(&mut slot).await;
        if self.is_retired() {
            // It was not, maybe, when the connection was put back.
            self.h1.here().retire();
        }
        answer
    }

    /// What asking has shown.
    pub(crate) fn poll_state(&self) -> &Arc<PollState> {
        &self.poll_state
    }

    /// The endpoint, and how tries end there.
    pub(crate) fn endpoint(&self) -> &EndpointRef {
        &self.endpoint
    }

    /// What the endpoint is.
    pub(crate) fn target(&self) -> &EndpointTarget {
        self.endpoint.target()
    }

    /// What all lines of the mesh count.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether the endpoint is not to be called any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Relaxed)
    }
}

/// Who is to blame where no connection comes about.
fn unconnected(error: io::Error) -> SendError {
    let no_port = error.kind() == io::ErrorKind::AddrNotAvailable;
    let no_descriptor = error.raw_os_error().is_some_and(|code| NO_DESCRIPTOR.contains(&code));
    match no_port || no_descriptor {
        true => SendError::Exhausted(error),
        false => SendError::Unreachable(error),
    }
}

/// Waits for a connection until then.
async fn by<T>(
    then: Instant,
    connecting: impl Future<Output = Result<T, SendError>>,
) -> Result<T, SendError> {
    let begun = Instant::now();
    match timeout_at(then, connecting).await {
        Ok(connected) => connected,
        Err(_) if begun.elapsed() >= ENOUGH => {
            let late = io::Error::new(io::ErrorKind::TimedOut, "no connection within half of the time left");
            Err(SendError::Unreachable(late))
        }
        Err(_) => Err(SendError::NoTime),
    }
}

impl Lane for Arc<Line> {
    type Shared = Wiring;

    fn open(wiring: &Wiring, endpoint: EndpointRef) -> Self {
        let target = endpoint.target();
        let multiplexed = target.protocol.is_multiplexed();
        Self::new(Line {
            address: target.address,
            local: wiring.local,
            own_addresses: wiring.own_addresses.clone(),
            multiplexed,
            endpoint,
            h1: PerCore::new(if multiplexed { 1 } else { wiring.cores }),
            // Each of its uses looks first whether it is this one.
            h2: if multiplexed { PerCore::new(wiring.cores) } else { PerCore::none() },
            retired: AtomicBool::new(false),
            counters: Arc::clone(&wiring.counters),
            poll_state: Arc::default(),
        })
    }

    fn retire(&self) {
        self.retired.store(true, Relaxed);
        self.h1.all().for_each(h1::Pool::retire);
        self.h2.all().for_each(h2::Pool::retire);
    }

    fn tidy(&self) {
        self.h1.all().for_each(h1::Pool::tidy);
        self.h2.all().for_each(h2::Pool::tidy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_not_blamed_for_what_this_machine_lacks() {
        for code in NO_DESCRIPTOR {
            assert!(matches!(unconnected(io::Error::from_raw_os_error(code)), SendError::Exhausted(_)));
        }
        let no_port = io::Error::from(io::ErrorKind::AddrNotAvailable);
        assert!(matches!(unconnected(no_port), SendError::Exhausted(_)));
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert!(matches!(unconnected(refused), SendError::Unreachable(_)));
    }
}
