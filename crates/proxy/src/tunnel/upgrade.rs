//! What a request says of another protocol than HTTP.

use fairmesh_http::h2;
use http::{Extensions, HeaderMap, HeaderValue, header, request::Parts};

use crate::http1::upgrade::{OnUpgrade, UpgradedStream};

/// Protocols that concern one connection alone and not what it is used for; they are ignored, as RFC 9110 7.8 allows.
const HOP_BY_HOP_PROTOCOLS: [&str; 3] = ["h2c", "http", "tls"];

/// A program's side of a connection that is to carry bytes.
#[derive(Debug)]
pub(crate) enum ClientUpgrade {
    /// All of a connection.
    Connection(OnUpgrade),
    /// One stream of it.
    Stream(h2::Switch),
}

impl ClientUpgrade {
    /// Takes it from a request that may become one.
    pub(crate) fn take(extensions: &mut Extensions) -> Option<Self> {
        let connection = extensions.remove().map(Self::Connection);
        connection.or_else(|| extensions.remove().map(Self::Stream))
    }

    /// Waits until its program was told; `None` where it was told something else.
    pub(crate) async fn upgraded(self) -> Option<Box<dyn UpgradedStream>> {
        match self {
            Self::Connection(on_upgrade) => on_upgrade.upgraded().await,
            Self::Stream(switch) => Some(Box::new(switch.begun().await?)),
        }
    }
}

/// A wish to speak another protocol with the server.
#[derive(Debug)]
pub(crate) struct UpgradeRequest {
    protocol: HeaderValue,
    pub(crate) client: ClientUpgrade,
}

impl UpgradeRequest {
    /// Takes the wish from a request, where it has one that is passed on.
    pub(crate) fn take(parts: &mut Parts) -> Option<Self> {
        let client = ClientUpgrade::Connection(parts.extensions.remove()?);
        let protocol = upgrade_protocol(&parts.headers)?.clone();
        Some(Self { protocol, client })
    }

    /// Asks the server for the same.
    pub(crate) fn apply(&self, headers: &mut HeaderMap) {
        set_upgrade_headers(headers, self.protocol.clone());
    }
}

/// Says in a head what comes after it.
pub(crate) fn set_upgrade_headers(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// What a request asks for that may have another protocol. Two answers to it would be ambiguous.
fn upgrade_protocol(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut named = headers.get_all(header::UPGRADE).into_iter();
    let (only, None) = (named.next()?, named.next()) else { return None };
    let names = only.to_str().ok()?.split(',').map(|word| word.trim().split('/').next().unwrap_or_default());
    let is_hop_by_hop = |name: &str| HOP_BY_HOP_PROTOCOLS.iter().any(|own| own.eq_ignore_ascii_case(name));
    (!names.clone().any(is_hop_by_hop) && names.clone().all(|name| !name.is_empty())).then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(named: &[&'static str]) -> Option<String> {
        let named = named.iter().map(|named| (header::UPGRADE, HeaderValue::from_static(named)));
        let headers = named.collect::<HeaderMap>();
        upgrade_protocol(&headers).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn hop_by_hop_protocols_are_not_forwarded() {
        for passed_on in ["websocket", "WebSocket", "tcp", "chat/2, websocket"] {
            assert_eq!(asked(&[passed_on]).as_deref(), Some(passed_on));
        }
        for ignored in ["h2c", "H2C, websocket", "TLS/1.2", "HTTP/2.0", "", "websocket,,x"] {
            assert_eq!(asked(&[ignored]), None, "{ignored}");
        }
        assert_eq!(asked(&["websocket", "chat"]), None);
    }
}
