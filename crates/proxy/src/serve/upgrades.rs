//! HTTP/1.1 from a request on that asks for another protocol, which hyper knows how to hand over.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use fairmesh_client::Body;
use http::{Request, Response};
use hyper::{
    body::Incoming,
    server::conn::http1::Builder,
    service::{Service, service_fn},
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout_at,
};

use super::Serving;
use crate::{forward::Origin, metrics::count, rewound::Rewound};

/// The most headers of a request, and the most bytes of its head.
const MAX_HEADERS: usize = 128;
const MAX_HEAD: usize = 64 * 1024;

/// How hyper serves, where a head may take so long.
pub(crate) fn builder(head: Duration) -> Builder {
    let mut builder = Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD);
    builder
}

impl Serving {
    /// Serves a connection from such a request on.
    pub(super) async fn upgraded<I>(&self, stream: Rewound<I>, origin: Origin)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let metrics = &self.forwarder.metrics;
        let caller = origin.caller;
        let served = builder(self.limits.head).serve_connection(TokioIo::new(stream), self.answers(origin));
        let mut connection = pin!(served.with_upgrades());
        let deadline = tokio::select! {
            ended = connection.as_mut() => return self.over(ended, caller),
            deadline = self.stopping.begun() => deadline,
        };
        // Its program is told with the next answer, and else when it was given the time for one.
        tokio::select! {
            ended = connection.as_mut() => return self.over(ended, caller),
            () = self.stopping.quiet().cancelled() => connection.as_mut().graceful_shutdown(),
        }
        match timeout_at(deadline, connection).await {
            Ok(ended) => self.over(ended, caller),
            Err(_) => count(&metrics.cut),
        }
    }

    fn over(&self, ended: hyper::Result<()>, caller: std::net::SocketAddr) {
        if let Err(error) = ended {
            count(&self.forwarder.metrics.broken);
            tracing::debug!(error = &error as &dyn std::error::Error, %caller, "a connection ended early");
        }
    }

    /// Answers the requests of one connection.
    fn answers(
        &self,
        origin: Origin,
    ) -> impl Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
    + 'static {
        let (forwarder, stopping) = (Arc::clone(&self.forwarder), Arc::clone(&self.stopping));
        let origin = Arc::new(origin);
        service_fn(move |request: Request<Incoming>| {
            let (forwarder, stopping, origin) =
                (Arc::clone(&forwarder), Arc::clone(&stopping), Arc::clone(&origin));
            async move {
                let mut answer = forwarder.answer(request, &origin).await;
                stopping.mark(answer.headers_mut());
                Ok(answer)
            }
        })
    }
}
