//! What a request says of another protocol than HTTP.

use fairmesh_client::{http1::says_upgrade, http2};
use http::{Extensions, HeaderMap, HeaderValue, Version, header, request::Parts};
use hyper::upgrade::OnUpgrade;

/// Protocols that concern one connection alone and not what it is used for; they are ignored, as RFC 9110 7.8 allows.
const OF_CONNECTIONS: [&str; 3] = ["h2c", "http", "tls"];

/// A program's side of a connection that is to carry bytes.
#[derive(Debug)]
pub(crate) enum Program {
    /// All of a connection.
    Whole(OnUpgrade),
    /// One stream of it.
    Stream(http2::Switch),
}

impl Program {
    /// Takes it from a request that may become one.
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        let whole = extensions.remove().map(Self::Whole);
        whole.or_else(|| extensions.remove().map(Self::Stream))
    }
}

/// A wish to speak another protocol with the server.
#[derive(Debug)]
pub(crate) struct Switch {
    protocol: HeaderValue,
    pub(crate) program: Program,
}

impl Switch {
    /// Takes the wish from a request, where it has one that is passed on.
    pub(crate) fn take(head: &mut Parts) -> Option<Self> {
        let program = Program::Whole(head.extensions.remove()?);
        let protocol = protocol(head)?.clone();
        Some(Self { protocol, program })
    }

    /// Asks the server for the same.
    pub(crate) fn ask(&self, headers: &mut HeaderMap) {
        mark(headers, self.protocol.clone());
    }
}

/// Says in a head what comes after it.
pub(crate) fn mark(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// What a request asks for. Only HTTP/1.1 has a way to ask, and two answers to it would be ambiguous.
fn protocol(head: &Parts) -> Option<&HeaderValue> {
    if head.version != Version::HTTP_11 || !says_upgrade(&head.headers) {
        return None;
    }
    let mut named = head.headers.get_all(header::UPGRADE).into_iter();
    let (only, None) = (named.next()?, named.next()) else { return None };
    let names = only.to_str().ok()?.split(',').map(|word| word.trim().split('/').next().unwrap_or_default());
    let ours = |name: &str| OF_CONNECTIONS.iter().any(|own| own.eq_ignore_ascii_case(name));
    (!names.clone().any(ours) && names.clone().all(|name| !name.is_empty())).then_some(only)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn asked(version: Version, fields: &[(&str, &str)]) -> Option<String> {
        let mut request = Request::get("http://cart.shop/").version(version);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        protocol(&head).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn protocols_of_use_are_passed_on_and_those_of_a_connection_are_not() {
        let upgrade = ("connection", "keep-alive, Upgrade");
        for passed_on in ["websocket", "WebSocket", "tcp", "chat/2, websocket"] {
            let fields = [upgrade, ("upgrade", passed_on)];
            assert_eq!(asked(Version::HTTP_11, &fields).as_deref(), Some(passed_on));
            assert_eq!(asked(Version::HTTP_10, &fields), None);
            assert_eq!(asked(Version::HTTP_11, &fields[1..]), None, "it is not the connection's");
        }
        for ignored in ["h2c", "H2C, websocket", "TLS/1.2", "HTTP/2.0", "", "websocket,,x"] {
            assert_eq!(asked(Version::HTTP_11, &[upgrade, ("upgrade", ignored)]), None, "{ignored}");
        }
        let twice = [upgrade, ("upgrade", "websocket"), ("upgrade", "chat")];
        assert_eq!(asked(Version::HTTP_11, &twice), None);
    }
}
