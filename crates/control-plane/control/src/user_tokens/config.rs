use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr};

use fairmesh_model::Invalid;

use crate::WebUrl;

/// Configuration of the issuer of user tokens. The names follow kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer, as tokens state it (`iss`).
    pub issuer: String,
    /// The audience of tokens for this mesh (`aud`): the client id for which they are issued.
    pub client_id: String,
    /// The location of the issuer's keys.
    pub jwks: JwksLocation,
    /// Certificate authorities, in PEM, that vouch for the key server. `None` uses the system's.
    pub ca_file: Option<PathBuf>,
    /// The claim that holds the user's name.
    pub username_claim: String,
    /// The claim that holds the user's groups.
    pub groups_claim: String,
}

impl OidcConfig {
    /// Default of [`username_claim`](Self::username_claim).
    pub const USERNAME_CLAIM: &str = "sub";
    /// Default of [`groups_claim`](Self::groups_claim).
    pub const GROUPS_CLAIM: &str = "groups";
}

/// The location of an issuer's keys, a JWKS (RFC 7517, 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksLocation {
    /// A file. It is read again when it changes.
    File(PathBuf),
    /// A server, from which the keys are fetched.
    Url(WebUrl),
}

impl FromStr for JwksLocation {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.contains("://") {
            true => text.parse().map(Self::Url),
            false => PathBuf::from_str(text).map(Self::File).map_err(|never: Infallible| match never {}),
        }
    }
}

impl fmt::Display for JwksLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_keys_are_accepted_only_from_file_or_authenticated_server() {
        for (text, shown) in [
            ("/etc/fairmesh/jwks.json", "/etc/fairmesh/jwks.json"),
            ("https://idp.example/keys?key=7", "https://idp.example:443/keys"),
            ("https://[2001:db8::1]:8443/keys", "https://[2001:db8::1]:8443/keys"),
            ("http://127.0.0.1:9000/keys", "http://127.0.0.1:9000/keys"),
            ("http://[::1]/", "http://[::1]:80/"),
        ] {
            assert_eq!(text.parse::<JwksLocation>().unwrap().to_string(), shown);
        }
        for wrong in
            ["http://idp.example/keys", "ftp://idp.example/keys", "https://me@idp.example/", "https://"]
        {
            assert!(wrong.parse::<JwksLocation>().is_err(), "{wrong}");
        }
    }
}
