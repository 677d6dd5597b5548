//! Entry points of fuzz targets: what is read of tokens of users and of the keys of their issuer.

use std::time::Duration;

use fairmesh_rib::access::User;

use crate::user_tokens::{self, OidcConfig};

/// How many keys of a JWKS verify tokens; `None` if it is refused.
pub fn keys_of(jwks: &[u8]) -> Option<usize> {
    user_tokens::KeySet::parse(jwks).ok().map(|keys| keys.len())
}

/// The user of a token by the keys of a JWKS; `None` if it is refused.
pub fn user_of_token(config: &OidcConfig, (token, jwks): (&str, &[u8]), now: Duration) -> Option<User> {
    let keys = user_tokens::KeySet::parse(jwks).ok()?;
    user_tokens::verify(token, &keys, &config.into(), now)
}

/// The user of the claims of a token whose signature was verified; `None` if they are refused.
pub fn user_of_claims(config: &OidcConfig, claims: &[u8], now: Duration) -> Option<User> {
    user_tokens::Expected::from(config).user(&serde_json::from_slice(claims).ok()?, now).ok()
}
