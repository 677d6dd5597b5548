use fairmesh_model::{GrpcMatch, HostMatch, Match, PathMatch, TextMatch, host_name};

use super::parameters::{decoded, parameter, text_satisfies};
use crate::{Headers, RequestView};

/// A request with its host and path in the form that conditions compare.
#[derive(Debug)]
pub(super) struct MatchInput<'a, H: Headers + ?Sized> {
    /// The host without port and trailing dot, in any case.
    pub(super) host: &'a str,
    /// The authority as sent: the value of the header `host` in every HTTP version.
    authority: &'a str,
    /// The path without the query.
    pub(super) path: &'a str,
    /// The query without `?`.
    query: &'a str,
    pub(super) method: &'a str,
    headers: &'a H,
    grpc: bool,
}

impl<'a, H: Headers + ?Sized> MatchInput<'a, H> {
    #[inline]
    pub(super) fn new(request: &RequestView<'a, H>) -> Self {
        let (path, query) = request.path.split_once('?').unwrap_or((request.path, ""));
        Self {
            host: host_name(request.host),
            authority: request.host,
            path,
            query,
            method: request.method,
            headers: request.headers,
            grpc: request.grpc,
        }
    }

    /// Returns the first value of a header as the server receives it. `host` is always the authority.
    fn header(&self, name: &str) -> Option<&'a [u8]> {
        match name {
            "host" => Some(self.authority.as_bytes()).filter(|host| !host.is_empty()),
            _ => self.headers.get(name),
        }
    }

    /// Whether all conditions of a match hold.
    #[inline]
    pub(super) fn satisfies(&self, condition: &Match) -> bool {
        condition.path.as_ref().is_none_or(|path| path_satisfies(self.path, path))
            && (condition.methods.is_empty() || condition.methods.iter().any(|method| method == self.method))
            && (condition.hosts.is_empty()
                || condition.hosts.iter().any(|host| host_satisfies(self.host, host)))
            && condition.grpc.as_ref().is_none_or(|grpc| self.grpc && grpc_satisfies(self.path, grpc))
            && condition.headers.iter().all(|header| {
                let value = self.header(&header.name);
                match &header.value {
                    // The value is contiguous, so matching allocates nothing.
                    TextMatch::Regex(pattern) => value.is_some_and(|value| pattern.matches(value)),
                    other => text_satisfies(value.map(|value| value.iter().copied()), other),
                }
            })
            && condition
                .query
                .iter()
                .all(|query| text_satisfies(parameter(self.query, &query.name).map(decoded), &query.value))
    }
}

pub(super) fn host_satisfies(host: &str, condition: &HostMatch) -> bool {
    match condition {
        HostMatch::Exact(name) => host.eq_ignore_ascii_case(name),
        HostMatch::Suffix(domain) => host
            .len()
            .checked_sub(domain.len())
            .is_some_and(|cut| cut > 0 && host.as_bytes()[cut..].eq_ignore_ascii_case(domain.as_bytes())),
    }
}

#[inline]
pub(super) fn path_satisfies(path: &str, condition: &PathMatch) -> bool {
    match condition {
        PathMatch::Exact(exact) => path == exact,
        PathMatch::Prefix(prefix) => {
            path.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        PathMatch::Template(template) => template.matches(path),
        PathMatch::Regex(pattern) => pattern.matches(path),
    }
}

/// Whether a path satisfies a gRPC condition. gRPC paths are `/service/method`, and neither part contains a `/`.
fn grpc_satisfies(path: &str, condition: &GrpcMatch) -> bool {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).is_some_and(|(service, method)| {
        service == condition.service && condition.method.as_ref().is_none_or(|name| name == method)
    })
}
