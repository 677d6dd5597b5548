//! Match conditions of a route.

use super::{Pattern, Template};
use crate::Invalid;

/// Match conditions of a route. All must hold; an empty condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Clients, one of which must match.
    pub clients: Vec<ClientMatch>,
    /// Hosts, one of which must match.
    pub hosts: Vec<HostMatch>,
    /// The path condition.
    pub path: Option<PathMatch>,
    /// Methods in upper case, one of which must match.
    pub methods: Vec<String>,
    /// Header conditions, all of which must hold.
    pub headers: Vec<HeaderMatch>,
    /// Query parameter conditions, all of which must hold.
    pub query: Vec<QueryMatch>,
    /// A gRPC method; matches only gRPC calls.
    pub grpc: Option<GrpcMatch>,
}

/// A pattern of client ids in the mesh (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMatch(String);

impl ClientMatch {
    /// Parses a client id. A `*` at either end matches any text.
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

    /// The pattern as written.
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

/// A host condition. Case, port and trailing dot are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// Exactly this host, in lower case.
    Exact(String),
    /// Any host below this domain. Written as `*.example.org`, and stored in lower case without the star, as
    /// `.example.org`.
    Suffix(String),
}

/// A path condition, compared byte by byte without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Exactly this path.
    Exact(String),
    /// This path or any path below it: `/a` matches `/a` and `/a/b`, but not `/ab`. Stored without a trailing `/`, so
    /// `/` is stored as an empty string.
    Prefix(String),
    /// A path that matches a template, such as `/users/{id}/orders`.
    Template(Template),
    /// A regular expression that must match the whole path.
    Regex(Pattern),
}

/// A header condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The header name, in lower case.
    pub name: String,
    /// The condition on the value.
    pub value: TextMatch,
}

/// A query parameter condition. If a parameter is repeated, its first value counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    /// The parameter name, compared after percent-decoding.
    pub name: String,
    /// The condition on the value, compared after percent-decoding.
    pub value: TextMatch,
}

/// A condition on the value of a header or parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// The header or parameter is absent.
    Absent,
    /// The header or parameter is present, with any value.
    Present,
    /// Exactly this value.
    Exact(String),
    /// A value with this prefix.
    Prefix(String),
    /// A regular expression that must match the whole value.
    Regex(Pattern),
}

/// A condition on gRPC calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatch {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method; `None` matches any method.
    pub method: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_client_condition_matches_exactly_or_by_wildcard() {
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
