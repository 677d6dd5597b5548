//! Entry points of fuzz targets: parsers of user tokens and of their issuer's keys.

use std::time::Duration;

use fairmesh_rib::access::User;
use fairmesh_tokens::KeySet;

use crate::user_tokens::{self, OidcConfig};

/// Number of keys in a JWKS that can verify tokens; `None` if the JWKS is refused.
pub fn keys_of(jwks: &[u8]) -> Option<usize> {
    KeySet::parse(jwks).ok().map(|keys| keys.len())
}

/// The user of a token that the keys of a JWKS verify; `None` if the token is refused.
pub fn user_of_token(config: &OidcConfig, (token, jwks): (&str, &[u8]), now: Duration) -> Option<User> {
    let keys = KeySet::parse(jwks).ok()?;
    user_tokens::verify(token, &keys, &config.into(), now)
}

/// The user in claims that were verified; `None` if the claims are refused.
pub fn user_of_claims(config: &OidcConfig, claims: &[u8], now: Duration) -> Option<User> {
    user_tokens::Expected::from(config).user(&serde_json::from_slice(claims).ok()?, now).ok()
}
