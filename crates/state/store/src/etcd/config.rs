use std::{fmt, path::PathBuf, str::FromStr};

use fairmesh_model::Invalid;

use crate::StoreLocation;

/// Root of the keys if the store's address names none.
const DEFAULT_ROOT: &str = "/fairmesh";
/// Port of etcd if the store's address names none.
const DEFAULT_PORT: u16 = 2379;

/// Address and credentials for the etcd cluster of a store.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Members of the cluster, and root of the keys.
    pub address: EtcdAddress,
    /// TLS settings; plaintext if absent.
    pub tls: Option<EtcdTls>,
    /// User and password, if etcd requires authentication.
    pub login: Option<EtcdLogin>,
}

/// Members of one etcd cluster and the root of all keys: `etcd://host:2379,host2:2379/root`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdAddress {
    members: Vec<String>,
    root: String,
}

/// PEM files for TLS.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// Certificate authorities that may sign etcd's certificate.
    pub ca: PathBuf,
    /// Files with the client certificate and its private key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A user of etcd.
#[derive(Clone)]
pub struct EtcdLogin {
    /// Name of the user.
    pub user: String,
    /// Password of the user.
    pub password: String,
}

impl EtcdAddress {
    /// Returns the members, each as `host:port`.
    pub(super) fn members(&self) -> &[String] {
        &self.members
    }

    /// Returns the root, which begins with a slash and does not end with one.
    pub(super) fn root(&self) -> &str {
        &self.root
    }

    /// Returns the address as a location for messages.
    pub fn location(&self) -> StoreLocation {
        self.to_string().as_str().into()
    }
}

impl fmt::Display for EtcdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd://{}{}", self.members.join(","), self.root)
    }
}

impl FromStr for EtcdAddress {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refused = |problem: &str| {
            let hint =
                "write etcd://host:2379,host2:2379, and /root behind it for another root than /fairmesh";
            Invalid::new("store", format!("{text}: {problem}"), hint)
        };
        let rest = text.strip_prefix("etcd://").ok_or_else(|| refused("does not begin with etcd://"))?;
        let (members, root) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let members = members.split(',').map(|member| with_port(member).ok_or(member));
        let members = members
            .collect::<Result<_, _>>()
            .map_err(|wrong| refused(&format!("'{wrong}' is not host:port")))?;
        let root = root.strip_suffix('/').unwrap_or(root);
        if root.split('/').skip(1).any(str::is_empty) {
            return Err(refused("the root has an empty segment"));
        }
        let root = if root.is_empty() { DEFAULT_ROOT } else { root };
        Ok(Self { members, root: root.into() })
    }
}

/// Returns `host:port`, with etcd's default port if `member` has none.
fn with_port(member: &str) -> Option<String> {
    let (host, port) = match member.rsplit_once(':') {
        // The colon belongs to an IPv6 address.
        Some((_, port)) if port.ends_with(']') => (member, DEFAULT_PORT),
        Some((host, port)) => (host, port.parse().ok()?),
        None => (member, DEFAULT_PORT),
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let named = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || ".-_".contains(c));
    (bracketed || named).then(|| format!("{host}:{port}"))
}

impl fmt::Debug for EtcdLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etcd_address_has_default_port_and_root() {
        let whole = |text: &str| text.parse::<EtcdAddress>().unwrap().to_string();
        assert_eq!(whole("etcd://a:1,b.example:2/mesh/eu"), "etcd://a:1,b.example:2/mesh/eu");
        assert_eq!(whole("etcd://a,b:7"), "etcd://a:2379,b:7/fairmesh");
        assert_eq!(whole("etcd://[::1]:5,[::2]/"), "etcd://[::1]:5,[::2]:2379/fairmesh");
    }

    #[test]
    fn invalid_etcd_address_error_shows_expected_form() {
        for wrong in [
            "http://a:1",
            "etcd://",
            "etcd://a:port",
            "etcd://a,,b",
            "etcd://a//b",
            "etcd://a b",
            "etcd://a:99999",
        ] {
            let refusal = wrong.parse::<EtcdAddress>().unwrap_err().to_string();
            assert!(refusal.contains("etcd://host:2379,host2:2379"), "{refusal}");
        }
    }

    #[test]
    fn etcd_password_is_not_in_debug_output() {
        let login = EtcdLogin { user: "mesh".into(), password: "secret".into() };
        assert!(!format!("{login:?}").contains("secret"));
    }
}
