use std::{convert::Infallible, fmt, net::IpAddr, path::PathBuf, str::FromStr};

use axum::http::Uri;
use fairmesh_model::Invalid;

/// Whose tokens say who a user is. The names are those of kube-apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer, as tokens have it (`iss`).
    pub issuer: String,
    /// The audience of tokens for this mesh (`aud`): the id of the client that gets them.
    pub client_id: String,
    /// The keys of the issuer.
    pub jwks: JwksLocation,
    /// The authorities that vouch for the server of the keys, in PEM; absent: those of the system.
    pub ca_file: Option<PathBuf>,
    /// The claim with the name of the user.
    pub username_claim: String,
    /// The claim with the groups of the user.
    pub groups_claim: String,
}

impl OidcConfig {
    /// The claim with the name of a user, by default.
    pub const USERNAME_CLAIM: &str = "sub";
    /// The claim with the groups of a user, by default.
    pub const GROUPS_CLAIM: &str = "groups";
}

/// Where the keys of an issuer are, as a JWKS (RFC 7517, 5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksLocation {
    /// A file, which is read again when it changes.
    File(PathBuf),
    /// A server.
    Url(JwksUrl),
}

/// The URL of a JWKS: over TLS, or of this machine, since others could replace the keys on their way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksUrl {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// With the query.
    pub(super) path: String,
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

impl FromStr for JwksUrl {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let invalid = |problem: &str| {
            Invalid::new(
                "",
                problem,
                "give a file, or a URL such as https://idp.example/keys of the provider's jwks_uri",
            )
        };
        let uri: Uri = text.parse().map_err(|_| invalid("is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(invalid("is not a URL of https")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid("has a user"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if !is_tls && !is_loopback(&host) {
            return Err(invalid(
                "is of plaintext HTTP, so that others on the network could replace the keys",
            ));
        }
        let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(Self { is_tls, host, port, path })
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl fmt::Display for JwksLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for JwksUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        // Without the query, which may have a key of its own.
        let path = self.path.split('?').next().unwrap_or_default();
        write!(f, "{scheme}://{host}:{}{path}", self.port)
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
