//! Requests for tunnels: CONNECT and upgrades.

use std::{net::SocketAddr, sync::Arc};

use fairmesh_calls::{
    Body, FaultKind, InstanceId, Region, Tunnel,
    discovery::ServiceState,
    forwarding::{CallInfo, ConnectResult, RouteBackend, open_tunnel, route_backend_name, service_state},
};
use fairmesh_model::HostPort;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio::time::Instant;

use crate::{
    counter::{GaugeGuard, increment},
    forward::{
        connection_info::ConnectionInfo, error_response, forwarder::Forwarder, header_rewrite, host_lookup,
    },
    observe::{
        access_log::entry::{AccessLogEntry, millis, seconds},
        observer::unix_time,
    },
    services::{host_name::HostError, target::Target},
    tunnel::{client_upgrade::ClientUpgrade, hold},
};

/// Value of `allow` when CONNECT is refused: the methods that are allowed everywhere (RFC 9110 10.2.1).
const ALLOWED: HeaderValue = HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");

/// Reason why a tunnel was refused, other than a fault of the service.
enum TunnelRefusal {
    /// The target has no valid port.
    Malformed,
    /// Neither the listener nor a route allows CONNECT.
    NotAllowed,
    /// The client is a pod behind a gateway.
    ByPrincipal,
    /// The target is not a service of this listener.
    NotServed,
    TooManyServices(HostError),
}

/// The outcome of a request for a tunnel.
struct TunnelAttempt {
    caller: SocketAddr,
    began: Instant,
    status: StatusCode,
    fault: Option<FaultKind>,
    server: Option<(InstanceId, Region)>,
    call_info: CallInfo,
}

impl Forwarder {
    /// Opens a tunnel to a server of the requested service, and to no other address: a proxy that connects anywhere
    /// would bypass every firewall of its network. Inside a tunnel, only the routes of the CONNECT request apply. The
    /// listener or one of these routes must therefore allow CONNECT.
    pub(crate) async fn connect<B>(
        &self,
        request: Request<B>,
        client_info: &ConnectionInfo,
    ) -> Response<Body> {
        if let Err(error) = host_lookup::host_header(&request) {
            self.count_host_error(&error);
            return error_response::plain_text(StatusCode::BAD_REQUEST, format!("{error}\n"));
        }
        let (mut parts, _) = request.into_parts();
        let named = parts.uri.authority().map(ToString::to_string).unwrap_or_default();
        let target = match self.tunnel_target(&named, client_info) {
            Ok(target) => target,
            Err(refusal) => return self.refuse(&refusal, &named),
        };
        let began = Instant::now();
        let _in_flight = GaugeGuard::new(&target.metrics.in_flight);
        let client = ClientUpgrade::take(&mut parts.extensions);
        header_rewrite::rewrite_host(&mut parts, client_info);
        client_info.reset_extensions(&mut parts.extensions);
        let call_info = CallInfo::default();
        let request = Request::from_parts(parts, ());
        let opened = open_tunnel(&target.handle, request, client_info.allows_connect, &call_info).await;
        let mut server = None;
        let (response, fault) = match opened {
            Ok(ConnectResult::Tunnel(tunnel)) => {
                server = Some(server_of(&tunnel));
                if let Some(client) = client {
                    self.tunnels.spawn(client, tunnel, hold(Arc::clone(&client_info.permit)));
                }
                (Response::new(Body::empty()), None)
            }
            Ok(ConnectResult::DirectResponse(response)) => (response, None),
            Ok(ConnectResult::NotAllowed) => return self.refuse(&TunnelRefusal::NotAllowed, &named),
            Err(fault) => {
                self.record_fault(&fault, client_info, &target);
                if fault.kind() == FaultKind::UnknownService {
                    return self.refuse(&TunnelRefusal::not_served(client_info), &named);
                }
                (client_info.fault_response(&fault, &target, None), Some(fault.kind()))
            }
        };
        let attempt = TunnelAttempt {
            caller: client_info.caller,
            began,
            status: response.status(),
            fault,
            server,
            call_info,
        };
        self.record_tunnel(&named, &target, attempt);
        response
    }

    /// Returns the service of a tunnel, taken from the request target alone: servers might trust a different header.
    /// On a listener for one service, the target must be the service's own name or a host that its routes match.
    fn tunnel_target(&self, named: &str, client_info: &ConnectionInfo) -> Result<Arc<Target>, TunnelRefusal> {
        // The server would trust requests inside the tunnel, and the callers they state, as if they came from
        // the gateway.
        if client_info.principal.is_some() {
            return Err(TunnelRefusal::ByPrincipal);
        }
        let parsed = HostPort::parse(named).filter(|parsed| parsed.port.is_some_and(|port| port > 0));
        let host = parsed.ok_or(TunnelRefusal::Malformed)?.name();
        let service_host = self.services.without_zone(host);
        let target = match &client_info.service {
            Some(service) => self.services.by_name(service),
            None => client_info.service_of_host(service_host).and_then(|name| self.services.by_name(&name)),
        };
        let target = target.map_err(|error| match error {
            HostError::TooManyServices { .. } => TunnelRefusal::TooManyServices(error),
            HostError::Missing
            | HostError::Malformed(_)
            | HostError::NotAService(_)
            | HostError::Misdirected(_) => TunnelRefusal::not_served(client_info),
        })?;
        let is_own_host = client_info.service.is_none()
            || client_info.service_of_host(service_host).is_ok_and(|name| name == *target.handle.name());
        let is_served = is_own_host
            || matches!(&*service_state(&target.handle), ServiceState::Ready(ready) if ready.upstream.names_host(host));
        if is_served { Ok(target) } else { Err(TunnelRefusal::not_served(client_info)) }
    }

    /// Counts and logs a request for a tunnel.
    fn record_tunnel(&self, named: &str, target: &Target, attempt: TunnelAttempt) {
        let TunnelAttempt { caller, began, status, fault, server, call_info } = attempt;
        let took = began.elapsed();
        let (instance, region) = server.unzip();
        let tunnel = ("CONNECT", status);
        target.metrics.record_response(call_info.route_backend(), region.as_ref(), tunnel, took);
        let RouteBackend { route, backend, .. } =
            route_backend_name(&target.handle, call_info.route_backend());
        self.observer.log_tunnel(fault.is_some(), || AccessLogEntry {
            route,
            backend,
            injected: call_info.injected(),
            time: seconds(unix_time().saturating_sub(took)),
            service: target.handle.name().to_string(),
            method: Method::CONNECT.to_string(),
            path: named.to_owned(),
            status: status.as_u16(),
            ms: millis(took),
            total_ms: millis(took),
            caller: caller.to_string(),
            fault: fault.map(FaultKind::label),
            instance: instance.map(|instance| instance.to_string()),
            region: region.map(|region| region.to_string()),
            bytes_out: Some(0),
            ..AccessLogEntry::default()
        });
    }

    /// The response to a refused tunnel request.
    fn refuse(&self, refusal: &TunnelRefusal, named: &str) -> Response<Body> {
        let is_full = matches!(refusal, TunnelRefusal::TooManyServices(_));
        increment(if is_full { &self.services.refused } else { &self.metrics.requests.unsupported });
        let (status, message) = refusal.status_and_message(named);
        let mut response = error_response::plain_text(status, message + "\n");
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, ALLOWED);
        }
        response
    }
}

impl TunnelRefusal {
    fn status_and_message(&self, named: &str) -> (StatusCode, String) {
        match self {
            Self::Malformed => (
                StatusCode::BAD_REQUEST,
                format!(
                    "CONNECT requires a host and a port from 1 to 65535, unlike '{named}'; request cart.shop:80 \
                     to reach shop/cart"
                ),
            ),
            Self::NotAllowed => {
                let message = "CONNECT is not allowed here: start the listener with +connect, or name CONNECT \
                               in match.methods of a route";
                (StatusCode::METHOD_NOT_ALLOWED, message.to_owned())
            }
            Self::ByPrincipal => {
                let message = "CONNECT is not allowed through a gateway, since no policy sees what is in a tunnel; \
                               send the requests themselves";
                (StatusCode::METHOD_NOT_ALLOWED, message.to_owned())
            }
            Self::NotServed => (
                StatusCode::FORBIDDEN,
                format!(
                    "'{named}' is not a service of this listener, and tunnels lead to no other address; request \
                     cart.shop:80 to reach shop/cart"
                ),
            ),
            Self::TooManyServices(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        }
    }

    /// Refusal of a target that is not served. On a listener without CONNECT, it reveals nothing about the target.
    fn not_served(client_info: &ConnectionInfo) -> Self {
        if client_info.allows_connect { Self::NotServed } else { Self::NotAllowed }
    }
}

fn server_of(tunnel: &Tunnel) -> (InstanceId, Region) {
    let server = tunnel.endpoint();
    (server.instance.clone(), server.location.region.clone())
}
