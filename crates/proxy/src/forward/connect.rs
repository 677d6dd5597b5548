//! Requests after which a connection carries bytes and no messages.

use std::sync::Arc;

use fairmesh_client::{
    Body, FaultKind, InstanceId, Region, Tunnel, discovery::ServiceState, proxy_support::ConnectResult,
};
use fairmesh_model::HostPort;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::time::Instant;

use super::{Forwarder, Origin, named};
use crate::{
    access::{Entry, millis, seconds},
    answer, hops,
    insight::wall,
    metrics::{Held, count},
    service::{Nobody, Target, name_of},
    tunnel::{Program, Switch, mark},
};

/// The methods that are served everywhere, as a refusal of CONNECT names them (RFC 9110 10.2.1).
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");

/// Why there is no tunnel, where no server of the service is to blame.
enum Refusal {
    /// It is asked for without a port, or with one that is none.
    Malformed,
    /// Neither the listener nor a route allows it.
    NotAllowed,
    /// What is asked for is nothing that is served here.
    Elsewhere,
    TooMany {
        most: usize,
    },
}

impl Forwarder {
    /// The server speaks the protocol that was asked for: what both sides send from here on is carried.
    pub(super) fn switch(&self, answer: &mut Response<Body>, switch: Option<Switch>, origin: &Origin) {
        let protocol = answer.headers().get(header::UPGRADE).cloned();
        hops::strip_answer(answer.headers_mut());
        let server = std::mem::take(answer.body_mut()).into_tunnel();
        match (switch, server, protocol) {
            (Some(Switch { program, .. }), Some(server), Some(protocol)) => {
                mark(answer.headers_mut(), protocol);
                self.tunnels.begin(program, server, Arc::clone(&origin.place));
            }
            // The library passes on no switch that was not asked for; one to a protocol without a name is none.
            _ => {
                let words = "the server switched to a protocol that it did not name\n".to_owned();
                *answer = answer::of_http(StatusCode::BAD_GATEWAY, words);
            }
        }
    }

    /// Makes a tunnel to a server of the service that is named, and to nothing else: a proxy that connects to whatever it is
    /// asked for would be a way around every border of the network that it stands in. Even to a service it is a way around all routes
    /// but the one of the CONNECT itself, so that the listener or that route has to allow it.
    pub(super) async fn connect<B>(&self, request: Request<B>, origin: &Origin) -> Response<Body> {
        if let Err(nobody) = named::host_header(&request) {
            self.count_nobody(&nobody);
            return answer::of_http(StatusCode::BAD_REQUEST, format!("{nobody}\n"));
        }
        let (mut head, _) = request.into_parts();
        let named = head.uri.authority().map(ToString::to_string).unwrap_or_default();
        let target = match self.tunnel_target(&named, origin) {
            Ok(target) => target,
            Err(refusal) => return self.refuse(&refusal, &named),
        };
        let began = Instant::now();
        let _under_way = Held::new(&target.golden.under_way);
        let program = Program::take(&mut head.extensions);
        named::tell_host(&mut head, origin);
        head.extensions.clear();
        let opened = target.handle.open_tunnel(Request::from_parts(head, ()), origin.connects).await;
        let mut server = None;
        let (answer, fault) = match opened {
            Ok(ConnectResult::Tunnel(tunnel)) => {
                server = Some(place_of(&tunnel));
                if let Some(program) = program {
                    self.tunnels.begin(program, tunnel, Arc::clone(&origin.place));
                }
                (Response::new(Body::empty()), None)
            }
            Ok(ConnectResult::DirectResponse(answer)) => (answer, None),
            Ok(ConnectResult::NotAllowed) => return self.refuse(&Refusal::NotAllowed, &named),
            Err(fault) => {
                self.faulted(&fault, origin, &target);
                if fault.kind() == FaultKind::UnknownService {
                    return self.refuse(&Refusal::elsewhere(origin), &named);
                }
                (answer::of_fault(&fault, None), Some(fault.kind()))
            }
        };
        self.connected(&named, (origin, began), &target, (answer.status(), fault, server));
        answer
    }

    /// The service that a tunnel is asked for to: by what is asked for alone, since a header that says something else would be believed
    /// by somebody else. On a listener for one service that has to be a host of it: its own name, or one that its routes match.
    fn tunnel_target(&self, named: &str, origin: &Origin) -> Result<Arc<Target>, Refusal> {
        let parsed = HostPort::parse(named).filter(|parsed| parsed.port.is_some_and(|port| port > 0));
        let host = parsed.ok_or(Refusal::Malformed)?.name();
        let target = match &origin.service {
            Some(service) => self.services.by_name(service),
            None => self.services.by_host(host),
        };
        let target = target.map_err(|nobody| match nobody {
            Nobody::TooMany { most } => Refusal::TooMany { most },
            Nobody::NoHost | Nobody::Malformed(_) | Nobody::NoName(_) => Refusal::elsewhere(origin),
        })?;
        let is_own =
            origin.service.is_none() || name_of(host).is_ok_and(|name| name == *target.handle.name());
        let is_served = is_own
            || matches!(&*target.handle.state(), ServiceState::Ready(ready) if ready.upstream.names_host(host));
        if is_served { Ok(target) } else { Err(Refusal::elsewhere(origin)) }
    }

    /// Counts a tunnel that was asked for, and logs it.
    fn connected(
        &self,
        named: &str,
        (origin, began): (&Origin, Instant),
        target: &Target,
        (status, fault, server): (StatusCode, Option<FaultKind>, Option<(InstanceId, Region)>),
    ) {
        let took = began.elapsed();
        let (instance, region) = server.unzip();
        target.golden.answers.answered(region.as_ref(), status, took);
        self.seeing.tunnel(fault.is_some(), || Entry {
            time: seconds(wall().saturating_sub(took)),
            service: target.handle.name().to_string(),
            method: Method::CONNECT.to_string(),
            path: named.to_owned(),
            status: status.as_u16(),
            ms: millis(took),
            total_ms: millis(took),
            caller: origin.caller.to_string(),
            fault: fault.map(FaultKind::label),
            instance: instance.map(|instance| instance.to_string()),
            region: region.map(|region| region.to_string()),
            ..Entry::default()
        });
    }

    /// What a program is told that gets no tunnel.
    fn refuse(&self, refusal: &Refusal, named: &str) -> Response<Body> {
        let is_full = matches!(refusal, Refusal::TooMany { .. });
        count(if is_full { &self.services.refused } else { &self.metrics.refused });
        let (status, words) = match refusal {
            Refusal::Malformed => (
                StatusCode::BAD_REQUEST,
                format!("CONNECT names a host and a port from 1 to 65535, and '{named}' does not; ask for cart.shop:80 to reach shop/cart"),
            ),
            Refusal::NotAllowed => (
                StatusCode::METHOD_NOT_ALLOWED,
                "CONNECT is not allowed here: start the listener with +connect, or name CONNECT in match.methods of a route".to_owned(),
            ),
            Refusal::Elsewhere => (
                StatusCode::FORBIDDEN,
                format!("tunnels lead to services of the mesh that are served here, and '{named}' is none; ask for cart.shop:80 to reach shop/cart"),
            ),
            Refusal::TooMany { most } => (StatusCode::SERVICE_UNAVAILABLE, Nobody::TooMany { most: *most }.to_string()),
        };
        let mut answer = answer::of_http(status, words + "\n");
        if status == StatusCode::METHOD_NOT_ALLOWED {
            answer.headers_mut().insert(header::ALLOW, ALLOWED);
        }
        answer
    }
}

impl Refusal {
    /// Of what is not served here: where nobody may ask for tunnels, that is all that is said.
    fn elsewhere(origin: &Origin) -> Self {
        if origin.connects { Self::Elsewhere } else { Self::NotAllowed }
    }
}

fn place_of(tunnel: &Tunnel) -> (InstanceId, Region) {
    let server = tunnel.endpoint();
    (server.instance.clone(), server.location.region.clone())
}
