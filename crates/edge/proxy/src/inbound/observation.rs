//! What is seen of the requests to the program: counters by caller, access log and spans.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use fairmesh_calls::{Body, FaultKind, ServiceName};
use fairmesh_edge::observe::{observer::RequestObserver, request_info::Arrival, served::ServedRequest};
use fairmesh_headers::LOAD_PATH;
use fairmesh_server::Caller;
use http::{Request, Response};
use tokio::time::Instant;

use crate::inbound::caller_metrics::CallerMetrics;

/// Observes the requests of all callers.
#[derive(Debug)]
pub(crate) struct InboundObservation {
    service: ServiceName,
    pub(crate) callers: Arc<CallerMetrics>,
    /// That of the proxy, once it runs: callers may be served before.
    observer: OnceLock<Arc<RequestObserver>>,
}

/// A request until its response begins.
#[derive(Debug)]
pub(crate) struct ObservedCall {
    began: Instant,
    served: Option<ServedRequest>,
}

impl InboundObservation {
    pub(crate) fn new(service: ServiceName) -> Self {
        let callers = Arc::new(CallerMetrics::new(&service));
        Self { service, callers, observer: OnceLock::new() }
    }

    /// Logs and traces requests from now on.
    pub(crate) fn set_observer(&self, observer: Arc<RequestObserver>) {
        // A second proxy of the process has no program of its own.
        let _ = self.observer.set(observer);
    }

    /// Begins the observation of a request of `peer`; `None` for polls of the load, which are no calls.
    pub(crate) fn begin<B>(&self, request: Request<B>, peer: SocketAddr) -> (Request<B>, Option<ObservedCall>)
    where
        B: http_body::Body<Data = Bytes>,
    {
        if request.uri().path() == LOAD_PATH {
            return (request, None);
        }
        let began = Instant::now();
        let Some(observer) = self.observer.get() else {
            return (request, Some(ObservedCall { began, served: None }));
        };
        let (mut parts, body) = request.into_parts();
        let arrival = Arrival { caller: peer, began, length: body.size_hint().exact() };
        let served = observer.begin_served(&mut parts, &self.service, arrival);
        (Request::from_parts(parts, body), Some(ObservedCall { began, served }))
    }

    /// Counts the response, and reports it once it has ended.
    pub(crate) fn response_started(
        &self,
        call: ObservedCall,
        response: &mut Response<Body>,
        caller: Option<&Caller>,
    ) {
        self.callers.record(caller, response.status(), call.began.elapsed());
        if let Some(served) = call.served {
            let fault = response.extensions().get::<FaultKind>().copied();
            served.response_started(response, caller.map(|caller| caller.id().to_string()), fault);
        }
    }
}
