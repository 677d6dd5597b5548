//! Requests after which a connection carries bytes and no messages.

use std::sync::Arc;

use fairmesh_client::{Body, Fault, FaultKind, InstanceId, Region, Tunnel};
use http::{Method, Request, Response, StatusCode, Uri, header};
use tokio::time::Instant;

use super::{Forwarder, Origin};
use crate::{
    access::{Entry, millis, seconds},
    answer, hops,
    insight::wall,
    metrics::{Held, count},
    service::{Nobody, Target},
    tunnel::{Program, Switch, mark},
};

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
    /// asked for would be a way around every border of the network that it stands in.
    pub(super) async fn connect<B>(&self, request: Request<B>, origin: &Origin) -> Response<Body> {
        let (mut head, _) = request.into_parts();
        let named = head.uri.authority().map(ToString::to_string).unwrap_or_default();
        let target = match &origin.service {
            Some(service) => self.services.by_name(service),
            // By what is asked for alone: a header that says something else would be believed by somebody else.
            None => self.services.by_host(&named),
        };
        let target = match target {
            Ok(target) => target,
            Err(nobody) => return self.nowhere(&nobody, &named),
        };
        let began = Instant::now();
        let _under_way = Held::new(&target.golden.under_way);
        let program = Program::take(&mut head.extensions);
        head.headers.remove(header::HOST);
        head.uri = Uri::default();
        head.extensions.clear();
        let connected = target.handle.connect(Request::from_parts(head, ())).await;
        let server = connected.as_ref().ok().map(Tunnel::endpoint);
        let server = server.map(|server| (server.instance.clone(), server.location.region.clone()));
        let (answer, fault) = match connected {
            Ok(server) => {
                if let Some(program) = program {
                    self.tunnels.begin(program, server, Arc::clone(&origin.place));
                }
                (Response::new(Body::empty()), None)
            }
            Err(fault) => (self.unconnected(&fault, origin, &target), Some(fault.kind())),
        };
        self.connected(&named, (origin, began), &target, (answer.status(), fault, server));
        answer
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

    fn unconnected(&self, fault: &Fault, origin: &Origin, target: &Target) -> Response<Body> {
        self.faulted(fault, origin, target);
        let mut answer = answer::of_fault(fault, None);
        if fault.kind() == FaultKind::UnknownService {
            *answer.status_mut() = StatusCode::FORBIDDEN;
        }
        answer
    }

    fn nowhere(&self, nobody: &Nobody, named: &str) -> Response<Body> {
        let is_full = matches!(nobody, Nobody::TooMany { .. });
        count(if is_full { &self.services.refused } else { &self.metrics.refused });
        match nobody {
            Nobody::TooMany { .. } => answer::of_http(StatusCode::SERVICE_UNAVAILABLE, format!("{nobody}\n")),
            Nobody::NoHost | Nobody::NoName(_) => {
                let words = format!(
                    "tunnels lead to services of the mesh only, and '{named}' is none; ask for cart.shop:80 to reach shop/cart\n"
                );
                answer::of_http(StatusCode::FORBIDDEN, words)
            }
        }
    }
}
