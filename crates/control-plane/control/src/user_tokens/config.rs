use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr};

use fairmesh_model::Invalid;

use crate::WebUrl;

/// Configuration of the issuer of user tokens. The names follow kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer as stated in tokens (`iss`).
    pub issuer: String,
    /// The audience of tokens for this mesh (`aud`): the client id for which they are issued.
    pub client_id: String,
    /// The keys of the issuer.
    pub jwks: JwksLocation,
    /// The authorities that vouch for the key server, in PEM; absent means the system's.
    pub ca_file: Option<PathBuf>,
    /// The claim with the name of the user.
    pub username_claim: String,
    /// The claim with the groups of the user.
    pub groups_claim: String,
}

impl OidcConfig {
    /// The default claim with a user's name.
    pub const USERNAME_CLAIM: &str = "sub";
    /// The default claim with a user's groups.
    pub const GROUPS_CLAIM: &str = "groups";
}

/// Where the keys of an issuer are, as a JWKS (RFC 7517, 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksLocation {
    /// A file. It is read again when it changes.
    File(PathBuf),
    /// A server.
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
    fn keys_come_from_a_file_or_over_a_connection_that_others_cannot_alter() {
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
