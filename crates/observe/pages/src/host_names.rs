//! Protects pages against pages of other sites in a browser that reaches them.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header};

/// Headers that browsers send, and programs such as Prometheus do not: always `accept-language`, which scripts can
/// change and not leave out, and the others by circumstances.
static OF_BROWSERS: [HeaderName; 4] =
    [header::ACCEPT_LANGUAGE, header::ORIGIN, header::REFERER, HeaderName::from_static(FETCH_SITE)];
/// Browsers send both, to addresses with `https` and to those of their own machine.
const FETCH_SITE: &str = "sec-fetch-site";
const FETCH_MODE: &str = "sec-fetch-mode";
/// Pages that say whether a process is ready, and why not. Uptime monitors, which call themselves browsers, read them
/// by any name.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Host names under which browsers may address pages.
///
/// A page of another site can make its own name resolve to this address (DNS rebinding), and then reads as if it were
/// of this origin. Requests of browsers for names that are not listed are therefore refused. IP addresses and
/// `localhost` are always admitted: no site owns an IP address as its name, and the browser itself resolves
/// `localhost`.
#[derive(Clone, Debug, Default)]
pub struct HostNames(BTreeSet<String>);

impl HostNames {
    /// Creates a list of names. Case does not matter.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether a request is for an admitted host, with or without a port. In HTTP/2 the host is in the URL.
    pub fn admit<B>(&self, request: &http::Request<B>) -> bool {
        let in_url = request.uri().authority().map(|authority| authority.as_str());
        let in_header = || request.headers().get(header::HOST)?.to_str().ok();
        in_url.or_else(in_header).is_some_and(|host| self.has(host))
    }

    fn has(&self, host: &str) -> bool {
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

/// Refuses requests of browsers for other hosts. Programs may use any name: monitoring reaches processes by names that
/// these do not know.
pub(crate) async fn guard(State(names): State<Arc<HostNames>>, request: Request, next: Next) -> Response {
    if OPEN.contains(&request.uri().path()) || !is_of_browser(request.headers()) || names.admit(&request) {
        return next.run(request).await;
    }
    let text = "browsers read this page by IP address or localhost, and that of a control plane by the names of \
                --admin-name too; use one of these in the URL\n";
    (StatusCode::MISDIRECTED_REQUEST, text).into_response()
}

fn is_of_browser(headers: &HeaderMap) -> bool {
    let agent =
        headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"));
    let is_exempt = |name: &HeaderName| *name == header::ACCEPT_LANGUAGE && is_of_node(headers);
    agent || OF_BROWSERS.iter().any(|name| headers.contains_key(name) && !is_exempt(name))
}

/// Whether the `fetch` of Node sent the request: it sends `accept-language: *` and a mode without a site. A script in a
/// browser cannot do this, because it sets no header that begins with `sec-`, and browsers send the mode with the site.
fn is_of_node(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT_LANGUAGE).is_some_and(|language| language == "*")
        && headers.contains_key(FETCH_MODE)
        && !headers.contains_key(FETCH_SITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_admit_only_own_host_names_ip_addresses_and_localhost() {
        let names = HostNames::new(["Control.Example".to_owned()]);
        for own in [
            "127.0.0.1:7401",
            "[::1]:7401",
            "10.0.0.1",
            "localhost",
            "ui.localhost:1",
            "control.example:7401",
        ] {
            assert!(names.has(own), "{own}");
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
            assert!(!names.has(other), "{other}");
        }
    }
}
