//! One request: found out for whom, sent as a call of the library, answered.

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use fairmesh_client::{Body, BoxError, FaultKind, ServiceName, headers::is_grpc};
use http::{Method, Request, Response, StatusCode, Uri, Version, header};
use tokio::time::Instant;

use crate::{
    AccessLog,
    access::{self, Access, Entry, SharedAccess},
    answer, decision, hops,
    metrics::{Held, Metrics, count},
    service::{Nobody, Services, Target},
};

/// Forwards requests of all connections.
#[derive(Debug)]
pub(crate) struct Forwarder {
    services: Arc<Services>,
    pub(crate) metrics: Arc<Metrics>,
    access: SharedAccess,
}

/// Where a request came in.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) caller: SocketAddr,
    /// Whom the listener is for.
    pub(crate) service: Option<ServiceName>,
}

impl Forwarder {
    pub(crate) fn new(services: Arc<Services>, metrics: Arc<Metrics>, log: AccessLog) -> Self {
        Self { services, metrics, access: Arc::new(Access::start(log)) }
    }

    /// Answers a request, whatever happens.
    pub(crate) async fn answer<B>(&self, request: Request<B>, origin: &Origin) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        if let Some(words) = beyond(&request) {
            count(&self.metrics.refused);
            return answer::of_http(StatusCode::NOT_IMPLEMENTED, format!("{words}\n"));
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
            return self.services.by_name(service);
        }
        // By the URI first, as RFC 9112 3.2.2 has it of a proxy: HTTP/2 and requests to a proxy name the host there. Where
        // it names the proxy itself, as programs that set the header over HTTP/2 have it, the header says who is meant.
        let named = request.uri().authority().map(|authority| self.services.by_host(authority.as_str()));
        let header = || request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        match (named, header()) {
            (Some(Err(Nobody::NoName(_))) | None, Some(host)) => self.services.by_host(host),
            (Some(found), _) => found,
            (None, None) => Err(Nobody::NoHost),
        }
    }

    async fn forward<B>(&self, request: Request<B>, origin: &Origin, target: &Target) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let began = Instant::now();
        let _under_way = Held::new(&target.golden.under_way);
        let (mut head, body) = request.into_parts();
        let (method, uri) = (head.method.clone(), head.uri.clone());
        let is_grpc = is_grpc(&head.headers);
        let trace = decision::asked(&mut head.headers);
        if origin.service.is_none() {
            // The server is told the service that was called, and not what else the request may have named.
            head.headers.remove(header::HOST);
            head.uri = uri.path_and_query().map_or_else(Uri::default, |path| Uri::from(path.clone()));
        }
        hops::strip_request(&mut head.headers);
        // Nothing of the connection it came on belongs to the call.
        head.extensions.clear();
        if let Some(trace) = &trace {
            head.extensions.insert(trace.clone());
        }
        let sent = target.handle.send(Request::from_parts(head, body)).await;
        let (mut answer, fault) = match sent {
            Ok(mut answer) => {
                hops::strip_answer(answer.headers_mut());
                // How the server spoke says nothing of how the program does.
                *answer.version_mut() = Version::default();
                (answer, None)
            }
            Err(fault) => {
                count(&target.golden.faults);
                let unknown = matches!(fault.kind(), FaultKind::UnknownService | FaultKind::Unavailable);
                if unknown && origin.service.is_none() && !target.golden.was_answered() {
                    self.services.forget(target.handle.name());
                }
                (answer::of_fault(&fault, is_grpc), Some(fault.kind()))
            }
        };
        if let Some(trace) = &trace {
            decision::tell(target.handle.name(), trace, answer.headers_mut());
        }
        let (status, took) = (answer.status(), began.elapsed());
        target.golden.answered(status, took);
        let failed = fault.is_some() || status.is_server_error();
        self.access.note(failed, &self.metrics.log_lines_dropped, || Entry {
            time: access::now(),
            service: target.handle.name().to_string(),
            method: method.to_string(),
            path: uri.path().to_owned(),
            status: status.as_u16(),
            ms: took.as_secs_f64() * 1e3,
            caller: origin.caller.to_string(),
            fault: fault.map(FaultKind::label),
        });
        answer
    }
}

/// Why a request is beyond what this proxy does; `None` for the rest. Other upgrades may be ignored (RFC 9110 7.8), and are.
fn beyond<B>(request: &Request<B>) -> Option<&'static str> {
    if request.method() == Method::CONNECT {
        return Some("tunnels are not made here; ask for http:// and not https://");
    }
    let upgrades = request.headers().get_all(header::UPGRADE);
    let websocket = upgrades.iter().any(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    websocket.then_some("WebSocket is not passed on here; connect to the server itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_passed_on_is_refused_and_other_upgrades_are_not() {
        let request = |method: &str, upgrade: &str| {
            Request::builder()
                .method(method)
                .uri("http://cart.shop/")
                .header("upgrade", upgrade)
                .body(())
                .unwrap()
        };
        assert!(beyond(&request("GET", "WebSocket")).is_some());
        assert!(beyond(&request("CONNECT", "")).is_some());
        assert!(beyond(&request("GET", "h2c")).is_none());
    }
}
