use std::convert::Infallible;

use bytes::Bytes;
use fairmesh_model::Protocol;
use fairmesh_server::{MeshServer, serve_http};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tokio::{net::TcpListener, task::JoinHandle};

use super::World;

/// Header of a gRPC request that asks for a status other than OK.
pub(crate) const STATUS: &str = "x-status";

/// The header that identifies a request; its response has the same value.
pub(crate) const NUMBER: HeaderName = HeaderName::from_static("x-number");

/// A server in this process that echoes requests.
pub(crate) struct Echo {
    server: MeshServer,
    serving: JoinHandle<()>,
}

impl Echo {
    /// Starts the server; returns once callers can learn of it.
    pub(crate) async fn start(world: &World, service: &str, instance: &str, protocol: Protocol) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let builder = MeshServer::builder(service).instance(instance).address(address).protocol(protocol);
        let server = builder.agent(world.agent_address()).start().await.unwrap();
        let serving = tokio::spawn({
            let server = server.clone();
            async move { serve_http(listener, tower::service_fn(echo), &server).await.unwrap() }
        });
        world.serves(service, instance).await;
        Self { server, serving }
    }

    /// Stops the server as planned; returns when its last connection is closed.
    pub(crate) async fn stop(self) {
        self.server.shutdown().await;
        self.serving.await.unwrap();
    }
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

async fn echo(request: Request<Incoming>) -> Result<Response<Body>, hyper::Error> {
    let (head, body) = request.into_parts();
    let body = Full::new(body.collect().await?.to_bytes());
    let kind = head.headers.get(CONTENT_TYPE);
    let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let body = match is_grpc {
        true => {
            let status = head.headers.get(STATUS).cloned().unwrap_or(HeaderValue::from_static("0"));
            let trailers = HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), status)]);
            body.with_trailers(std::future::ready(Some(Ok(trailers)))).boxed_unsync()
        }
        false => body.boxed_unsync(),
    };
    let mut answer = Response::new(body);
    for name in [CONTENT_TYPE, NUMBER] {
        if let Some(value) = head.headers.get(&name) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    Ok(answer)
}
