//! One request: found out for whom, sent as a call of the library, answered.

mod connect;

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError, Fault, FaultKind, ServiceName, headers::is_grpc};
use http::{Method, Request, Response, StatusCode, Uri, Version, header};
use tokio::time::Instant;

use crate::{
    AccessLog,
    access::{self, Access, Entry, SharedAccess},
    answer, decision, hops,
    metrics::{Held, Metrics, count},
    place::Place,
    recent::Recent,
    service::{Nobody, Services, Target},
    tunnel::{Switch, Tunnels},
};

/// Forwards requests of all connections.
#[derive(Debug)]
pub(crate) struct Forwarder {
    services: Arc<Services>,
    pub(crate) metrics: Arc<Metrics>,
    access: SharedAccess,
    tunnels: Tunnels,
}

/// Where a request came in.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) caller: SocketAddr,
    /// Whom the listener is for.
    pub(crate) service: Option<ServiceName>,
    /// What the connection holds.
    pub(crate) place: Arc<Place>,
    recent: Recent,
}

impl Origin {
    pub(crate) fn new(caller: SocketAddr, service: Option<ServiceName>, place: Arc<Place>) -> Self {
        Self { caller, service, place, recent: Recent::default() }
    }
}

impl Forwarder {
    pub(crate) fn new(
        services: Arc<Services>,
        metrics: Arc<Metrics>,
        log: AccessLog,
        tunnels: Tunnels,
    ) -> Self {
        Self { services, metrics, access: Arc::new(Access::start(log)), tunnels }
    }

    /// Answers a request, whatever happens.
    pub(crate) async fn answer<B>(&self, request: Request<B>, origin: &Origin) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
    {
        if request.method() == Method::CONNECT {
            return Box::pin(self.connect(request, origin)).await;
        }
        match self.target(&request, origin) {
            Ok(target) => self.forward(request, origin, &target).await,
            Err(nobody) => {
                count(&self.metrics.nobody);
                let status = match nobody {
                    Nobody::NoHost => StatusCode::BAD_REQUEST,
                    Nobody::NoName(_) => StatusCode::NOT_FOUND,
                    Nobody::TooMany => StatusCode::SERVICE_UNAVAILABLE,
                };
                answer::of_http(status, format!("{nobody}\n"))
            }
        }
    }

    fn target<B>(&self, request: &Request<B>, origin: &Origin) -> Result<Arc<Target>, Nobody> {
        if let Some(service) = &origin.service {
            return origin.recent.get("", &self.services, || self.services.by_name(service));
        }
        let by_host = |host: &str| origin.recent.get(host, &self.services, || self.services.by_host(host));
        // By the URI first, as RFC 9112 3.2.2 has it of a proxy: HTTP/2 and requests to a proxy name the host there. Where
        // it names the proxy itself, as programs that set the header over HTTP/2 have it, the header says who is meant.
        let named = request.uri().authority().map(|authority| by_host(authority.as_str()));
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        match (named, header()) {
            (Some(Err(Nobody::NoName(_))) | None, Some(host)) => by_host(host),
            (Some(found), _) => found,
            (None, None) => Err(Nobody::NoHost),
        }
    }

    async fn forward<B>(&self, request: Request<B>, origin: &Origin, target: &Target) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static,
    {
        let began = Instant::now();
        let _under_way = Held::new(&target.golden.under_way);
        let (mut head, body) = request.into_parts();
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let is_grpc = is_grpc(&head.headers);
        let trace = decision::asked(&mut head.headers);
        let switch = Switch::take(&mut head);
        if origin.service.is_none() {
            // The server is told the service that was called, and not what else the request may have named.
            head.headers.remove(header::HOST);
            head.uri = uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
        }
        hops::strip_request(&mut head.headers);
        if let Some(switch) = &switch {
            switch.ask(&mut head.headers);
        }
        // Nothing of the connection it came on belongs to the call.
        head.extensions.clear();
        if let Some(trace) = &trace {
            head.extensions.insert(trace.clone());
        }
        let sent = target.handle.send_movable(Request::from_parts(head, body)).await;
        let (mut answer, fault) = match sent {
            Ok(mut answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                self.switch(&mut answer, switch, origin);
                (answer, None)
            }
            Ok(mut answer) => {
                hops::strip_answer(answer.headers_mut());
                // How the server spoke says nothing of how the program does.
                *answer.version_mut() = Version::default();
                (answer, None)
            }
            Err(fault) => {
                self.faulted(&fault, origin, target);
                (answer::of_fault(&fault, is_grpc), Some(fault.kind()))
            }
        };
        if let Some(trace) = &trace {
            decision::tell(target.handle.name(), trace, answer.headers_mut());
        }
        self.note((&method, uri.path(), began), origin, target, (answer.status(), fault));
        answer
    }

    /// Counts a fault, and forgets a service that is none.
    fn faulted(&self, fault: &Fault, origin: &Origin, target: &Target) {
        count(&target.golden.faults);
        let unknown = matches!(fault.kind(), FaultKind::UnknownService | FaultKind::Unavailable);
        if unknown && origin.service.is_none() && !target.golden.was_answered() {
            self.services.forget(target.handle.name());
        }
    }

    pub(crate) fn services(&self) -> &Services {
        &self.services
    }

    pub(crate) fn tunnels(&self) -> &Tunnels {
        &self.tunnels
    }

    /// Counts a request that was answered with this status, and logs it.
    fn note(
        &self,
        (method, path, began): (&Method, &str, Instant),
        origin: &Origin,
        target: &Target,
        (status, fault): (StatusCode, Option<FaultKind>),
    ) {
        let took = began.elapsed();
        target.golden.answered(status, took);
        let failed = fault.is_some() || status.is_server_error();
        self.access.note(failed, &self.metrics.log_lines_dropped, || Entry {
            time: access::now(),
            service: target.handle.name().to_string(),
            method: method.to_string(),
            path: path.to_owned(),
            status: status.as_u16(),
            ms: took.as_secs_f64() * 1e3,
            caller: origin.caller.to_string(),
            fault: fault.map(FaultKind::label),
        });
    }
}
