//! Where a client's connection comes from, and what its requests may reach.

use std::{fmt::Debug, future::ready, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError};
use http::{Request, Response};

use crate::{
    counter::increment,
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder},
    http1::request_offload::{NoOffload, Offload},
    metrics::requests::RequestMetrics,
    services::{Services, target::Target},
};

/// The origin of a connection. It decides what requests may reach besides services, and which other sender
/// may send some of the requests.
///
/// A type parameter of everything that serves a connection. An enum would make the forwarder name every kind
/// of proxy; a trait object would cost direct connections an allocation and a dynamic call per request.
pub trait Origin: Debug + Send + Sync + 'static {
    /// A sender, such as the kernel, that may send requests of the connection without the proxy.
    type Offload: Offload + Send;

    /// Whether every request is for a service. If so, [`admit`](Self::admit) is not called and requests may take the
    /// fast path.
    const ADMITS_ALL: bool;

    /// Accepts a request for a service. By default every request is for one.
    ///
    /// # Errors
    /// The response to the request, if it is for no service.
    fn admit<B>(
        &self,
        request: Request<B>,
        _services: &Services,
    ) -> impl Future<Output = Result<Request<B>, Response<Body>>> + Send
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        ready(Ok(request))
    }

    /// Counts a request that this proxy forwarded to itself, and returns how to fix it.
    fn count_loop(&self, requests: &RequestMetrics) -> &'static str;

    /// Takes the connection's offload sender. Returns it only once.
    fn take_offload(&self) -> Option<Self::Offload> {
        None
    }

    /// Service of a request that the proxy handles although the offload sender could send similar requests.
    fn offloadable<B>(
        &self,
        _request: &Request<B>,
        _forwarder: &Forwarder,
        _client_info: &ConnectionInfo,
    ) -> Option<Arc<Target>> {
        None
    }

    /// Allows the offload sender to send further requests to this service.
    fn offload(&self, _target: &Target, _forwarder: &Forwarder) -> impl Future<Output = ()> + Send {
        ready(())
    }
}

/// A client that connected to the listener itself: all of its requests are for services.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl Origin for Direct {
    type Offload = NoOffload;

    const ADMITS_ALL: bool = true;

    fn count_loop(&self, requests: &RequestMetrics) -> &'static str {
        increment(&requests.loops);
        "the proxy forwarded this request to itself; remove the proxy's address from the endpoints of the service"
    }
}
