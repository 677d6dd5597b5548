//! Which calls a rule of a policy is for.

use super::{Pattern, Template};
use crate::Invalid;

/// Which calls a route is for: all conditions hold, and an empty condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Any of these callers.
    pub clients: Vec<ClientMatch>,
    /// Any of these hosts.
    pub hosts: Vec<HostMatch>,
    /// The path.
    pub path: Option<PathMatch>,
    /// Any of these methods, upper case.
    pub methods: Vec<String>,
    /// All of these headers.
    pub headers: Vec<HeaderMatch>,
    /// All of these parameters of the query.
    pub query: Vec<QueryMatch>,
    /// A gRPC method; holds only for gRPC calls.
    pub grpc: Option<GrpcMatch>,
}

/// A caller, by the id that it has in the mesh (ServiceRouter §4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientMatch(String);

impl ClientMatch {
    /// Reads an id; a `*` at either end stands for anything.
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

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a caller with this id is meant.
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

/// A host, compared without case, port and the dot at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMatch {
    /// Exactly this one, lower case.
    Exact(String),
    /// Any name below this domain, written `*.example.org`; kept lower case without the star, as `.example.org`.
    Suffix(String),
}

/// A path, compared to the bytes without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// Exactly this one.
    Exact(String),
    /// This one or below it: `/a` matches `/a` and `/a/b` and not `/ab`; kept without a final `/`, so `/` is empty.
    Prefix(String),
    /// As many segments as the template has, such as `/users/{id}/orders`.
    Template(Template),
    /// All of it matches the expression.
    Regex(Pattern),
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// Its name, lower case.
    pub name: String,
    /// Its value.
    pub value: TextMatch,
}

/// A parameter of the query: of several of one name the first counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    /// Its name, compared as it reads once `%41` and `+` are taken for what they stand for.
    pub name: String,
    /// Its value, compared alike.
    pub value: TextMatch,
}

/// A text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextMatch {
    /// There is none.
    Absent,
    /// Any value.
    Present,
    /// Exactly this one.
    Exact(String),
    /// Anything that starts so.
    Prefix(String),
}

/// A gRPC method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrpcMatch {
    /// The full service name, such as `shop.v1.Cart`.
    pub service: String,
    /// The method, or any.
    pub method: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_in_full_or_by_either_end() {
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
