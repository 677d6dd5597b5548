//! Forwards one request: routes it, sends it with the client library, and returns the response.

use std::{future::pending, sync::Arc, time::Duration};

use bytes::Bytes;
use fairmesh_calls::{
    Body, BoxError, Fault, FaultKind, Region,
    forwarding::{
        AllowedCall, CallInfo, SentRequest, end_with_status, hold_with_body, observe_body, send_noted,
    },
};
use fairmesh_headers::{grpc_content_type, is_grpc};
use fairmesh_metrics::{CallOutcome, known_method};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use tokio::{sync::OwnedSemaphorePermit, time::Instant};

use crate::{
    counter::{GaugeGuard, increment},
    forward::{
        connection_info::ConnectionInfo,
        connection_origin::Origin,
        error_response,
        header_rewrite::{prepare_request, prepare_response, server_region},
        loop_detection, misdirected_request,
        request_body_rules::{self, LimitedBody},
    },
    listen::connection_permit::ConnectionPermit,
    metrics::EdgeMetrics,
    observe::{
        observer::RequestObserver,
        request_info::Arrival,
        request_observation::{CallEnd, Observation},
    },
    services::{
        Services,
        host_name::HostError,
        target::{GrpcCall, GrpcStatusWatch, Target},
    },
    shutdown::Shutdown,
    tunnel::{Tunnels, client_upgrade::UpgradeRequest, hold},
};

/// Forwards the requests of all client connections.
#[derive(Debug)]
pub struct Forwarder {
    /// Table of the called services.
    pub services: Arc<Services>,
    /// Counters of connections and requests.
    pub metrics: Arc<EdgeMetrics>,
    /// Logs, traces and records single requests.
    pub observer: Arc<RequestObserver>,
    /// Runs tunnels, which are connections that carry bytes instead of messages.
    pub tunnels: Tunnels,
    /// Maximum bytes of a request body.
    pub max_body: u64,
}

impl Forwarder {
    /// Creates a forwarder without a limit on the size of request bodies.
    pub fn new(
        services: Arc<Services>,
        metrics: Arc<EdgeMetrics>,
        observer: Arc<RequestObserver>,
        tunnels: Tunnels,
    ) -> Self {
        Self { services, metrics, observer, tunnels, max_body: request_body_rules::UNLIMITED }
    }

    /// Sets the maximum size of request bodies, in bytes.
    pub fn with_max_body(mut self, max_body: Option<u64>) -> Self {
        self.max_body = max_body.unwrap_or(request_body_rules::UNLIMITED);
        self
    }

    /// Responds to any request, with an error response if necessary.
    pub(crate) async fn handle<B, O: Origin>(
        &self,
        request: Request<B>,
        client_info: &ConnectionInfo,
        origin: &O,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        client_info.permit.note_request();
        if loop_detection::is_loop(request.headers()) {
            let remedy = origin.count_loop(&self.metrics.requests);
            return error_response::loop_detected(remedy, grpc_content_type(request.headers()));
        }
        let mut permit = match client_info.enter_request() {
            Ok(permit) => permit,
            Err(fault) => return error_response::from_fault(&fault, grpc_content_type(request.headers())),
        };
        let request = if O::ADMITS_ALL {
            request
        } else {
            match origin.admit(request, &self.services).await {
                Ok(request) => request,
                Err(response) => return response,
            }
        };
        if request.method() == Method::CONNECT {
            return Box::pin(self.connect(request, client_info)).await;
        }
        match self.target(&request, client_info) {
            Ok(target) => {
                let mut response = self.forward(request, client_info, (&target, &mut permit)).await;
                if let Some(permit) = permit {
                    hold_with_body(response.body_mut(), permit);
                }
                response
            }
            Err(error) => self.refuse_host(&error, grpc_content_type(request.headers())),
        }
    }

    /// The response to a request that cannot be routed.
    fn refuse_host(&self, error: &HostError, grpc: Option<HeaderValue>) -> Response<Body> {
        self.count_host_error(error);
        let kind = match error {
            HostError::Misdirected(service) => return misdirected_request::response(service, grpc),
            HostError::Missing | HostError::Malformed(_) => FaultKind::Invalid,
            HostError::NotAService(_) => FaultKind::UnknownService,
            HostError::TooManyServices { .. } => FaultKind::Unavailable,
        };
        error_response::from_fault(&Fault::new(kind, error.to_string()), grpc)
    }

    /// The listener's service if it has one, otherwise the service that `host` names.
    pub fn target_of(&self, host: &str, client_info: &ConnectionInfo) -> Result<Arc<Target>, HostError> {
        match &client_info.service {
            Some(service) => client_info.host_cache.get("", || self.services.by_name(service)),
            None => client_info.host_cache.get(host, || self.by_host(host, client_info)),
        }
    }

    fn by_host(&self, host: &str, client_info: &ConnectionInfo) -> Result<Arc<Target>, HostError> {
        self.services.by_name(&client_info.service_of_host(self.services.without_zone(host))?)
    }

    /// Forwards a request. `permit` belongs to the request; an upgraded connection keeps it.
    pub(crate) async fn forward<B>(
        &self,
        request: Request<B>,
        client_info: &ConnectionInfo,
        (target, permit): (&Arc<Target>, &mut Option<OwnedSemaphorePermit>),
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
    {
        let began = request.extensions().get().map_or_else(Instant::now, SentRequest::began);
        let _in_flight = GaugeGuard::new(&target.metrics.in_flight);
        let (mut parts, body) = request.into_parts();
        let (method, kind) = (known_method(parts.method.as_str()), grpc_content_type(&parts.headers));
        let is_grpc = is_grpc(&parts.headers);
        // gRPC requires HTTP/2: clients over HTTP/1.1 do not read trailers.
        let has_trailers = parts.version == Version::HTTP_2;
        client_info.set_principal(&mut parts.extensions);
        let length = body.size_hint().exact();
        let is_outside = client_info.boundary.is_some();
        let arrival = Arrival { caller: client_info.caller, began, length, is_outside };
        let observation = self.observer.begin(&mut parts, target, arrival);
        let (body, too_long) = LimitedBody::new(body, self.max_body);
        let body = body.without_claims(client_info.states_caller());
        let upgrade = UpgradeRequest::take(&mut parts);
        prepare_request(&mut parts, client_info);
        if let Some(upgrade) = &upgrade {
            upgrade.apply(&mut parts.headers);
        }
        if let Some(trace) = observation.as_ref().and_then(|observation| observation.trace()) {
            parts.extensions.insert(trace.clone());
        }
        let mut info = CallInfo::default();
        let sent = send_noted(&target.handle, Request::from_parts(parts, body), &info).await;
        let mut upgraded_region = None;
        let (mut response, fault) = match sent {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                upgraded_region = server_region(&response).cloned();
                let (head, body) = response.into_parts();
                let held = (Arc::clone(&client_info.permit), permit.take());
                let revoked = revoked(info.take_allowed(), client_info.ends_by.clone(), held);
                let head = Response::from_parts(head, ());
                (self.tunnels.switch_protocols(head, (upgrade, body.into_tunnel()), revoked), None)
            }
            Ok(response) => (prepared(response, kind.is_some().then_some(has_trailers)), None),
            Err(_) if too_long.is_set() => (self.too_large(kind), None),
            Err(fault) => {
                let fault = self.with_zone_hint(fault, client_info, target);
                self.record_fault(&fault, client_info, target);
                (client_info.fault_response(&fault, target, kind), Some(fault))
            }
        };
        let (info, fault) = (&info, fault.as_ref());
        ForwardedCall { target, client_info, method, is_grpc, began, info, fault, upgraded_region }
            .observe(observation, &mut response);
        client_info.strip_response(&mut response);
        response
    }

    /// Counts a request that cannot be routed.
    pub(crate) fn count_host_error(&self, error: &HostError) {
        increment(match error {
            HostError::TooManyServices { .. } => &self.services.refused,
            HostError::Missing
            | HostError::Malformed(_)
            | HostError::NotAService(_)
            | HostError::Misdirected(_) => &self.metrics.requests.unrouted,
        });
    }

    pub(crate) fn too_large(&self, grpc: Option<HeaderValue>) -> Response<Body> {
        increment(&self.metrics.requests.too_large);
        error_response::body_too_large(self.max_body, grpc)
    }

    /// Adds a hint to the fault of a host that names no service for lack of a DNS zone.
    pub(crate) fn with_zone_hint(
        &self,
        fault: Fault,
        client_info: &ConnectionInfo,
        target: &Target,
    ) -> Fault {
        let by_host = fault.kind() == FaultKind::UnknownService && client_info.service.is_none();
        match self.services.zone_hint(target.handle.name()).filter(|_| by_host) {
            Some(hint) => Fault::new(fault.kind(), format!("{fault}; {hint}")),
            None => fault,
        }
    }

    /// Counts a fault, and drops the entry of an undeclared service.
    pub(crate) fn record_fault(&self, fault: &Fault, client_info: &ConnectionInfo, target: &Target) {
        increment(&target.metrics.faults);
        let unknown = matches!(fault.kind(), FaultKind::UnknownService | FaultKind::Unavailable);
        if unknown && client_info.service.is_none() && !target.metrics.had_server_response() {
            self.services.forget(target.handle.name());
            // The entry's own counters are dropped with it.
            increment(&self.metrics.requests.unrouted);
        }
    }
}

/// Prepares a response for the client. For gRPC calls `status_trailers` says whether the status may be sent
/// in trailers; `None` for other requests.
fn prepared(mut response: Response<Body>, status_trailers: Option<bool>) -> Response<Body> {
    prepare_response(&mut response);
    if let Some(has_trailers) = status_trailers {
        end_with_status(&mut response, has_trailers);
    }
    response
}

/// Resolves when the call that opened a connection would no longer be allowed, or at the deadline of its service's connections. Holds the
/// permits of the client's connection and of the request until it is dropped.
async fn revoked(
    allowed: Option<Box<AllowedCall>>,
    ends_by: Option<Arc<Shutdown>>,
    held: (Arc<ConnectionPermit>, Option<OwnedSemaphorePermit>),
) {
    let unallowed = async {
        match allowed {
            Some(allowed) => allowed.revoked().await,
            None => pending().await,
        }
    };
    let ended = async {
        match ends_by {
            Some(shutdown) => shutdown.deadline_passed().await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = unallowed => {}
        () = ended => {}
        () = hold(held) => {}
    }
}

/// A forwarded call whose response begins.
struct ForwardedCall<'a> {
    target: &'a Arc<Target>,
    client_info: &'a ConnectionInfo,
    method: &'static str,
    is_grpc: bool,
    began: Instant,
    info: &'a CallInfo,
    fault: Option<&'a Fault>,
    /// The server's region, if the response switched protocols.
    upgraded_region: Option<Region>,
}

impl ForwardedCall<'_> {
    /// Counts the call, and observes the rest of the response.
    fn observe(self, observation: Option<Box<Observation>>, response: &mut Response<Body>) {
        let Self { target, began, info, .. } = self;
        let (index, status) = (info.route_backend(), response.status());
        let region = self.upgraded_region.as_ref().or_else(|| server_region(response));
        let took = began.elapsed();
        target.metrics.responses.record(index, region, status, took);
        let exemplar = observation.as_ref().and_then(|observation| observation.exemplar());
        let call = GrpcCall { began, index, principal: self.client_info.principal.clone(), exemplar };
        let status_watch = match self.is_grpc {
            true => GrpcStatusWatch::begin(target, call, response),
            false => record_duration(target, (self.method, status), (&call, took)),
        };
        watch(observation, response, (self.fault, info), status_watch);
    }
}

/// Records the duration of a request that is not a gRPC call and therefore has no final status to wait for.
fn record_duration(
    target: &Target,
    (method, status): (&'static str, StatusCode),
    (call, took): (&GrpcCall, Duration),
) -> Option<GrpcStatusWatch> {
    let caller = call.principal.as_ref().map(|principal| principal.caller.path());
    let outcome = CallOutcome::Http { method, status: status.as_u16() };
    target.metrics.calls.record(caller, outcome, took, call.exemplar);
    None
}

/// Attaches the observation, or else the counter of gRPC statuses, to the response body.
fn watch(
    observation: Option<Box<Observation>>,
    response: &mut Response<Body>,
    (fault, info): (Option<&Fault>, &CallInfo),
    status_watch: Option<GrpcStatusWatch>,
) {
    match (observation, status_watch) {
        (Some(observation), status_watch) => {
            observation.response_started(response, CallEnd { fault, call_info: info }, status_watch);
        }
        (None, Some(watch)) => observe_body(response.body_mut(), Arc::new(watch)),
        (None, None) => {}
    }
}
