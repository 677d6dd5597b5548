//! The origin of requests: connections of pods.

use fairmesh_edge::{
    counter::increment, forward::connection_origin::Origin, http1::request_offload::NoOffload,
    metrics::requests::RequestMetrics,
};

/// A connection that a node opened for one of its pods. All of its requests are for services: the policy of the called
/// service decides on each call.
#[derive(Debug)]
pub(crate) struct PodConnection;

impl Origin for PodConnection {
    type Offload = NoOffload;

    // The fast path cannot state a principal.
    const ADMITS_ALL: bool = false;

    fn count_loop(&self, requests: &RequestMetrics) -> &'static str {
        increment(&requests.loops);
        "the request has passed this gateway before; a server of the service forwards it with all headers"
    }
}
