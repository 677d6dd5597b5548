//! Which calls a rule of a policy is for.

use super::{Pattern, Template};

/// Which calls a route is for: all conditions hold, and an empty condition always holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
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

/// A host, compared without case and port.
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
