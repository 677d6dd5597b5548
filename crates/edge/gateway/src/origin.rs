//! Connections of pods, as their requests are forwarded.

use std::{future::ready, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError};
use fairmesh_edge::{
    counter::increment,
    forward::{connection_info::ConnectionInfo, forwarder::Forwarder, origin::Origin},
    http1::offload::NoOffload,
    metrics::requests::RequestMetrics,
    services::{Services, target::Target},
};
use fairmesh_headers::CALLER;
use http::{HeaderValue, Request, Response};

/// A connection that a node opened for one of its pods. All requests are for services.
#[derive(Debug)]
pub(crate) struct PodConnection {
    /// The identity of the pod, for the servers of its calls.
    pub(crate) caller: HeaderValue,
}

impl Origin for PodConnection {
    type Offload = NoOffload;

    // The fast path knows no principal.
    const ADMITS_ALL: bool = false;

    /// States who calls, whatever the request states.
    fn admit<B>(
        &self,
        mut request: Request<B>,
        _: &Services,
    ) -> impl Future<Output = Result<Request<B>, Response<Body>>> + Send
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        request.headers_mut().insert(CALLER, self.caller.clone());
        ready(Ok(request))
    }

    fn count_loop(&self, requests: &RequestMetrics) -> &'static str {
        increment(&requests.loops);
        "the request has passed this gateway before; a server of the service forwards it with all headers"
    }

    fn take_offload(&self) -> Option<NoOffload> {
        None
    }

    fn offloadable<B>(&self, _: &Request<B>, _: &Forwarder, _: &ConnectionInfo) -> Option<Arc<Target>> {
        None
    }

    fn offload(&self, _: &Target, _: &Forwarder) -> impl Future<Output = ()> + Send {
        ready(())
    }
}
