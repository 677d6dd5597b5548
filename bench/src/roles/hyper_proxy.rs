//! A proxy made only of hyper: every request goes to the next endpoint through hyper's client and connection pool,
//! without a deadline, statistics or retries. Our own HTTP/1.1 implementation must cost less than this to be
//! worthwhile.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::uri::{Authority, Scheme};
use hyper::{Request, Response, Uri, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpListener;

use super::BoxError;

struct Proxy {
    client: Client<HttpConnector, Incoming>,
    endpoints: Vec<Authority>,
    turn: AtomicUsize,
}

/// Serves until the process is ended.
pub(super) async fn run(listen: SocketAddr, to: &[SocketAddr]) -> Result<(), BoxError> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    if to.is_empty() {
        return Err("there is nobody to pass requests on to".into());
    }
    let endpoints = to.iter().map(|to| to.to_string().parse()).collect::<Result<_, _>>()?;
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let proxy = Arc::new(Proxy { client, endpoints, turn: AtomicUsize::default() });
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let proxy = Arc::clone(&proxy);
        let service = service_fn(move |request| pass(Arc::clone(&proxy), request));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn pass(proxy: Arc<Proxy>, mut request: Request<Incoming>) -> Result<Response<Incoming>, BoxError> {
    let turn = proxy.turn.fetch_add(1, Ordering::Relaxed) % proxy.endpoints.len();
    let mut parts = request.uri().clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    parts.authority = Some(proxy.endpoints[turn].clone());
    *request.uri_mut() = Uri::from_parts(parts)?;
    Ok(proxy.client.request(request).await?)
}
