//! Protects the page and its reader against other pages in the browser.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

/// Allows only scripts, styles and connections of this origin, and nothing inline. Names of callers thus cannot
/// become scripts, and the page fetches nothing from elsewhere.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every response.
static HEADERS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Host names under which browsers may address the page.
///
/// A page of another site can make its own name resolve to this address (DNS rebinding), and then reads as if it were
/// of this origin. Requests for names that are not listed are therefore refused. IP addresses and `localhost` are
/// always admitted: no site owns an IP address as its name, and the browser itself resolves `localhost`.
#[derive(Clone, Debug, Default)]
pub struct HostNames(BTreeSet<String>);

impl HostNames {
    /// Creates a list of names. Case does not matter.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether a `Host` header, with or without a port, names an admitted host.
    fn admit(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        name == "localhost"
            || name.ends_with(".localhost")
            || address.parse::<IpAddr>().is_ok()
            || self.0.contains(&name)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Refuses requests for other hosts, and adds the headers to responses.
pub(crate) async fn guard(State(names): State<Arc<HostNames>>, request: Request, next: Next) -> Response {
    let mut response = match addressed_host(&request) {
        Some(host) if names.admit(host) => next.run(request).await,
        _ => misdirected(),
    };
    for (name, value) in &HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Returns the host of a request. In HTTP/2 it is in the URL.
fn addressed_host(request: &Request) -> Option<&str> {
    let in_url = request.uri().authority().map(|authority| authority.as_str());
    in_url.or_else(|| request.headers().get(header::HOST)?.to_str().ok())
}

fn misdirected() -> Response {
    let text = "this name is not one of the control plane; open the page by IP address or localhost, or start the control \
                plane with --admin-name NAME\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn web_page_admits_only_own_host_names_ip_addresses_and_localhost() {
        let names = HostNames::new(["Control.Example".to_owned()]);
        for own in [
            "127.0.0.1:7401",
            "[::1]:7401",
            "10.0.0.1",
            "localhost",
            "ui.localhost:1",
            "control.example:7401",
        ] {
            assert!(names.admit(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "control.example.evil",
            "localhost.evil:80",
            "127.0.0.1.evil",
            "[::1",
            "a:b:c",
        ] {
            assert!(!names.admit(other), "{other}");
        }
    }
}
