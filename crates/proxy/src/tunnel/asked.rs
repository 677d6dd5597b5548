//! What a request says of another protocol than HTTP.

use fairmesh_http::h2;
use http::{Extensions, HeaderMap, HeaderValue, header, request::Parts};

use crate::lean::{self, Stream};

/// Protocols that concern one connection alone and not what it is used for; they are ignored, as RFC 9110 7.8 allows.
const OF_CONNECTIONS: [&str; 3] = ["h2c", "http", "tls"];

/// A program's side of a connection that is to carry bytes.
#[derive(Debug)]
pub(crate) enum Program {
    /// All of a connection.
    Whole(lean::Switch),
    /// One stream of it.
    Stream(h2::PendingTunnel),
}

impl Program {
    /// Takes it from a request that may become one.
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        let whole = extensions.remove().map(Self::Whole);
        whole.or_else(|| extensions.remove().map(Self::Stream))
    }

    /// Waits until its program was told; `None` where it was told something else.
    pub(super) async fn begun(self) -> Option<Box<dyn Stream>> {
        match self {
            Self::Whole(switch) => switch.begun().await,
            Self::Stream(switch) => Some(Box::new(switch.begun().await?)),
        }
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
        let protocol = protocol(&head.headers)?.clone();
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

/// What a request asks for that may have another protocol. Two answers to it would be ambiguous.
fn protocol(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut named = headers.get_all(header::UPGRADE).into_iter();
    let (only, None) = (named.next()?, named.next()) else { return None };
    let names = only.to_str().ok()?.split(',').map(|word| word.trim().split('/').next().unwrap_or_default());
    let ours = |name: &str| OF_CONNECTIONS.iter().any(|own| own.eq_ignore_ascii_case(name));
    (!names.clone().any(ours) && names.clone().all(|name| !name.is_empty())).then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(named: &[&'static str]) -> Option<String> {
        let named = named.iter().map(|named| (header::UPGRADE, HeaderValue::from_static(named)));
        let headers = named.collect::<HeaderMap>();
        protocol(&headers).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn protocols_of_use_are_passed_on_and_those_of_a_connection_are_not() {
        for passed_on in ["websocket", "WebSocket", "tcp", "chat/2, websocket"] {
            assert_eq!(asked(&[passed_on]).as_deref(), Some(passed_on));
        }
        for ignored in ["h2c", "H2C, websocket", "TLS/1.2", "HTTP/2.0", "", "websocket,,x"] {
            assert_eq!(asked(&[ignored]), None, "{ignored}");
        }
        assert_eq!(asked(&["websocket", "chat"]), None);
    }
}
