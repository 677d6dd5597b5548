//! Authorities of requests: a host and an optional port (RFC 3986 3.2).

/// A well-formed authority without userinfo, such as `cart.shop:80`, `cart.shop.` or `[::1]:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostPort<'a> {
    /// The host as written: case and trailing dot are kept, and an IPv6 address is in brackets.
    pub host: &'a str,
    /// The port; `None` if the authority has no port or ends with the colon.
    pub port: Option<u16>,
}

impl<'a> HostPort<'a> {
    /// Parses an authority. Returns `None` if the host is empty, ends in more than one dot or contains bytes that are
    /// invalid in hosts, or if the port is not a number up to 65535.
    pub fn parse(authority: &'a str) -> Option<Self> {
        let (host, port) = match authority.rfind(':') {
            Some(at) if !authority.ends_with(']') => (&authority[..at], &authority[at + 1..]),
            _ => (authority, ""),
        };
        let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = match port {
            "" => None,
            port => Some(port.parse().ok().filter(|_| is_number)?),
        };
        is_host(host).then_some(Self { host, port })
    }

    /// The host without its trailing dot, for comparison with rules and names.
    pub fn name(&self) -> &'a str {
        without_dot(self.host)
    }
}

/// The host of an authority, for case-insensitive comparison with rules. Port and trailing dot are removed, since
/// servers ignore them. Malformed input is returned unchanged.
pub fn host_name(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !is_open(host) => host,
        _ => authority,
    };
    without_dot(host)
}

/// Whether `text` ends inside the brackets of an IPv6 address. The next colon then belongs to the address.
fn is_open(text: &str) -> bool {
    text.starts_with('[') && !text.ends_with(']')
}

fn without_dot(host: &str) -> &str {
    host.strip_suffix('.').unwrap_or(host)
}

/// Whether `host` is a registered name or an address (RFC 3986 3.2.2). `%` is rejected: readers that do not decode it
/// would see a different name.
fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').unwrap_or_default();
        return !address.is_empty()
            && address.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'));
    }
    let name = without_dot(host);
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte);
    !name.is_empty() && !name.ends_with('.') && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_host_with_optional_port() {
        let parsed = |text| HostPort::parse(text).map(|parsed| (parsed.name(), parsed.port));
        for (text, host, port) in [
            ("cart.shop", "cart.shop", None),
            ("Cart.Shop.:80", "Cart.Shop", Some(80)),
            ("cart.shop:", "cart.shop", None),
            ("cart.shop:00080", "cart.shop", Some(80)),
            ("127.0.0.1:65535", "127.0.0.1", Some(65535)),
            ("[::1]", "[::1]", None),
            ("[::ffff:10.0.0.1]:80", "[::ffff:10.0.0.1]", Some(80)),
            ("a_b~c", "a_b~c", None),
        ] {
            assert_eq!(parsed(text), Some((host, port)), "{text}");
            assert_eq!(host_name(text), host, "{text}");
        }
        for wrong in [
            "",
            ":80",
            ".",
            "..",
            "a..",
            "a..:80",
            "a b",
            "a:80x",
            "a:x",
            "a:+1",
            "a:65536",
            "a:b:80",
            "u@a",
            "a/b",
            "%61",
            "a\\",
            "a?",
            "a#",
            "é",
            "[",
            "[]",
            "[::1",
            "[::1]80",
            "[::1]x:80",
            "[g]",
            "::1",
            "a\u{7f}",
        ] {
            assert_eq!(parsed(wrong), None, "{wrong}");
        }
    }
}
