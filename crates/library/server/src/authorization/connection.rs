//! Authorizes connections whose requests are not parsed, such as those that `fairmesh register` forwards as bytes.

use std::{convert::Infallible, future::ready, net::SocketAddr, pin::pin, sync::Arc};

use bytes::Bytes;
use fairmesh_headers::{CallerProtocol, is_distance_probe};
use fairmesh_listen::GuardedStream;
use fairmesh_model::{Identity, MeshRole, Probe, ServiceName, SpiffeId, SpiffePath};
use fairmesh_router::NeedsSidecar;
use fairmesh_wire::transport::Stream;
use futures_util::FutureExt as _;
use http::{Request, Response, StatusCode, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};

use super::{
    AcceptedCall, Authorizer, Caller, NotAccepted, PolicySubscription,
    forwarded_probe::{self, ResponseBody},
};
use crate::{
    RegistryClient, ServerBody,
    layer::{
        caller_counts::CallerCounts, processed_call::ServedClasses, refusal::Refusal, server_load::ServerLoad,
    },
};

/// Decides which connections are accepted by a service's policy. Cheap to clone.
///
/// Only rules for all methods and paths can allow a connection. If requests are parsed, the requests of an accepted
/// intermediary are instead authorized one by one, for the caller that each request states.
#[derive(Clone, Debug)]
pub struct ConnectionAuthorizer {
    pub(crate) authorizer: Arc<Authorizer>,
    following: Arc<Option<PolicySubscription>>,
    /// Counters of requests by caller, for connections whose requests are parsed.
    pub(crate) callers: Arc<CallerCounts>,
    /// Counters of processed requests by class, for the optimizer.
    pub(crate) served: Arc<ServedClasses>,
    parses_requests: bool,
}

impl ConnectionAuthorizer {
    /// Follows the policy of a service through the registry.
    pub fn follow(service: ServiceName, registry: &RegistryClient) -> Self {
        let served = Arc::new(ServedClasses::of_server(service.clone()));
        let authorizer = Arc::new(Authorizer::of_server(service, registry.transport()));
        let following = Arc::new(authorizer.follow(registry, &served));
        Self { authorizer, following, callers: Arc::default(), served, parses_requests: false }
    }

    /// Returns the authorizer for a process that parses the requests of accepted connections, and authorizes each with
    /// [`caller_of`](Self::caller_of).
    #[must_use]
    pub fn parsing_requests(self) -> Self {
        Self { parses_requests: true, ..self }
    }

    /// Unsubscribes from the agent, so that drains do not wait for this process to reconnect. Returns within a second.
    pub async fn close(&self) {
        if let Some(following) = &*self.following {
            following.close().await;
        }
    }

    /// Waits until the policy is known.
    pub async fn ready(&self) {
        self.authorizer.ready().await;
    }

    /// Accepts a connection if its peer may use the service. A refused connection is answered here until it ends, and
    /// `None` is returned: its requests get refusals. The only exception is the policy's health probe, with which
    /// this process itself probes `program`. No byte of a refused connection reaches the program. Once the policy lets
    /// the peer in, the connection is closed, so that the peer opens another one.
    pub async fn accept(
        &self,
        stream: GuardedStream<Stream>,
        program: SocketAddr,
    ) -> Option<GuardedStream<Stream>> {
        let peer = identity_of(&stream);
        if self.judges_requests_of(&peer) {
            return Some(stream);
        }
        if is_agent(&peer) && !self.authorizer.still_accepts(&peer) {
            let of_agent = |request| self.clone().respond_to_agent(peer.clone(), request, program);
            respond(stream, of_agent, self.accepted(&peer)).await;
            return None;
        }
        if self.authorizer.accept_connection(&peer).is_ok() {
            return Some(stream);
        }
        // The policy may have changed since the connection was refused. A request that arrives just when the policy
        // lets its caller in was not processed, and the caller may send it again.
        let problem = || self.authorizer.reason_to_refuse(&peer).unwrap_or(NotAccepted::Unknown);
        respond(stream, |request| ready(refusal(&request, problem().into())), self.accepted(&peer)).await;
        None
    }

    /// Resolves once this peer may use the service.
    async fn accepted(&self, peer: &Identity) {
        let mut changes = self.authorizer.changes();
        while !self.judges_requests_of(peer) && !self.authorizer.still_accepts(peer) {
            changes.changed().await;
        }
    }

    /// Responds to an agent that may not use the service: to the policy's health probe and to distance probes. Other requests
    /// are refused.
    async fn respond_to_agent(
        self,
        peer: Identity,
        request: Request<Incoming>,
        program: SocketAddr,
    ) -> Response<ResponseBody> {
        if is_distance_probe(&request) {
            let mut response = Response::new(Empty::new().boxed_unsync());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return response;
        }
        // The current policy applies, since the connection may be older.
        match self.authorizer.probe_for(&peer).filter(|probe| is_probe(probe, &request)) {
            Some(probe) => forwarded_probe::response(&probe, program).await,
            None => {
                let problem = self.authorizer.accept_connection(&peer).err();
                refusal(&request, problem.unwrap_or(NotAccepted::Refused).into())
            }
        }
    }

    /// Whether each request of a peer is authorized, rather than its connection.
    fn judges_requests_of(&self, peer: &Identity) -> bool {
        self.parses_requests && self.authorizer.is_intermediary(peer)
    }

    /// Returns the caller of a request on an accepted connection: the peer, or the caller that it states as an accepted
    /// intermediary.
    ///
    /// # Errors
    /// The response to send: the connection of the peer is no longer accepted; or the peer is an intermediary, and the
    /// caller may not make the request or is not stated exactly once as a caller of the intermediary's trust domain.
    #[doc(hidden)]
    pub fn caller_of<B>(
        &self,
        request: &mut Request<B>,
        peer: Option<&Caller>,
    ) -> Result<Option<Caller>, Box<Response<ResponseBody>>> {
        let caller = self.authorizer.caller_through(request, peer);
        caller.map_err(|problem| Box::new(refusal(request, problem.into())))
    }

    /// Whether the kernel may carry the requests of a peer on the same machine, since every one of them is allowed.
    ///
    /// # Errors
    /// Why the peer has to send its requests to this process.
    #[doc(hidden)]
    pub fn decide_local(&self, peer: Option<&Caller>) -> Result<(), NeedsSidecar> {
        self.authorizer.decide_local(peer)
    }

    /// Resolves once the caller of an upgraded connection may no longer make the call that opened it.
    #[doc(hidden)]
    pub async fn call_revoked(&self, call: &AcceptedCall, peer: &Identity) {
        match self.judges_requests_of(peer) {
            true => self.authorizer.call_revoked(call).await,
            false => self.revoked(peer).await,
        }
    }

    /// Resolves once this peer may no longer use the service.
    pub async fn revoked(&self, peer: &Identity) {
        let mut changes = self.authorizer.changes();
        while self.judges_requests_of(peer) || self.authorizer.still_accepts(peer) {
            changes.changed().await;
        }
    }
}

/// Identity of a connection's peer, if its certificate was verified.
pub fn identity_of(stream: &GuardedStream<Stream>) -> Identity {
    match stream.get_ref() {
        Stream::Tls(stream) => stream.peer(),
        Stream::Tcp(_) | Stream::Unix(_) => Identity::Anonymous,
    }
}

impl From<NotAccepted> for Refusal {
    fn from(problem: NotAccepted) -> Self {
        match problem {
            NotAccepted::Refused => Self::Unauthorized,
            NotAccepted::Unknown => Self::Unready,
            NotAccepted::BadToken => Self::BadToken,
        }
    }
}

/// Whether the peer is an agent, which measures the distance to endpoints of services that it may not call.
fn is_agent(peer: &Identity) -> bool {
    matches!(peer, Identity::Spiffe(SpiffeId { path: SpiffePath::Mesh(MeshRole::Agent, _), .. }))
}

/// Whether a request matches a probe exactly.
fn is_probe(probe: &Probe, request: &Request<Incoming>) -> bool {
    let path = request.uri().path_and_query().map_or("", PathAndQuery::as_str);
    probe.request().is_some_and(|probe| probe == (request.method().as_str(), path))
}

/// Returns the response to a refused request, with the reason.
fn refusal<B>(request: &Request<B>, refusal: Refusal) -> Response<ResponseBody> {
    let caller = CallerProtocol::of(request.headers());
    let response: Response<ServerBody<Empty<Bytes>>> = refusal.response(&caller, &ServerLoad::default());
    response.map(|body| body.boxed_unsync())
}

/// Answers all requests of a connection with `respond` until `end`, when the connection is closed gracefully.
async fn respond<F>(
    stream: GuardedStream<Stream>,
    respond: impl Fn(Request<Incoming>) -> F,
    end: impl Future<Output = ()>,
) where
    F: Future<Output = Response<ResponseBody>> + Send + 'static,
{
    let service = hyper::service::service_fn(|request| respond(request).map(Ok::<_, Infallible>));
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = end => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a refused connection ended early");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_model::{Region, spec::PolicySpec};
    use fairmesh_router::AuthorizationTable;
    use fairmesh_signals::ServedMeter;
    use fairmesh_wire::transport::Transport;
    use serde_json::json;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::{TcpListener, TcpStream},
        time::timeout,
    };

    use super::*;

    /// Time limit of every step of a test.
    const BOUND: Duration = Duration::from_secs(20);

    /// Rules that allow these callers; without any, every caller.
    fn rules(from: &[&str]) -> AuthorizationTable {
        let rule = match from {
            [] => json!({"name": "all"}),
            from => json!({"name": "some", "from": from}),
        };
        let policy = json!({"service": "shop/cart", "authorization": {"rules": [rule]}});
        let spec: PolicySpec = serde_json::from_value(policy).unwrap();
        AuthorizationTable::compile(&spec.validate().unwrap().1, Default::default(), None)
    }

    #[test]
    fn request_that_front_forwards_counts_as_processed() {
        let service = ServiceName::new("shop/front").unwrap();
        let front = ConnectionAuthorizer {
            authorizer: Arc::new(Authorizer::of_server(service.clone(), &Transport::default())),
            following: Arc::default(),
            callers: Arc::default(),
            served: Arc::new(ServedClasses::of_server(service)),
            parses_requests: true,
        };
        let mut meter = ServedMeter::default();
        let region: Region = "eu".parse().unwrap();
        let mut read = |at_ms| meter.read(&front.served.counters().unwrap(), &region, at_ms);
        read(0);
        let mut request = Request::new(());
        let _ = front.count(&mut request, None).response(Response::new(Empty::<Bytes>::new()));
        drop(front.count(&mut request, None));
        let rates: Vec<_> = read(1_000).into_values().collect();
        assert_eq!(rates.iter().map(|rates| rates.calls).collect::<Vec<_>>(), [1_000], "{rates:?}");
    }

    #[tokio::test]
    async fn refused_connection_is_closed_when_rules_let_its_caller_in() {
        let service = ServiceName::new("shop/cart").unwrap();
        let authorizer = Arc::new(Authorizer::of_server(service, &Transport::default()));
        authorizer.set(rules(&["shop/web"]));
        let front = ConnectionAuthorizer {
            authorizer: Arc::clone(&authorizer),
            following: Arc::default(),
            callers: Arc::default(),
            served: Arc::default(),
            parses_requests: true,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut caller = TcpStream::connect(address).await.unwrap();
        let stream = GuardedStream::outgoing(Stream::Tcp(listener.accept().await.unwrap().0));
        let refused = front.clone();
        let serving = tokio::spawn(async move { refused.accept(stream, address).await.is_some() });

        let mut response = vec![0; 4096];
        for _ in 0..2 {
            caller.write_all(b"GET / HTTP/1.1\r\nhost: cart\r\n\r\n").await.unwrap();
            let length = timeout(BOUND, caller.read(&mut response)).await.unwrap().unwrap();
            assert!(response[..length].starts_with(b"HTTP/1.1 403 "), "the connection stays");
        }
        authorizer.set(rules(&["shop/mobile"]));
        caller.write_all(b"GET / HTTP/1.1\r\nhost: cart\r\n\r\n").await.unwrap();
        let length = timeout(BOUND, caller.read(&mut response)).await.unwrap().unwrap();
        assert!(response[..length].starts_with(b"HTTP/1.1 403 "), "other rules that refuse it close nothing");

        authorizer.set(rules(&[]));
        let closed = timeout(BOUND, caller.read(&mut response)).await.expect("it is closed").unwrap();
        assert_eq!(closed, 0);
        assert!(!timeout(BOUND, serving).await.unwrap().unwrap(), "no byte of it reaches the program");
        let (_next, stream) = tokio::join!(TcpStream::connect(address), listener.accept());
        let stream = GuardedStream::outgoing(Stream::Tcp(stream.unwrap().0));
        assert!(front.accept(stream, address).await.is_some(), "the next connection is accepted");
    }
}
