use std::{fmt, sync::Arc};

use fairmesh_model::{Identity, Invalid, MAX_TOKEN, MeshRole, SpiffeId, SpiffePath};
use http::HeaderValue;

use super::Address;

/// The scheme of the `authorization` header that carries tokens (RFC 6750, 2.1). Case-insensitive.
const SCHEME: &str = "Bearer";

/// A user token, such as an OpenID Connect id token. Its holder can act as the user. It is therefore sent only to
/// control planes, over connections that others cannot read; `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Arc<str>);

impl BearerToken {
    /// Maximum length of a token, in bytes.
    pub const MAX: usize = MAX_TOKEN;

    /// Parses a token. White space at both ends is ignored.
    ///
    /// # Errors
    /// If the text cannot be a token.
    pub fn new(text: &str) -> Result<Self, Invalid> {
        let text = text.trim();
        let invalid =
            |problem: String| Err(Invalid::new("", problem, "give the token alone, as it was issued"));
        if text.is_empty() {
            return invalid("the token is empty".into());
        }
        if text.len() > Self::MAX {
            return invalid(format!("the token has {} bytes, of at most {}", text.len(), Self::MAX));
        }
        match text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte)) {
            true => Ok(Self(text.into())),
            false => invalid("the token has characters that no token has".into()),
        }
    }

    /// The token's text.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The token in a header value; `None` if the header has another scheme.
    pub fn in_header(value: &HeaderValue) -> Option<&str> {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case(SCHEME).then(|| token.trim())
    }

    /// The header value that carries the token.
    pub(super) fn header(&self) -> HeaderValue {
        let mut value = HeaderValue::try_from(format!("{SCHEME} {}", self.0))
            .unwrap_or_else(|_| HeaderValue::from_static(SCHEME));
        value.set_sensitive(true);
        value
    }

    /// Checks whether a token may be sent to the process at the other end of a connection.
    ///
    /// # Errors
    /// Why it may not be sent.
    pub(crate) fn may_be_shown_to(peer: &Identity, address: &Address) -> Result<(), String> {
        match peer {
            Identity::Anonymous => Err(format!(
                "the token is not sent, since {address} is reached in plaintext: give the Unix socket of the control plane, or \
                 let the agent of this machine join the trust domain"
            )),
            Identity::Local { .. } => Ok(()),
            Identity::Spiffe(SpiffeId { path: SpiffePath::Mesh(MeshRole::Control, _), .. }) => Ok(()),
            Identity::Spiffe(id) | Identity::Federated(id) => Err(format!(
                "the token is not sent, since {address} is {id}: give the address of a control plane"
            )),
        }
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_bearer_token_is_refused_and_valid_one_is_never_printed() {
        let token = BearerToken::new(" ey.J-_.w==\n").unwrap();
        assert_eq!((token.secret(), format!("{token:?}")), ("ey.J-_.w==", "BearerToken".into()));
        assert!(token.header().is_sensitive());
        assert_eq!(BearerToken::in_header(&token.header()), Some("ey.J-_.w=="));
        assert_eq!(BearerToken::in_header(&HeaderValue::from_static("bearer x")), Some("x"));
        assert_eq!(BearerToken::in_header(&HeaderValue::from_static("Basic x")), None);
        for wrong in ["", " ", "a b", "a\u{e9}", "a\"b", &"x".repeat(BearerToken::MAX + 1)] {
            assert!(BearerToken::new(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bearer_token_is_sent_only_to_control_planes_over_tls() {
        let address = "10.0.0.1:7400".parse().unwrap();
        let shown = |peer: &Identity| BearerToken::may_be_shown_to(peer, &address);
        let spiffe = |path: &str| Identity::Spiffe(format!("spiffe://prod/{path}").parse().unwrap());
        assert!(shown(&Identity::Anonymous).unwrap_err().contains("in plaintext"));
        assert!(shown(&Identity::Local { uid: 7 }).is_ok());
        assert!(shown(&spiffe("fairmesh/control/a")).is_ok());
        for other in ["fairmesh/replica/a", "fairmesh/agent/a", "shop/web"] {
            assert!(
                shown(&spiffe(other)).unwrap_err().contains("give the address of a control plane"),
                "{other}"
            );
        }
    }
}
