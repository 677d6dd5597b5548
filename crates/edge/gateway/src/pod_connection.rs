//! The origin of requests: connections of pods.

use std::{future::ready, sync::Arc};

use bytes::Bytes;
use fairmesh_calls::{Body, BoxError};
use fairmesh_edge::{
    counter::increment,
    forward::{connection_info::ConnectionInfo, connection_origin::Origin, forwarder::Forwarder},
    http1::request_offload::NoOffload,
    metrics::requests::RequestMetrics,
    services::{Services, target::Target},
};
use http::{Request, Response};

/// A connection that a node opened for one of its pods. All of its requests are for services.
#[derive(Debug)]
pub(crate) struct PodConnection;

impl Origin for PodConnection {
    type Offload = NoOffload;

    // The fast path cannot state a principal.
    const ADMITS_ALL: bool = false;

    /// Admits all requests: the policy of the called service decides on each call.
    fn admit<B>(
        &self,
        request: Request<B>,
        _: &Services,
    ) -> impl Future<Output = Result<Request<B>, Response<Body>>> + Send
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
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
