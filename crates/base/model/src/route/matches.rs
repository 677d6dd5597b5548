//! Match conditions of a route.

use super::{Pattern, Template};
use crate::Invalid;

/// Match conditions of a route: all must hold; an empty condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Any of these clients.
    pub clients: Vec<ClientMatch>,
    /// Any of these hosts.
    pub hosts: Vec<HostMatch>,
    /// The path.
    pub path: Option<PathMatch>,
    /// Any of these methods, upper case.
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
    /// All of these query parameters.
    pub query: Vec<QueryMatch>,
    /// A gRPC method; matches only gRPC calls.
    pub grpc: Option<GrpcMatch>,
}

/// A client, by its id in the mesh (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMatch(String);

impl ClientMatch {
    /// Parses an id; a `*` at either end matches any text.
    pub fn new(text: impl Into<String>) -> Result<Self, Invalid> {
        let text = text.into();
        let middle = text.strip_prefix('*').unwrap_or(&text);
        let middle = middle.strip_suffix('*').unwrap_or(middle);
        if !middle.is_empty() && !middle.contains('*') && text.len() <= 256 {
            return Ok(Self(text));
        }
        let hint = "write an id, or a part of it with '*' at either end, such as batch-* or */checkout";
        Err(Invalid::new("", format!("'{text}' is not a client"), hint))
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a client id matches.
    pub fn matches(&self, id: &str) -> bool {
        let begins = self.0.strip_prefix('*').unwrap_or(&self.0);
        let middle = begins.strip_suffix('*').unwrap_or(begins);
        match (self.0.starts_with('*'), self.0.ends_with('*')) {
            (false, false) => id == middle,
            (false, true) => id.starts_with(middle),
            (true, false) => id.ends_with(middle),
            (true, true) => id.contains(middle),
        }
    }
}

/// A host, compared ignoring case, port and trailing dot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// This host, lower case.
    Exact(String),
    /// Any name below this domain, written `*.example.org`; stored in lower case without the star, as `.example.org`.
    Suffix(String),
}

/// A path, compared byte by byte without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// This path.
    Exact(String),
    /// This path or one below it: `/a` matches `/a` and `/a/b`, not `/ab`; stored without a trailing `/`, so `/` is
    /// empty.
    Prefix(String),
    /// A path with the segments of a template, such as `/users/{id}/orders`.
    Template(Template),
    /// A path that matches the expression as a whole.
    Regex(Pattern),
}

/// A header condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name, lower case.
    pub name: String,
    /// Its value.
    pub value: TextMatch,
}

/// A query parameter condition. If a name occurs repeatedly, its first value counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    /// Its name, compared after percent-decoding.
    pub name: String,
    /// Its value, compared after percent-decoding.
    pub value: TextMatch,
}

/// A condition on a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// The text is absent.
    Absent,
    /// Any value.
    Present,
    /// This value.
    Exact(String),
    /// A value with this prefix.
    Prefix(String),
    /// A value that matches the expression as a whole.
    Regex(Pattern),
}

/// A gRPC method condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatch {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method; `None` matches any.
    pub method: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_matches_exactly_or_by_wildcard() {
        let fits = |text: &str| {
            let wanted = ClientMatch::new(text).unwrap();
            ["batch-1", "web/checkout", "web/checkout-2"].map(|id| wanted.matches(id))
        };
        assert_eq!(fits("batch-1"), [true, false, false]);
        assert_eq!(fits("batch-*"), [true, false, false]);
        assert_eq!(fits("*/checkout"), [false, true, false]);
        assert_eq!(fits("*checkout*"), [false, true, true]);
        assert_eq!(fits("checkout"), [false; 3]);
        for wrong in ["", "*", "**", "a*b", "***a"] {
            assert!(ClientMatch::new(wrong).is_err(), "{wrong}");
        }
    }
}
