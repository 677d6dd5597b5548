//! Authorization of connections whose requests are not read, such as those that `fairmesh register` forwards as bytes.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use fairmesh_headers::CallerProtocol;
use fairmesh_listen::GuardedStream;
use fairmesh_model::{Identity, ServiceName};
use fairmesh_wire::transport::Stream;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};

use super::{Authorizer, NotAccepted, PolicySubscription};
use crate::{
    RegistryClient, ServerBody,
    layer::{refusal::Refusal, server_load::ServerLoad},
};

/// Decides which connections to a service are accepted, by its policy. Cheap to clone.
///
/// Only rules for all methods and paths allow a connection, since its requests are not read.
#[derive(Clone, Debug)]
pub struct ConnectionAuthorizer {
    authorizer: Arc<Authorizer>,
    following: Arc<Option<PolicySubscription>>,
}

impl ConnectionAuthorizer {
    /// Follows the policy of a service through the registry.
    pub fn follow(service: ServiceName, registry: &RegistryClient) -> Self {
        let authorizer = Arc::new(Authorizer::of_server(service, registry.transport()));
        let following = authorizer.follow(registry);
        Self { authorizer, following: Arc::new(following) }
    }

    /// Stops following, and tells the agent, so that drains do not wait for this process to reconnect. Returns within a
    /// second.
    pub async fn close(&self) {
        if let Some(following) = &*self.following {
            following.close().await;
        }
    }

    /// Waits until connections can be decided on.
    pub async fn ready(&self) {
        self.authorizer.ready().await;
    }

    /// Whether the peer may use the service. A connection that it may not use is served by refusals of its requests,
    /// and `None` is returned once it ends.
    pub async fn accept(&self, stream: GuardedStream<Stream>) -> Option<GuardedStream<Stream>> {
        match self.authorizer.accept_connection(&identity_of(&stream)) {
            Ok(()) => Some(stream),
            Err(problem) => {
                refuse(stream, problem.into()).await;
                None
            }
        }
    }

    /// Resolves when this peer may no longer use the service.
    pub async fn revoked(&self, peer: &Identity) {
        let mut changes = self.authorizer.changes();
        while self.authorizer.still_accepts(peer) {
            // The sender lives in `self`.
            let _ = changes.changed().await;
        }
    }
}

/// The verified identity of a connection's peer.
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
        }
    }
}

/// Responds to the requests of a connection, so that callers learn why.
async fn refuse(stream: GuardedStream<Stream>, refusal: Refusal) {
    let load = ServerLoad::default();
    let service = hyper::service::service_fn(|request: Request<Incoming>| {
        let caller = CallerProtocol::of(request.headers());
        let response: Response<ServerBody<Empty<Bytes>>> = refusal.response(&caller, &load);
        async { Ok::<_, Infallible>(response) }
    });
    let builder = auto::Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(error, "a refused connection ended early");
    }
}
