use std::{fmt, path::PathBuf, str::FromStr};

use fairmesh_model::Invalid;
use tokio::net::UnixStream;

/// The address of a control plane or an agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `host:port`; an IPv6 host is in brackets. Port 0 listens on a free port.
    Tcp(String),
    /// The absolute path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Socket on which an agent at this address passes tables of large shard maps to programs as shared memory.
    /// `None` for TCP, which cannot pass memory.
    pub fn maps(&self) -> Option<Self> {
        let Self::Unix(path) = self else { return None };
        let mut path = path.clone().into_os_string();
        path.push(".maps");
        Some(Self::Unix(path.into()))
    }

    /// The first Unix socket among these addresses at which a process listens, or the first socket if none does. `None`
    /// without any socket.
    pub async fn first_local<'a>(addresses: impl IntoIterator<Item = &'a Self>) -> Option<&'a Self> {
        let local: Vec<_> =
            addresses.into_iter().filter(|address| matches!(address, Self::Unix(_))).collect();
        for address in local.iter().filter(|_| local.len() > 1) {
            if let Self::Unix(path) = address
                && UnixStream::connect(path).await.is_ok()
            {
                return Some(*address);
            }
        }
        local.first().copied()
    }
}

const LIST: &str = "is a list, and one address is needed";

impl FromStr for Address {
    type Err = Invalid;

    /// Parses `host:port`, `http://host:port`, `unix:/path` or `unix:///path`.
    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refuse = |problem: &str| {
            let problem = format!("'{text}' {problem}");
            Err(Invalid::new("address", problem, "write host:port, such as 127.0.0.1:7400, or unix:/path"))
        };
        if let Some(path) = text.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') || path.ends_with('/') {
                return refuse("is not an absolute path");
            }
            if path.contains(",unix:") {
                return refuse(LIST);
            }
            return Ok(Self::Unix(path.into()));
        }
        if text.contains(',') {
            return refuse(LIST);
        }
        if text.starts_with("https://") {
            return refuse("requires TLS, which is not supported yet");
        }
        let plain = text.strip_prefix("http://").unwrap_or(text);
        let plain = plain.strip_suffix('/').unwrap_or(plain);
        let Some((host, port)) = plain.rsplit_once(':') else {
            return refuse("has no port");
        };
        let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host_fits = match bracketed {
            Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty()
                    && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
            }
        };
        let port_fits = port.parse::<u16>().is_ok() && port.bytes().all(|b| b.is_ascii_digit());
        match (host_fits, port_fits) {
            (true, true) => Ok(Self::Tcp(plain.to_owned())),
            (false, _) => refuse("has no host"),
            (true, false) => refuse("has no port from 0 to 65535"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => f.write_str(address),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_address_form_parses_as_displayed() {
        for (text, shown) in [
            ("127.0.0.1:7400", "127.0.0.1:7400"),
            ("http://control.mesh:7400", "control.mesh:7400"),
            ("http://control.mesh:7400/", "control.mesh:7400"),
            ("[::1]:0", "[::1]:0"),
            ("unix:/run/fairmesh/agent.sock", "unix:/run/fairmesh/agent.sock"),
            ("unix:///run/agent.sock", "unix:/run/agent.sock"),
            ("unix:/run/a,b.sock", "unix:/run/a,b.sock"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address));
        }
    }

    #[test]
    fn list_of_addresses_is_rejected_as_list() {
        for list in ["127.0.0.1:7400,127.0.0.1:7500", "unix:/run/a.sock,unix:/run/b.sock"] {
            let error = list.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(LIST), "{error}");
        }
    }

    #[test]
    fn invalid_transport_addresses_are_rejected_with_hint() {
        let wrong = [
            "",
            "7400",
            ":7400",
            "host",
            "host:",
            "host:65536",
            "host:+1",
            "::1:7400",
            "[nope]:1",
            "a/b:1",
            "https://host:7400",
            "unix:agent.sock",
            "unix:",
            "unix:/run/",
        ];
        for text in wrong {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.hint.contains("host:port"), "{text}");
        }
        assert!("https://host:1".parse::<Address>().unwrap_err().problem.contains("TLS"));
    }
}
