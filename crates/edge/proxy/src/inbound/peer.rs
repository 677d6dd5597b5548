//! The peer of a caller's connection.

use std::{fmt::Write as _, net::SocketAddr, sync::Arc};

use fairmesh_edge::observe::served_metrics::ServedCaller;
use fairmesh_identity::sha256;
use fairmesh_listen::GuardedStream;
use fairmesh_model::{Identity, SpiffeId};
use fairmesh_server::{Caller, Stream, identity_of};
use http::HeaderValue;

/// Data that all requests of a connection share.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) identity: Identity,
    /// The peer's verified identity, in the form that programs and counters use.
    pub(crate) caller: Option<Caller>,
    pub(crate) served: Option<Arc<ServedCaller>>,
    /// Value of `x-forwarded-client-cert` for the peer's requests.
    pub(crate) certificate: Option<HeaderValue>,
}

impl Peer {
    /// The peer of a connection. `own` is this server's identity. `None` if the connection has failed.
    pub(crate) fn of(stream: &GuardedStream<Stream>, own: Option<&SpiffeId>) -> Option<Self> {
        let address = stream.get_ref().tcp()?.peer_addr().ok()?;
        let identity = identity_of(stream);
        let certificate = match stream.get_ref() {
            Stream::Tls(stream) => stream.peer_certificate(),
            Stream::Tcp(_) | Stream::Unix(_) => None,
        };
        let caller = Caller::of(&identity);
        let certificate = caller.as_ref().zip(certificate).and_then(|(caller, certificate)| {
            let element = certificate_element(caller.id(), certificate, own);
            // SPIFFE IDs are ASCII without controls.
            HeaderValue::try_from(element).ok()
        });
        let served = caller.as_ref().map(|caller| Arc::new(ServedCaller::new(caller.verified())));
        Some(Self { address, identity, caller, served, certificate })
    }

    /// The caller of an accepted request: the peer, or the caller that an intermediary states.
    pub(crate) fn served_caller(&self, caller: Option<&Caller>) -> Option<Arc<ServedCaller>> {
        let caller = caller?;
        match &self.served {
            Some(peer) if caller.via().is_none() => Some(Arc::clone(peer)),
            _ => Some(Arc::new(ServedCaller::new(caller.verified()))),
        }
    }
}

/// Element of `x-forwarded-client-cert` for one hop, in Envoy's format: the recipient of the certificate, the
/// certificate's SHA-256, and the identity in it. There is only one element, because it contains only what this hop
/// has verified.
fn certificate_element(peer: &SpiffeId, certificate: &[u8], own: Option<&SpiffeId>) -> String {
    let mut element = own.map(|own| format!("By={own};")).unwrap_or_default();
    element.push_str("Hash=");
    for byte in sha256(certificate) {
        // Writing to a `String` cannot fail.
        let _ = write!(element, "{byte:02x}");
    }
    let _ = write!(element, ";URI={peer}");
    element
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_certificate_header_has_envoy_format() {
        let id = |text: &str| text.parse::<SpiffeId>().unwrap();
        let (web, cart) = (id("spiffe://prod/shop/web"), id("spiffe://prod/shop/cart"));
        // SHA-256 of "abc" (FIPS 180-2, appendix B.1).
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            certificate_element(&web, b"abc", Some(&cart)),
            format!("By=spiffe://prod/shop/cart;Hash={hash};URI=spiffe://prod/shop/web")
        );
        assert_eq!(
            certificate_element(&web, b"abc", None),
            format!("Hash={hash};URI=spiffe://prod/shop/web")
        );
    }
}
