//! Requests to upgrade to another protocol.

use fairmesh_http::h2;
use http::{Extensions, HeaderMap, HeaderValue, header, request::Parts};

use crate::http1::upgraded_stream::{OnUpgrade, UpgradedStream};

/// Protocols that concern only one hop. Requests to upgrade to them are ignored, as RFC 9110 7.8 allows.
const HOP_BY_HOP_PROTOCOLS: [&str; 3] = ["h2c", "http", "tls"];

/// The client side of a future tunnel.
#[derive(Debug)]
pub struct ClientUpgrade(ClientSide);

#[derive(Debug)]
enum ClientSide {
    /// A whole connection.
    Connection(OnUpgrade),
    /// One HTTP/2 stream.
    Stream(h2::PendingTunnel),
}

impl ClientUpgrade {
    /// Takes the client side out of a request's extensions.
    pub fn take(extensions: &mut Extensions) -> Option<Self> {
        let connection = extensions.remove().map(ClientSide::Connection);
        connection.or_else(|| extensions.remove().map(ClientSide::Stream)).map(Self)
    }

    /// Waits until the response is sent. `None` if the response did not upgrade the connection.
    pub(crate) async fn upgraded(self) -> Option<Box<dyn UpgradedStream>> {
        match self.0 {
            ClientSide::Connection(on_upgrade) => on_upgrade.upgraded().await,
            ClientSide::Stream(switch) => Some(Box::new(switch.begun().await?)),
        }
    }
}

/// A request for an upgrade.
#[derive(Debug)]
pub struct UpgradeRequest {
    protocol: HeaderValue,
    pub(crate) client: ClientUpgrade,
}

impl UpgradeRequest {
    /// Takes the upgrade out of a request. `None` if it has no upgrade that can be forwarded.
    pub fn take(parts: &mut Parts) -> Option<Self> {
        let client = ClientUpgrade(ClientSide::Connection(parts.extensions.remove()?));
        let protocol = upgrade_protocol(&parts.headers)?.clone();
        Some(Self { protocol, client })
    }

    /// Requests the same upgrade from the server.
    pub fn apply(&self, headers: &mut HeaderMap) {
        set_upgrade_headers(headers, self.protocol.clone());
    }
}

/// Sets the headers of an upgrade.
pub(crate) fn set_upgrade_headers(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

/// The requested protocol. `None` if the header is repeated, which would be ambiguous.
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
    fn upgrade_to_hop_by_hop_protocols_is_not_forwarded() {
        for passed_on in ["websocket", "WebSocket", "tcp", "chat/2, websocket"] {
            assert_eq!(asked(&[passed_on]).as_deref(), Some(passed_on));
        }
        for ignored in ["h2c", "H2C, websocket", "TLS/1.2", "HTTP/2.0", "", "websocket,,x"] {
            assert_eq!(asked(&[ignored]), None, "{ignored}");
        }
        assert_eq!(asked(&["websocket", "chat"]), None);
    }
}
