use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr};

use fairmesh_calls::ServiceName;
use fairmesh_edge::{
    forward::mesh_boundary::Boundary,
    listen::proxy_protocol::Version,
    server::options::{ServeOptions, ServedProtocol},
    tls::certificate_files::TlsError,
};
use fairmesh_kernel::DEFAULT_PINS;
use fairmesh_model::Invalid;

/// Configuration of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Address to bind.
    pub address: SocketAddr,
    /// Protocol, and the service if the listener has a fixed one.
    pub kind: ListenerKind,
    /// Whether each connection must begin with a PROXY protocol header from a load balancer in front. Connections
    /// without it are refused.
    pub accept_proxy: bool,
    /// Whether TLS is terminated, after the PROXY protocol header.
    pub tls: bool,
    /// Whether all HTTP clients may use CONNECT. Otherwise CONNECT requires a route that names the method.
    pub connect: bool,
    /// Whether clients are programs of the mesh, even if the listener has TLS, a load balancer in front, or an
    /// address that other machines reach.
    pub mesh: bool,
    /// Whether responses to clients outside the mesh name the servers that were tried, if clients ask with
    /// `x-fairmesh-explain`.
    pub explain: bool,
}

/// The protocol of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenerKind {
    /// HTTP.
    Http {
        /// The service of all requests. `None`: the host of each request names its service.
        service: Option<ServiceName>,
    },
    /// TCP connections of any protocol.
    Tcp {
        /// The service of all connections.
        service: ServiceName,
        /// Version of the PROXY protocol header that is sent to the server on each connection.
        send_proxy: Option<Version>,
    },
    /// Connections to other addresses that the system redirects here. HTTP requests to services are routed by
    /// host; other traffic continues to its original destination.
    Captured {
        /// Refuses traffic that is not to services.
        only_services: bool,
        /// Also accepts connections that keep their original destination address (`IP_TRANSPARENT`), for
        /// traffic that this machine forwards as a router.
        transparent: bool,
    },
    /// Connections that eBPF programs redirect here (`fairmesh kernel attach`). They are served like captured
    /// ones.
    Kernel {
        /// Refuses traffic that is not to services.
        only_services: bool,
        /// Where the maps of the programs are pinned.
        pins: PathBuf,
    },
}

/// Prefixes and options of the textual form.
const TCP: &str = "tcp:";
const CAPTURE: &str = "capture:";
const KERNEL: &str = "kernel:";
const BPFFS: &str = "bpffs=";
const ONLY_SERVICES: &str = "only-services";
const TRANSPARENT: &str = "transparent";
const ACCEPT_PROXY: &str = "accept-proxy";
const TLS: &str = "tls";
const CONNECT: &str = "connect";
const MESH: &str = "mesh";
const EXPLAIN: &str = "explain";
const SEND_PROXY: &str = "send-proxy";
const SEND_PROXY_V2: &str = "send-proxy-v2";

impl ListenerConfig {
    /// The fixed service, if there is one.
    pub fn service(&self) -> Option<&ServiceName> {
        match &self.kind {
            ListenerKind::Http { service } => service.as_ref(),
            ListenerKind::Tcp { service, .. } => Some(service),
            ListenerKind::Captured { .. } | ListenerKind::Kernel { .. } => None,
        }
    }

    /// How connections are served; `None` for redirected connections.
    pub(crate) fn serve_options(&self) -> Option<ServeOptions> {
        let protocol = match self.kind.clone() {
            ListenerKind::Http { service } => ServedProtocol::Http { service },
            ListenerKind::Tcp { service, send_proxy } => ServedProtocol::Tcp { service, send_proxy },
            ListenerKind::Captured { .. } | ListenerKind::Kernel { .. } => return None,
        };
        let Self { accept_proxy, tls, connect, .. } = *self;
        Some(ServeOptions { protocol, accept_proxy, tls, connect, boundary: self.boundary() })
    }

    /// The border of the mesh, if the listener is at the border. Only programs of this machine reach a listener on
    /// loopback, unless TLS or a load balancer indicates other clients.
    fn boundary(&self) -> Option<Boundary> {
        let is_reached_by_others = self.tls || self.accept_proxy || !self.address.ip().is_loopback();
        (is_reached_by_others && !self.mesh).then_some(Boundary { explains: self.explain })
    }

    /// Name of the listener's target, for the log.
    pub(crate) fn description(&self) -> String {
        match (&self.kind, self.service()) {
            (_, Some(service)) => service.to_string(),
            (ListenerKind::Captured { .. }, None) => "captured".into(),
            (ListenerKind::Kernel { .. }, None) => "redirected by eBPF".into(),
            (_, None) => "by host".into(),
        }
    }
}

/// Checks that a certificate is configured if, and only if, a listener uses TLS.
///
/// # Errors
/// A certificate is missing or unused.
pub fn check_tls(listen: &[ListenerConfig], has_certificate: bool) -> Result<(), TlsError> {
    match (listen.iter().any(|listen| listen.tls), has_certificate) {
        (true, false) => Err(TlsError::Missing),
        (false, true) => Err(TlsError::Unused),
        (true, true) | (false, false) => Ok(()),
    }
}

impl FromStr for ListenerConfig {
    type Err = Invalid;

    /// Parses `127.0.0.1:8080`, `127.0.0.1:8080=shop/cart` or `tcp:127.0.0.1:5432=shop/db`, each with the options
    /// `+accept-proxy` and `+tls`, for HTTP also `+connect`, `+mesh` and `+explain`, and for TCP also `+send-proxy` or `+send-proxy-v2`; or
    /// `capture:127.0.0.1:7415` with the options `+only-services`, `+transparent` and `+connect`; or
    /// `kernel:127.0.0.1:7416` with the options `+only-services`, `+connect` and `+bpffs=PATH`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        if let Some(rest) = text.strip_prefix(CAPTURE) {
            return captured(rest);
        }
        if let Some(rest) = text.strip_prefix(KERNEL) {
            return kernel(rest);
        }
        let mut parts = text.split('+');
        let main = parts.next().unwrap_or_default();
        let (tcp, main) = main.strip_prefix(TCP).map_or((false, main), |rest| (true, rest));
        let (address, service) = match main.split_once('=') {
            Some((address, service)) => (address, Some(ServiceName::new(service)?)),
            None => (main, None),
        };
        let address = address.parse().map_err(|_| {
            let problem = format!("'{address}' is not an IP address with a port");
            Invalid::new("", problem, "write IP:PORT, IP:PORT=tenant/service or tcp:IP:PORT=tenant/service")
        })?;
        let (mut accept_proxy, mut tls, mut connect, mut send_proxy) = (false, false, false, None);
        let (mut mesh, mut explain) = (false, false);
        for option in parts {
            match option {
                ACCEPT_PROXY => accept_proxy = true,
                TLS => tls = true,
                CONNECT if !tcp => connect = true,
                MESH if !tcp => mesh = true,
                EXPLAIN if !tcp => explain = true,
                SEND_PROXY if tcp => send_proxy = Some(Version::V1),
                SEND_PROXY_V2 if tcp => send_proxy = Some(Version::V2),
                other => return Err(unknown_option(other)),
            }
        }
        let kind = match (tcp, service) {
            (false, service) => ListenerKind::Http { service },
            (true, Some(service)) => ListenerKind::Tcp { service, send_proxy },
            (true, None) => return Err(no_service(text)),
        };
        Ok(Self { address, kind, accept_proxy, tls, connect, mesh, explain })
    }
}

fn captured(text: &str) -> Result<ListenerConfig, Invalid> {
    let mut parts = text.split('+');
    let main = parts.next().unwrap_or_default();
    let address: SocketAddr = main.parse().map_err(|_| {
        let problem = format!("'{main}' is not an IP address with a port");
        Invalid::new("", problem, "write capture:IP:PORT; the hosts of requests name their services")
    })?;
    let (mut only_services, mut transparent, mut connect) = (false, false, false);
    for option in parts {
        match option {
            ONLY_SERVICES => only_services = true,
            TRANSPARENT => transparent = true,
            CONNECT => connect = true,
            other => {
                let problem = format!("'{other}' is not an option of this listener");
                let hint = "write capture:IP:PORT, and behind it +only-services, +transparent or +connect";
                return Err(Invalid::new("", problem, hint));
            }
        }
    }
    if transparent && (address.ip().is_unspecified() || address.port() == 0) {
        let problem = format!("'{address}' cannot distinguish captured connections from direct ones");
        return Err(Invalid::new(
            "",
            problem,
            "name one address and port, such as capture:127.0.0.1:7415+transparent",
        ));
    }
    let kind = ListenerKind::Captured { only_services, transparent };
    Ok(redirected(address, kind, connect))
}

fn kernel(text: &str) -> Result<ListenerConfig, Invalid> {
    let mut parts = text.split('+');
    let main = parts.next().unwrap_or_default();
    let address: SocketAddr = main.parse().ok().filter(SocketAddr::is_ipv4).ok_or_else(|| {
        let problem = format!("'{main}' is not an IPv4 address with a port");
        Invalid::new("", problem, "write kernel:IP:PORT; the hosts of requests name their services")
    })?;
    let (mut only_services, mut connect, mut pins) = (false, false, PathBuf::from(DEFAULT_PINS));
    for option in parts {
        match option {
            ONLY_SERVICES => only_services = true,
            CONNECT => connect = true,
            other => {
                pins = other.strip_prefix(BPFFS).map(PathBuf::from).ok_or_else(|| {
                    let problem = format!("'{other}' is not an option of this listener");
                    let hint = "write kernel:IP:PORT, and behind it +only-services, +connect or +bpffs=PATH";
                    Invalid::new("", problem, hint)
                })?;
            }
        }
    }
    let kind = ListenerKind::Kernel { only_services, pins };
    Ok(redirected(address, kind, connect))
}

/// A listener for connections of programs that the system redirects.
fn redirected(address: SocketAddr, kind: ListenerKind, connect: bool) -> ListenerConfig {
    ListenerConfig { address, kind, accept_proxy: false, tls: false, connect, mesh: true, explain: false }
}

fn unknown_option(option: &str) -> Invalid {
    let problem = format!("'{option}' is not an option of this listener");
    let hint = "write +accept-proxy or +tls, for HTTP also +connect, +mesh or +explain, or for tcp: also +send-proxy or \
                +send-proxy-v2";
    Invalid::new("", problem, hint)
}

fn no_service(text: &str) -> Invalid {
    let problem = format!("'{text}' has no service, which TCP connections do not name");
    Invalid::new("", problem, "write tcp:IP:PORT=tenant/service")
}

impl fmt::Display for ListenerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, send_proxy, (only_services, transparent)) = match &self.kind {
            ListenerKind::Http { .. } => ("", None, (false, false)),
            ListenerKind::Tcp { send_proxy, .. } => (TCP, *send_proxy, (false, false)),
            ListenerKind::Captured { only_services, transparent } => {
                (CAPTURE, None, (*only_services, *transparent))
            }
            ListenerKind::Kernel { only_services, .. } => (KERNEL, None, (*only_services, false)),
        };
        write!(f, "{prefix}{}", self.address)?;
        if let Some(service) = self.service() {
            write!(f, "={service}")?;
        }
        let send_proxy = send_proxy.map(|version| match version {
            Version::V1 => SEND_PROXY,
            Version::V2 => SEND_PROXY_V2,
        });
        let accept_proxy = self.accept_proxy.then_some(ACCEPT_PROXY);
        let tls = self.tls.then_some(TLS);
        let connect = self.connect.then_some(CONNECT);
        let only_services = only_services.then_some(ONLY_SERVICES);
        let transparent = transparent.then_some(TRANSPARENT);
        let is_http = matches!(self.kind, ListenerKind::Http { .. });
        let (mesh, explain) = ((self.mesh && is_http).then_some(MESH), self.explain.then_some(EXPLAIN));
        let options = [accept_proxy, tls, send_proxy, only_services, transparent, connect, mesh, explain];
        options.into_iter().flatten().try_for_each(|option| write!(f, "+{option}"))?;
        match &self.kind {
            ListenerKind::Kernel { pins, .. } if pins.as_os_str() != DEFAULT_PINS => {
                write!(f, "+{BPFFS}{}", pins.display())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_listeners_parse_as_displayed() {
        for text in [
            "127.0.0.1:8080=shop/cart",
            "[::1]:80",
            "127.0.0.1:80+accept-proxy",
            "tcp:127.0.0.1:5432=shop/db",
            "tcp:[::1]:5432=shop/db+accept-proxy+send-proxy",
            "tcp:127.0.0.1:5432=shop/db+send-proxy-v2",
            "127.0.0.1:443+tls",
            "127.0.0.1:8080=shop/cart+tls+connect",
            "10.0.0.7:80+mesh",
            "10.0.0.7:443+tls+explain",
            "capture:127.0.0.1:7415+only-services+connect",
            "tcp:127.0.0.1:5432=shop/db+accept-proxy+tls+send-proxy",
            "capture:127.0.0.1:7415",
            "capture:[::1]:7415+only-services",
            "capture:127.0.0.1:7415+only-services+transparent",
            "kernel:127.0.0.1:7416",
            "kernel:127.0.0.1:7416+only-services+connect+bpffs=/run/bpf/fairmesh",
        ] {
            assert_eq!(text.parse::<ListenerConfig>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn listeners_reachable_from_outside_are_mesh_boundaries() {
        let boundary = |text: &str| text.parse::<ListenerConfig>().unwrap().boundary();
        let hides = Some(Boundary { explains: false });
        for (text, expected) in [
            ("127.0.0.1:80", None),
            ("[::1]:80=shop/cart", None),
            ("capture:10.0.0.7:7415", None),
            ("10.0.0.7:80+mesh", None),
            ("10.0.0.7:80", hides),
            ("0.0.0.0:443+tls", hides),
            ("127.0.0.1:80+accept-proxy", hides),
            ("127.0.0.1:443+tls+explain", Some(Boundary { explains: true })),
        ] {
            assert_eq!(boundary(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_proxy_listeners_are_refused_with_hint() {
        for (wrong, hint) in [
            ("8080", "IP:PORT"),
            ("127.0.0.1:8080=cart", "tenant"),
            ("localhost:80", "IP:PORT"),
            ("", "IP:PORT"),
            ("tcp:127.0.0.1:5432", "tcp:IP:PORT=tenant/service"),
            ("127.0.0.1:80+send-proxy", "+accept-proxy"),
            ("127.0.0.1:80+ssl", "+tls"),
            ("tcp:127.0.0.1:80=shop/db+connect", "for HTTP also +connect"),
            ("tcp:127.0.0.1:80=shop/db+mesh", "for HTTP also"),
            ("capture:127.0.0.1:7415=shop/cart", "hosts of requests"),
            ("capture:127.0.0.1:7415+accept-proxy", "+only-services"),
            ("capture:0.0.0.0:7415+transparent", "one address"),
            ("capture:127.0.0.1:0+transparent", "one address"),
            ("kernel:[::1]:7416", "IPv4"),
            ("kernel:127.0.0.1:7416+tls", "+bpffs"),
        ] {
            let error = wrong.parse::<ListenerConfig>().unwrap_err();
            assert!(error.hint.contains(hint) || error.problem.contains(hint), "{wrong}: {error:?}");
        }
    }
}
